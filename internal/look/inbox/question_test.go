package inbox_test

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/look/inbox"
	"github.com/waymarkio/waymark/internal/look/standstill"
	"github.com/waymarkio/waymark/schema"
)

// inline loads no field: all are in the state.
type inline struct{}

func (inline) Field(_ context.Context, _ []schema.Ref, _ string, value []byte) ([]byte, error) {
	return value, nil
}

// The person sees the key that the tool gets, also behind a rewind and in a fork.
func TestAsked_CallOfAnotherTimeline_HasTheToolsKey(t *testing.T) {
	key := schema.CallKey{Turn: 1, ToolCallID: "c1", Occurrence: 1}
	s := schema.NewState("f", "r1")
	s.Head.OpenCalls = []schema.OpenCall{{CallKey: key, Name: "pay", Replay: schema.ReplayHold, Scope: "r1@3"}}
	s.Calls = []schema.Call{{CallKey: key, Name: "pay", Outcome: schema.OutcomeOpen}}
	wait := &schema.OpenInterrupt{InterruptID: "approval.1.c1.1@3", Reason: schema.WaitToolApproval, Turn: 1, ToolCallID: "c1", Occurrence: 1}
	require.Equal(t, "r1@3.1.c1.1", inbox.Asked(t.Context(), inline{}, s, wait).IdempotencyKey)
	s.Calls[0].IdempotencyKey = "own"
	require.Equal(t, "own", inbox.Asked(t.Context(), inline{}, s, wait).IdempotencyKey)
}

// content has runs, and counts how often each is read.
type content struct {
	inline
	runs map[string]*schema.State
	mu   sync.Mutex
	read map[string]int
}

func (c *content) Get(_ context.Context, run string) (*schema.State, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.read[run]++
	if s := c.runs[run]; s != nil {
		return s, nil
	}
	return nil, errors.New("unreachable")
}

func TestAddCalls_TwoCallsOfARun_ReadItOnce(t *testing.T) {
	key := func(id string) schema.CallKey { return schema.CallKey{Turn: 1, ToolCallID: id, Occurrence: 1} }
	s := schema.NewState("f", "pays")
	s.Calls = []schema.Call{
		{CallKey: key("c1"), SideEffect: "moves money", Arguments: []byte(`{"cents":1}`)}, {CallKey: key("c2"), Arguments: []byte(`{"cents":2}`)},
	}
	from := &content{runs: map[string]*schema.State{"pays": s, "long": s}, read: make(map[string]int)}
	about := func(run, call string, events int64) standstill.Reason {
		return standstill.Reason{
			Run: run, Kind: standstill.Held, Turn: 1, ToolCallID: call, Occurrence: 1, Head: &schema.Head{Counts: schema.Counts{Events: events}},
		}
	}
	list := []standstill.Reason{about("pays", "c1", 9), about("gone", "c1", 9), about("pays", "c2", 9), about("long", "c1", 1<<20), about("pays", "", 9)}
	inbox.AddCalls(t.Context(), from, list)
	require.Equal(t, map[string]int{"pays": 1, "gone": 1}, from.read)
	require.Equal(t, "moves money", list[0].SideEffect)
	require.JSONEq(t, `{"cents":1}`, string(list[0].Arguments))
	require.JSONEq(t, `{"cents":2}`, string(list[2].Arguments))
	require.Equal(t, "unreachable", list[1].NoArguments)
	require.Contains(t, list[3].NoArguments, "more than")
	for _, i := range []int{0, 2, 4} {
		require.Empty(t, list[i].NoArguments)
	}
}
