package publisher

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/schema"
)

func newCallBook() *callBook { return &callBook{calls: make(map[schema.CallKey]*knownCall)} }

func TestCallBook_ReserveWithoutOccurrence_NamesTheNextOne(t *testing.T) {
	b := newCallBook()
	first, ok := b.reserve(1, "c", 0)
	require.True(t, ok)
	require.Equal(t, 1, first.Occurrence)
	second, ok := b.reserve(1, "c", 0)
	require.True(t, ok)
	require.Equal(t, 2, second.Occurrence, "the first is busy")
	_, ok = b.reserve(1, "c", 1)
	require.False(t, ok, "another caller runs it")

	b.release(first, true)
	b.release(second, false)
	third, _ := b.reserve(1, "c", 0)
	require.Equal(t, second, third, "the first came to its end, the second did not")
}

func TestCallBook_OutcomeNotReturned_IsAskedForAgain(t *testing.T) {
	b := newCallBook()
	key, _ := b.reserve(1, "c", 0)
	require.Equal(t, 1, b.begin(key))
	require.Equal(t, callRunning, b.look(key).stage)
	b.ran(key, &outcome{})
	require.Equal(t, callRan, b.look(key).stage, "its outcome is known")
	b.release(key, false)
	again, _ := b.reserve(1, "c", 0)
	require.Equal(t, key, again)
	b.note(schema.Verdict{Kind: schema.Applied, Call: key, Data: &schema.ToolReturnedData{}}, false)
	require.Equal(t, callDone, b.look(key).stage, "its caller may have received only an error: the record has the outcome")
	b.release(key, true)
	next, _ := b.reserve(1, "c", 0)
	require.Equal(t, 2, next.Occurrence)
}

func TestCallBook_TakenOver_OlderExecutorMayStillBeginOpenCalls(t *testing.T) {
	b := newCallBook()
	open := schema.CallKey{Turn: 1, ToolCallID: "open", Occurrence: 1}
	now := time.Now()
	b.takeOver(&schema.State{Head: schema.Head{OpenCalls: []schema.OpenCall{{CallKey: open}}}}, now)
	require.Equal(t, time.Minute, b.left(open, time.Hour, now.Add(59*time.Minute)))
	require.LessOrEqual(t, b.left(open, 0, now), time.Duration(0))
	require.Zero(t, b.left(schema.CallKey{Turn: 1, ToolCallID: "own", Occurrence: 1}, time.Hour, now))

	b.note(schema.Verdict{Kind: schema.Applied, Call: open, Data: &schema.ToolSettledData{How: schema.SettledRerun}}, false)
	require.Zero(t, b.left(open, time.Hour, now), "this handle settled it: its tool may run again")
	require.Equal(t, callReady, b.view(new(schema.State), open).stage)
}

func TestCallBook_AskedTwice_FirstQuestionStands(t *testing.T) {
	b := newCallBook()
	key := schema.CallKey{Turn: 1, ToolCallID: "c", Occurrence: 1}
	require.Nil(t, b.look(key).question)
	first := &schema.RunWaitingData{Message: "first"}
	require.Same(t, first, b.ask(key, first))
	require.Same(t, first, b.ask(key, &schema.RunWaitingData{Message: "second"}))
}
