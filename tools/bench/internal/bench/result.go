package bench

import (
	"bufio"
	"bytes"
	"fmt"
	"io"

	"github.com/go-json-experiment/json"
)

// Format is the version of the lines of results.
const Format = 1

// maxLine bounds one line of results.
const maxLine = 1 << 20

// Result is the measurement of one variant: one line of JSON. Nil means not measured.
type Result struct {
	Format int `json:"waymark_bench"`
	// Case and Parameters name the line.
	Case       string         `json:"case"`
	Parameters map[string]any `json:"parameters,omitzero"`
	// Quick lines only say that the case works.
	Quick bool `json:"quick,omitzero"`
	// Error says why there are no figures.
	Error string `json:"error,omitzero"`

	Server   ServerKind `json:"server"`
	Sync     Sync       `json:"sync"`
	Replicas string     `json:"replicas"` // R1, R3
	Shards   int        `json:"shards"`
	// Daemons in processes of their own; absent when the daemon is part of the measuring process.
	Daemons int `json:"daemons,omitzero"`
	Rounds  int `json:"rounds"`

	// Ours and Raw are medians over the rounds.
	Ours *Figures `json:"waymark,omitzero"`
	Raw  *Figures `json:"raw,omitzero"`
	// RateRatio is our boundaries/s by those of raw; P50Ratio our median latency by that of raw.
	RateRatio *float64 `json:"rate_ratio,omitzero"`
	P50Ratio  *float64 `json:"p50_ratio,omitzero"`

	// PayloadBytes is the payload of executors in our rounds.
	PayloadBytes *float64 `json:"payload_bytes,omitzero"`
	// LogBytes, SegmentBytes, CheckpointBytes are what JetStream counted, every put included, also of checkpoints
	// that are gone by now: those count as the ones that are there do on average, save where the case has counted each.
	LogBytes        *float64 `json:"log_bytes,omitzero"`
	SegmentBytes    *float64 `json:"segment_bytes,omitzero"`
	CheckpointBytes *float64 `json:"checkpoint_bytes,omitzero"`
	// StoredPerPayload is log, segments and checkpoint puts by payload.
	StoredPerPayload *float64 `json:"stored_per_payload,omitzero"`

	// CPU per boundary in us, in our rounds: of all processes, and of each kind where they are processes.
	CPU map[string]float64 `json:"cpu_us_per_boundary,omitzero"`
	// RawCPU is the same in the raw rounds, without daemons.
	RawCPU map[string]float64 `json:"raw_cpu_us_per_boundary,omitzero"`
	// Verified is the number of events read back and found correct.
	Verified int64 `json:"verified_events"`

	// Peer is set in a line of another system, which has nothing else.
	Peer *Peer `json:"peer,omitzero"`

	Version string  `json:"version"`
	Machine Machine `json:"machine"`
	// Began is the time of the start, RFC 3339; Took the duration in seconds, preparation included.
	Began string  `json:"began"`
	Took  float64 `json:"took_s"`
}

// Figures are the figures of one side.
type Figures struct {
	// Count of boundaries, or other measured things, over all rounds.
	Count     int64    `json:"count"`
	PerSecond *float64 `json:"per_second,omitzero"`
	// Percentiles of single ones, in us: the median of the rounds' P50; P99 over all rounds together, from 100 single ones up.
	P50 *float64 `json:"p50_us,omitzero"`
	P99 *float64 `json:"p99_us,omitzero"`
	// Spread is the distance between the fastest and the slowest round, by the median: of PerSecond, else of P50.
	// Absent with a single round.
	Spread *float64 `json:"spread,omitzero"`
}

// WriteTo writes the result as one line.
func (r *Result) WriteTo(w io.Writer) (int64, error) {
	line, err := json.Marshal(r, json.Deterministic(true))
	if err != nil {
		return 0, fmt.Errorf("result of %s: %w", r.Case, err)
	}
	n, err := w.Write(append(line, '\n'))
	return int64(n), err
}

// ReadResults reads lines written by WriteTo; empty ones are left out. It returns [ErrResult] with the number of the
// first line that is none.
func ReadResults(in io.Reader) ([]Result, error) {
	var results []Result
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, maxLine)
	for n := 1; lines.Scan(); n++ {
		line := bytes.TrimSpace(lines.Bytes())
		if len(line) == 0 {
			continue
		}
		var r Result
		if peer, err := readPeer(line); err != nil {
			return nil, fmt.Errorf("line %d: %w: %w", n, ErrResult, err)
		} else if peer != nil {
			results = append(results, Result{Format: Format, Case: peerCase, Quick: peer.Quick, Peer: peer})
			continue
		}
		if err := json.Unmarshal(line, &r); err != nil {
			return nil, fmt.Errorf("line %d: %w: %w", n, ErrResult, err)
		}
		if r.Format != Format || r.Case == "" {
			return nil, fmt.Errorf("line %d: %w of format %d: it is of format %d, case %q", n, ErrResult, Format, r.Format, r.Case)
		}
		results = append(results, r)
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrResult, err)
	}
	return results, nil
}
