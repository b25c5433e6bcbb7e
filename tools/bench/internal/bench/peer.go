package bench

import (
	"fmt"

	"github.com/go-json-experiment/json"
)

// peerCase is the name of the case in lines of other systems.
const peerCase = "peer"

// Peer is a measurement of another system under the same workload: one line of JSON, written by tools/bench/peers.
type Peer struct {
	Format int `json:"waymark_bench_peer"`
	// System with its version, and its store.
	System string `json:"system"`
	Store  string `json:"store"`
	// Client is the language of the client.
	Client string `json:"client"`
	Quick  bool   `json:"quick,omitzero"`
	// Runs at once, and the turns of each.
	Runs  int `json:"runs"`
	Turns int `json:"turns"`
	// TurnsPerSecond of all runs, and the percentiles of a whole turn in us.
	TurnsPerSecond *float64 `json:"turns_per_second,omitzero"`
	TurnP50        *float64 `json:"turn_p50_us,omitzero"`
	TurnP99        *float64 `json:"turn_p99_us,omitzero"`
	// StoredPerPayload are the bytes in the store's log by payload.
	StoredPerPayload *float64 `json:"stored_per_payload,omitzero"`
	// ClientCPU and ServerCPU are the processor time of a turn in us.
	ClientCPU *float64 `json:"client_cpu_us,omitzero"`
	ServerCPU *float64 `json:"server_cpu_us,omitzero"`
}

// readPeer reads a line of another system. It returns nil for any other line.
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
