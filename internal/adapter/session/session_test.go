package session_test

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/adapter/session"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/publisher/waymarktest"
	"github.com/waymarkio/waymark/schema"
)

// started is a session of a new run r1, by the executor "one".
func started(t *testing.T, w *waymarktest.World) *session.Session {
	t.Helper()
	run, err := w.Fleet("one", nil).Start(t.Context(), publisher.RunSpec{ID: "r1", Agent: "coder"})
	require.NoError(t, err)
	return opened(t, run)
}

// resumed is a session of the run r1 after a takeover by the executor "two".
func resumed(t *testing.T, w *waymarktest.World) *session.Session {
	t.Helper()
	run, err := w.Fleet("two", nil).Resume(t.Context(), "r1", publisher.ResumeSpec{})
	require.NoError(t, err)
	return opened(t, run)
}

func opened(t *testing.T, run *publisher.Run) *session.Session {
	t.Helper()
	s := session.New(run)
	t.Cleanup(s.Close)
	return s
}

func call(id string, replay schema.Replay) publisher.ToolCall {
	return publisher.ToolCall{ID: id, Name: "tool", Arguments: []byte(`{"a":1}`), Replay: replay}
}

// begin begins a call that must be new.
func begin(t *testing.T, s *session.Session, c publisher.ToolCall) *session.Begun {
	t.Helper()
	begun, _, err := s.Call(t.Context(), c)
	require.NoError(t, err)
	require.NotNil(t, begun)
	return begun
}

func text(t *testing.T, value string) publisher.ToolResult {
	t.Helper()
	result, err := publisher.Result(value)
	require.NoError(t, err)
	return result
}

func TestCall_SameIDAgain_IsAnsweredFromTheRecord(t *testing.T) {
	t.Parallel()
	w := waymarktest.Start(t)
	s := started(t, w)
	require.NoError(t, s.Say(t.Context(), schema.Message{Role: schema.RoleUser, Parts: []schema.Part{schema.Text("Do it.")}}))
	for _, id := range []string{"a", "b"} {
		begun := begin(t, s, call(id, schema.ReplayHold))
		require.Equal(t, "r1.1."+id+".1", begun.IdempotencyKey)
		require.Positive(t, begun.Within)
		require.NoError(t, s.Return(t.Context(), id, text(t, "done "+id), nil))
	}
	begin(t, s, call("c", schema.ReplayPure))
	require.NoError(t, s.Return(t.Context(), "c", publisher.ToolResult{}, errors.New("it is broken")))
	require.NoError(t, s.Say(t.Context(), schema.Message{Role: schema.RoleUser, Parts: []schema.Part{schema.Text("Once more.")}}))

	for _, next := range []func() *session.Session{func() *session.Session { return s }, func() *session.Session { return resumed(t, w) }} {
		s := next()
		begun, result, err := s.Call(t.Context(), call("b", schema.ReplayHold))
		require.NoError(t, err)
		require.Nil(t, begun)
		require.JSONEq(t, `"done b"`, string(result.Result))
		require.True(t, result.Recorded)
		_, _, err = s.Call(t.Context(), call("c", schema.ReplayPure))
		require.ErrorIs(t, err, publisher.ErrToolFailed)
		other := call("b", schema.ReplayHold)
		other.Arguments = []byte(`{"a":2}`)
		_, _, err = s.Call(t.Context(), other)
		require.ErrorIs(t, err, publisher.ErrDiverged)
	}
}

func TestCall_EachPolicy_SessionGone_NextDecides(t *testing.T) {
	t.Parallel()
	for replay, again := range map[schema.Replay]bool{schema.ReplayPure: true, schema.ReplayIdempotent: true, schema.ReplayHold: false} {
		t.Run(string(replay), func(t *testing.T) {
			t.Parallel()
			w := waymarktest.Start(t)
			first := started(t, w)
			key := begin(t, first, call("a", replay)).IdempotencyKey
			first.Close()
			require.ErrorIs(t, first.Return(t.Context(), "a", text(t, "too late"), nil), publisher.ErrConflict)

			second := resumed(t, w)
			begun, _, err := second.Call(t.Context(), call("a", replay))
			if !again {
				held, ok := errors.AsType[*publisher.HeldError](err)
				require.True(t, ok, "%v", err)
				require.Contains(t, held.Command, "r1 1 a --epoch 1 --how decided")
				return
			}
			require.NoError(t, err)
			require.Equal(t, key, begun.IdempotencyKey)
			require.Equal(t, 2, begun.Attempt)
			require.NoError(t, second.Return(t.Context(), "a", text(t, "done"), nil))
		})
	}
}

func TestReturn_AfterATakeover_IsAdopted(t *testing.T) {
	t.Parallel()
	w := waymarktest.Start(t)
	first := started(t, w)
	begin(t, first, call("a", schema.ReplayHold))
	second := resumed(t, w)
	require.ErrorIs(t, first.Return(t.Context(), "a", text(t, "done"), nil), publisher.ErrFenced)
	_, _, err := first.Call(t.Context(), call("b", schema.ReplayHold))
	require.ErrorIs(t, err, publisher.ErrFenced)

	_, result, err := second.Call(t.Context(), call("a", schema.ReplayHold))
	require.NoError(t, err)
	require.JSONEq(t, `"done"`, string(result.Result))
}

func TestReturn_FailureAfterATakeover_IsNotSaidToBeRecorded(t *testing.T) {
	t.Parallel()
	w := waymarktest.Start(t)
	first := started(t, w)
	begin(t, first, call("a", schema.ReplayHold))
	second := resumed(t, w)
	why := session.Failure{Type: "declined", Message: "no money"}
	require.ErrorIs(t, first.Return(t.Context(), "a", publisher.ToolResult{}, why), publisher.ErrFenced)
	_, _, err := second.Call(t.Context(), call("a", schema.ReplayHold))
	require.ErrorContains(t, err, "no money")
}

func TestReturn_FailureOfManyBytes_IsCutOffAndRecorded(t *testing.T) {
	t.Parallel()
	w := waymarktest.Start(t)
	s := started(t, w)
	begin(t, s, call("a", schema.ReplayHold))
	long := strings.Repeat("x", 2<<20)
	require.NoError(t, s.Return(t.Context(), "a", publisher.ToolResult{}, session.Failure{Type: long, Message: long, Code: long}))
	failed := w.State("r1").Calls[0].Error
	for _, text := range []string{failed.Type, failed.Message, failed.Code} {
		require.Greater(t, len(text), 60<<10)
		require.Less(t, len(text), 70<<10)
	}
}

func TestCall_RequesterGone_NextRequesterGetsTheOutcome(t *testing.T) {
	t.Parallel()
	s := started(t, waymarktest.Start(t))
	begin(t, s, call("a", schema.ReplayHold))
	gone, leave := context.WithCancel(t.Context())
	leave()
	_, _, err := s.Call(gone, call("a", schema.ReplayHold))
	require.ErrorIs(t, err, context.Canceled)

	outcome := make(chan publisher.ToolResult, 1)
	go func() {
		again := call("a", schema.ReplayHold)
		again.Arguments = []byte(`{ "a": 1.0 }`) // it means the same
		_, result, _ := s.Call(context.Background(), again)
		outcome <- result
	}()
	require.NoError(t, s.Return(t.Context(), "a", text(t, "done"), nil))
	require.JSONEq(t, `"done"`, string((<-outcome).Result))
}

func TestCall_ManyWithoutAMessage_FindRoom(t *testing.T) {
	t.Parallel()
	s := started(t, waymarktest.Start(t))
	for i := range schema.MaxTurnCalls + 2 {
		id := "c" + strconv.Itoa(i)
		begin(t, s, call(id, schema.ReplayPure))
		require.NoError(t, s.Return(t.Context(), id, text(t, "done"), nil))
	}
	require.Greater(t, s.Run().Head().Turn, int32(1))
}

func TestMayBegin_Later_ProvesTheEpochAgain(t *testing.T) {
	t.Parallel()
	w := waymarktest.Start(t)
	s := started(t, w)
	begin(t, s, call("a", schema.ReplayHold))
	within, err := s.MayBegin(t.Context(), "a")
	require.NoError(t, err)
	require.Positive(t, within)
	_, err = s.MayBegin(t.Context(), "other")
	require.ErrorIs(t, err, publisher.ErrConflict)
	resumed(t, w)
	require.Eventually(t, func() bool { // the proof of the last two seconds ends
		_, err = s.MayBegin(t.Context(), "a")
		return err != nil
	}, time.Minute, 10*time.Millisecond)
	require.ErrorIs(t, err, publisher.ErrFenced)
}

func TestCall_SameIDRunning_OtherArguments_Refused(t *testing.T) {
	t.Parallel()
	s := started(t, waymarktest.Start(t))
	begin(t, s, call("a", schema.ReplayPure))
	other := call("a", schema.ReplayPure)
	other.Arguments = []byte(`{"a":2}`)
	_, _, err := s.Call(t.Context(), other)
	require.ErrorIs(t, err, publisher.ErrConflict)
	require.NoError(t, s.Return(t.Context(), "a", text(t, "done"), nil))
}

func TestClean_HalfACharacter_ReplacedInACopy(t *testing.T) {
	t.Parallel()
	given := `{"b":"half \ud83d","a":9007199254740993,"c":"whole \ud83d\ude00"}`
	read := []byte(given)
	require.JSONEq(t, `{"a":9007199254740993,"b":"half \ufffd","c":"whole 😀"}`, string(session.Clean(read)))
	require.Contains(t, string(session.Clean(read)), "9007199254740993")
	require.Equal(t, given, string(read))
	require.Equal(t, `{"a" : 1}`, string(session.Clean([]byte(`{"a" : 1}`))))
	require.Equal(t, `{"a":`, string(session.Clean([]byte(`{"a":`))))
}

func TestReturn_ResultNoEventCanHave_KeptAsText(t *testing.T) {
	t.Parallel()
	s := started(t, waymarktest.Start(t))
	for id, result := range map[string]string{
		"deep": strings.Repeat("[", schema.MaxJSONDepth) + strings.Repeat("]", schema.MaxJSONDepth), "twice": `{"a":1,"a":2}`, "broken": `{"a":`,
	} {
		begin(t, s, call(id, schema.ReplayHold))
		require.NoError(t, s.Return(t.Context(), id, publisher.ToolResult{Result: []byte(result), Duration: -time.Second}, nil), id)
		_, recorded, err := s.Call(t.Context(), call(id, schema.ReplayHold))
		require.NoError(t, err)
		require.Contains(t, string(recorded.Result), "waymark keeps this result as text", id)
		require.Contains(t, string(recorded.Result), strings.ReplaceAll(result, `"`, `\"`), id)
	}
	edge := strings.Repeat("[", schema.MaxJSONDepth-10) + strings.Repeat("]", schema.MaxJSONDepth-10)
	begin(t, s, call("edge", schema.ReplayHold))
	require.NoError(t, s.Return(t.Context(), "edge", publisher.ToolResult{Result: []byte(edge)}, nil))
	require.Empty(t, s.Run().Head().OpenCalls)
}

// asking is a session whose calls wait for a person.
func asking(t *testing.T, w *waymarktest.World) (*session.Session, func() schema.Head) {
	t.Helper()
	fleet := w.Fleet("one", func(c *publisher.Config) {
		c.Policy = func(context.Context, *publisher.Run, publisher.ToolCall) (publisher.Decision, error) {
			return publisher.Decision{Decision: schema.DecisionAsk, Policy: "people"}, nil
		}
	})
	run, err := fleet.Start(t.Context(), publisher.RunSpec{ID: "r1", Agent: "coder"})
	require.NoError(t, err)
	return opened(t, run), run.Head
}

func TestReturn_CallThatWaits_ClosesItAndItDoesNotBegin(t *testing.T) {
	t.Parallel()
	s, head := asking(t, waymarktest.Start(t))
	refused := make(chan error, 1)
	go func() {
		_, _, err := s.Call(context.Background(), call("a", schema.ReplayHold))
		refused <- err
	}()
	require.Eventually(t, func() bool { return len(head().Interrupts) == 1 }, time.Minute, 10*time.Millisecond)
	require.Empty(t, s.Running())
	require.ErrorIs(t, s.Return(t.Context(), "a", text(t, "done"), nil), session.ErrNotRunning)
	require.NoError(t, s.Return(t.Context(), "a", publisher.ToolResult{}, session.Failure{Type: "not_run", Message: "it was given up"}))
	require.ErrorIs(t, <-refused, publisher.ErrToolFailed)
	require.Empty(t, head().OpenCalls)
	require.Empty(t, head().Interrupts)
	_, _, err := s.Call(t.Context(), call("a", schema.ReplayHold))
	require.ErrorContains(t, err, "it was given up")
}

func TestIdle_CallRuns_WaitsForItsOutcome(t *testing.T) {
	t.Parallel()
	s := started(t, waymarktest.Start(t))
	require.NoError(t, s.Idle())
	begin(t, s, call("a", schema.ReplayHold))
	require.Equal(t, "a", s.Running()[0].ID)
	idle := make(chan error, 1)
	go func() { idle <- s.Idle() }()
	require.Empty(t, idle)
	require.NoError(t, s.Return(t.Context(), "a", text(t, "done"), nil))
	require.NoError(t, <-idle)
	begin(t, s, call("b", schema.ReplayHold))
	s.Close()
	require.ErrorIs(t, s.Idle(), publisher.ErrLost)
}
