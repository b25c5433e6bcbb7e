package publisher_test

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/publisher/waymarktest"
	"github.com/waymarkio/waymark/schema"
)

// askFleet sends a request about the fleet, and decodes its answer, or the error.
func askFleet(tb testing.TB, nc *nats.Conn, verb string, req, reply any) *schema.ServiceError {
	tb.Helper()
	body, err := json.Marshal(req)
	require.NoError(tb, err)
	m, err := nc.Request(schema.ServiceSubject(verb, schema.DefaultFleet, ""), body, patience)
	require.NoError(tb, err)
	if m.Header.Get(schema.HeaderErrorCode) != "" {
		refused := new(schema.ServiceError)
		require.NoError(tb, json.Unmarshal(m.Data, refused))
		return refused
	}
	require.NoError(tb, json.Unmarshal(m.Data, reply))
	return nil
}

// spenders are runs whose model answers with a call, and uses a thousand tokens for it. Once the budget is used up it takes
// until the pause is in the log of each run: a model takes longer than that.
type spenders struct {
	runs, budget int64
	asked        atomic.Int64
	all, stopped chan struct{}
	done         atomic.Bool
}

const turnTokens = 1000

func (s *spenders) think(ctx context.Context, _ publisher.ModelRequest) (publisher.Answer, error) {
	n := s.asked.Add(1)
	if n == s.runs {
		close(s.all)
	}
	wait := s.all // each run has begun
	if n > s.budget/turnTokens {
		wait = s.stopped
	}
	select {
	case <-wait:
	case <-ctx.Done():
		return publisher.Answer{}, context.Cause(ctx)
	}
	a := publisher.Answer{Message: assistant(), Usage: &schema.Usage{InputTokens: turnTokens - 100, OutputTokens: 100}}
	if !s.done.Load() {
		a.Calls = []publisher.ToolCall{{Name: "step", Arguments: []byte(`{}`)}}
	}
	return a, nil
}

func TestBudget_RunsUseItUp_WaitUntilMidnight(t *testing.T) {
	t.Parallel()
	w := waymarktest.Start(t)
	nc := w.Conn()
	s := &spenders{runs: 50, budget: 1_000_000, all: make(chan struct{}), stopped: make(chan struct{})}
	if testing.Short() {
		s.runs, s.budget = 10, 100_000
		t.Log("short: 10 runs and a tenth of the budget")
	}
	limit := schema.LimitRequest{Scope: schema.Scope{Agent: "coder"}, DayTokens: s.budget, By: "ann"}
	require.Nil(t, askFleet(t, nc, schema.VerbLimit, limit, new(schema.LimitReply)))
	step := publisher.NewTool("step", "Makes a step.", publisher.Pure, func(context.Context, struct{}) (string, error) { return "made", nil })
	w.Serve("exec", publisher.ExecutorSpec{
		Capacity: int(s.runs), Loops: map[string]publisher.Loop{"coder": {Model: s.think, Tools: []publisher.Tool{step}}},
	}, func(c *publisher.Config) { c.PublishTimeout = patience })
	f := w.Fleet("submitter", nil)
	var runs []string
	for i := range s.runs {
		runs = append(runs, fmt.Sprint("r", i))
		_, err := f.Submit(t.Context(), publisher.RunSpec{ID: runs[i], Agent: "coder", Task: "work"})
		require.NoError(t, err)
	}
	paused := func(run string) bool {
		return slices.ContainsFunc(storedEvents(t, nc, run), func(e *schema.Event) bool { return e.Name() == schema.RunPaused })
	}
	require.Eventually(t, func() bool { return !slices.ContainsFunc(runs, func(run string) bool { return !paused(run) }) }, patience, 50*time.Millisecond)
	close(s.stopped)
	for _, run := range runs {
		w.Await(run, schema.StatusInterrupted)
	}
	listed, _ := pausedRuns(t, nc)
	require.EqualValues(t, s.runs, listed)

	used := int64(0)
	for _, run := range runs {
		events := storedEvents(t, nc, run)
		nothingBegan(t, events)
		for _, e := range events {
			data, err := schema.ParseData(e)
			require.NoError(t, err)
			if d, ok := data.(*schema.TurnAnsweredData); ok {
				used += d.Usage.Tokens()
			}
		}
	}
	require.GreaterOrEqual(t, used, s.budget)
	require.LessOrEqual(t, used-s.budget, s.runs*turnTokens, "at most one turn a run")
	js, err := jetstream.New(nc)
	require.NoError(t, err)
	settings, _, err := kvstore.NewFleets(js).Get(t.Context(), schema.DefaultFleet)
	require.NoError(t, err)
	shard, err := kvstore.OpenShard(js, settings, 0, "tester")
	require.NoError(t, err)
	spent, _, err := shard.Spent(t.Context())
	require.NoError(t, err)
	require.Equal(t, []kvstore.SpentShare{{Scope: schema.Scope{Agent: "coder"}, Tokens: used}}, spent.Shares)

	var fleet schema.FleetReply
	require.Eventually(t, func() bool { // a state is shown for two seconds
		fleet = schema.FleetReply{}
		require.Nil(t, askFleet(t, nc, schema.VerbFleet, schema.FleetRequest{}, &fleet))
		shares := fleet.Limits[0].Shares
		return len(shares) == 1 && shares[0].DayTokens == used
	}, patience, 50*time.Millisecond)
	require.Len(t, fleet.Pauses, 1)
	p := &fleet.Pauses[0]
	require.Regexp(t, `^its budget of \d[0-9,]*,000 tokens a day is used up: \d[0-9,]*,000$`, p.Reason)
	require.Equal(t, "limit --agent coder --day-tokens N", p.EndsWith())
	until := schema.ParseTime(p.Until).UTC()
	require.Equal(t, until.Truncate(24*time.Hour), until)
	refused := askFleet(t, nc, schema.VerbPause, schema.PauseRequest{Scope: p.Scope, End: true, By: "ann"}, nil)
	require.Equal(t, schema.CodeConflict, refused.Code)
	require.Contains(t, refused.Hint, "waymark limit --agent coder --day-tokens N")
	s.done.Store(true)
	w.Advance(until.Sub(w.Now()))
	for _, run := range runs {
		w.Await(run, schema.StatusCompleted)
	}
}
