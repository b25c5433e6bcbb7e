//go:build unix

package nemesis_test

import (
	"fmt"
	"sync"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/schema"
)

// checkpointPuts are the checkpoints of all runs in put order, from the copies that the server publishes, of any
// worker.
type checkpointPuts struct {
	mu       sync.Mutex
	n, again int
	runs     map[string]map[schema.StreamSequence]checkpointPut
	last     map[string]schema.StreamSequence
	wrong    []string
}

type checkpointPut struct {
	id     string
	digest string
	events int64
}

func (p *checkpointPuts) watch(tb testing.TB, nc *nats.Conn) {
	tb.Helper()
	p.runs, p.last = make(map[string]map[schema.StreamSequence]checkpointPut), make(map[string]schema.StreamSequence)
	sub, err := nc.Subscribe("waymark.checkpoints.default.*.*", func(m *nats.Msg) {
		if len(m.Data) > 0 {
			p.saw(m.Subject, m.Data)
		}
	})
	require.NoError(tb, err)
	require.NoError(tb, sub.SetPendingLimits(-1, -1))
	require.NoError(tb, nc.Flush())
}

// saw records a put: one position of the log has one state, and no put returns to an earlier one.
func (p *checkpointPuts) saw(subject string, body []byte) {
	var c schema.Checkpoint
	err := json.Unmarshal(body, &c)
	p.mu.Lock()
	defer p.mu.Unlock()
	if err != nil {
		p.wrong = append(p.wrong, fmt.Sprintf("%s: %v", subject, err))
		return
	}
	p.n++
	at, put := c.Position.Stream, checkpointPut{c.Position.ID, c.Digest, c.Counts.Events}
	if p.runs[subject] == nil {
		p.runs[subject] = make(map[schema.StreamSequence]checkpointPut)
	}
	if was, ok := p.runs[subject][at]; ok {
		if p.again++; was != put {
			p.wrong = append(p.wrong, fmt.Sprintf("%s at %d: %v, and before %v", subject, at, put, was))
		}
	}
	if at < p.last[subject] {
		p.wrong = append(p.wrong, fmt.Sprintf("%s: a put of %d behind one of %d", subject, at, p.last[subject]))
	}
	p.runs[subject][at], p.last[subject] = put, at
}

func (p *checkpointPuts) prove(tb testing.TB, runs map[string]int64) {
	tb.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	require.Empty(tb, p.wrong, "checkpoints that contradict each other")
	require.GreaterOrEqual(tb, len(p.runs), len(runs), "every run was seen")
	tb.Logf("%d checkpoints put, %d at a place that had one, none with another content", p.n, p.again)
}

func TestCheckpoints_Contradicting_Detected(t *testing.T) {
	if testing.Short() {
		t.Skip("short: real processes are started and killed")
	}
	put := func(at int, digest string) []byte {
		return fmt.Appendf(nil, `{"position":{"stream_sequence":%d,"id":"e%d"},"digest":%q,"counts":{"events":%d}}`, at, at, digest, at)
	}
	for name, c := range map[string]struct {
		second []byte
		wrong  int
	}{
		"the next one":            {put(8, "b"), 0},
		"the same again":          {put(7, "a"), 0},
		"another content":         {put(7, "b"), 1},
		"an earlier one":          {put(6, "b"), 1},
		"one that does not parse": {[]byte("{"), 1},
	} {
		t.Run(name, func(t *testing.T) {
			p := &checkpointPuts{runs: make(map[string]map[schema.StreamSequence]checkpointPut), last: make(map[string]schema.StreamSequence)}
			p.saw("run", put(7, "a"))
			p.saw("run", c.second)
			require.Len(t, p.wrong, c.wrong)
		})
	}
}
