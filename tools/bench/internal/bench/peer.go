package bench

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"

	"github.com/go-json-experiment/json"
)

// peerCase stands for the case in lines of other systems.
const peerCase = "peer"

// Peer is what another system did with the workload, as tools/bench/peers measures it: one line of JSON.
type Peer struct {
	Format int `json:"waymark_bench_peer"`
	// System with its version, what it stores in, and who measured it.
	System string `json:"system"`
	Store  string `json:"store"`
	Source string `json:"source"`
	Quick  bool   `json:"quick,omitzero"`
	// Runs at once, of so many turns each.
	Runs  int `json:"runs"`
	Turns int `json:"turns"`
	// Boundaries a second of all runs, and the percentiles of one in us.
	PerSecond *float64 `json:"per_second,omitzero"`
	P50       *float64 `json:"p50_us,omitzero"`
	P99       *float64 `json:"p99_us,omitzero"`
	// TurnsPerSecond of all runs, and the percentiles of a whole turn in us.
	TurnsPerSecond *float64 `json:"turns_per_second,omitzero"`
	TurnP50        *float64 `json:"turn_p50_us,omitzero"`
	TurnP99        *float64 `json:"turn_p99_us,omitzero"`
	// StoredPerPayload is what the store wrote to its log, KeptPerPayload what it grew by, by payload.
	StoredPerPayload *float64 `json:"stored_per_payload,omitzero"`
	KeptPerPayload   *float64 `json:"kept_per_payload,omitzero"`
	// DevicePerPayload is what the store's process wrote to the disk, by payload.
	DevicePerPayload *float64 `json:"device_per_payload,omitzero"`
	// RecoveryMS is the time until another process is where the run was.
	RecoveryMS *float64 `json:"recovery_ms,omitzero"`
}

// readPeer reads a line of another system; nil for a line that is none.
func readPeer(line []byte) (*Peer, error) {
	var p Peer
	if err := json.Unmarshal(line, &p); err != nil || p.Format == 0 {
		return nil, nil //nolint:nilerr,nilnil // the reader of results reports a line that is neither
	}
	if p.Format != Format || p.System == "" || p.Runs < 1 || p.Turns < 1 {
		return nil, fmt.Errorf("it is of peer format %d, system %q, runs %d, turns %d", p.Format, p.System, p.Runs, p.Turns)
	}
	return &p, nil
}

// circumstances tell a line from others; empty for none.
func (p *Peer) circumstances() string {
	if p == nil {
		return ""
	}
	return fmt.Sprint(p.System, p.Store, p.Runs, p.Turns)
}

// splitPeers takes the lines of other systems out.
func splitPeers(results []Result) (own []Result, peers []Peer) {
	for _, r := range results {
		if r.Peer != nil {
			peers = append(peers, *r.Peer)
		} else {
			own = append(own, r)
		}
	}
	return own, peers
}

// whole is a number of things.
func whole(n float64) string { return strconv.FormatFloat(n, 'f', 0, 64) }

// peerTable writes the table of other systems, with Waymark's lines of the same sizes.
func peerTable(b *bytes.Buffer, peers []Peer, results []Result) {
	if len(peers) == 0 {
		return
	}
	b.WriteString("## Other systems under the same workload\n\n")
	b.WriteString("Measured by `make bench-peers`, on this project's workload and with durable commits; the clients are JavaScript, the stores are\n" +
		"PostgreSQL and Restate's own, as they come. What a boundary and a recovery is in each, and what the bytes count, says\n" +
		"tools/bench/peers/README.md: orders of magnitude, no more. Stored is PostgreSQL's log alone; ours is log, segments and every\n" +
		"checkpoint. With other clients and other shapes of an earlier workload (turns of four boundaries, 7 KB) these systems were measured\n" +
		"to be faster: DBOS at a p50 of 1.1 to 1.6 ms, LangGraph with a delta channel at 1.6 to 3.0 ms and with an ordinary one at 4 to 21 ms,\n" +
		"on a machine of two cores.\n\n")
	if slices.ContainsFunc(peers, func(p Peer) bool { return p.Quick }) {
		b.WriteString("**Some lines only say that the scripts work; their figures mean nothing.**\n\n")
	}
	var lines [][]string
	for _, r := range results {
		runs, hasRuns := r.parameter("runs")
		turns, ok := r.parameter("turns")
		switch {
		case r.Ours == nil || !ok:
			continue
		case r.Case == "growth" && r.Parameters["speed"] == "full":
			runs = 1
		case r.Case != "boundaries" || !hasRuns || runs == 1:
			continue
		}
		lines = append(lines, []string{
			"Waymark", r.where(), whole(runs), whole(turns), number(r.Ours.PerSecond), number(r.Ours.P50), number(r.Ours.P99),
			number(r.StoredPerPayload), number(r.KeptPerPayload), "",
		})
	}
	for _, p := range peers {
		runs, turns := float64(p.Runs), float64(p.Turns)
		lines = append(lines, []string{
			p.System, p.Store + ", " + p.Source, whole(runs), whole(turns), number(p.PerSecond), number(p.P50), number(p.P99),
			number(p.StoredPerPayload), number(p.KeptPerPayload), number(p.RecoveryMS),
		})
	}
	markdown(b, []string{"system", "store", "runs", "turns", "per second", "p50 us", "p99 us", "stored/payload", "kept/payload", "recovery ms"}, lines)
}
