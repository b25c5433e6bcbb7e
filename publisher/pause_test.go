package publisher_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
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

// askPause sends a request to pause, or to end a pause.
func askPause(tb testing.TB, nc *nats.Conn, req schema.PauseRequest) schema.PauseReply {
	tb.Helper()
	if req.By == "" {
		req.By = "ann"
	}
	body, err := json.Marshal(&req)
	require.NoError(tb, err)
	m, err := nc.Request(schema.ServiceSubject(schema.VerbPause, schema.DefaultFleet, ""), body, patience)
	require.NoError(tb, err)
	var reply schema.PauseReply
	require.NoError(tb, json.Unmarshal(m.Data, &reply), "%s", m.Data)
	require.NotEmpty(tb, reply.Pause.Since, "%s", m.Data)
	return reply
}

// storedEvents are the events of a run, in the order of its log.
func storedEvents(tb testing.TB, nc *nats.Conn, run string) (events []*schema.Event) {
	tb.Helper()
	js, err := jetstream.New(nc)
	require.NoError(tb, err)
	names := schema.NamesOf(schema.DefaultFleet, 0)
	stream, err := js.Stream(tb.Context(), names.EventStream())
	require.NoError(tb, err)
	for seq := uint64(1); ; {
		m, err := stream.GetMsg(tb.Context(), seq, jetstream.WithGetMsgSubject(names.EventSubject(run)))
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			return events
		}
		require.NoError(tb, err)
		e, err := schema.Decode(m.Header, m.Data)
		require.NoError(tb, err)
		events, seq = append(events, e), m.Sequence+1
	}
}

// The result of a tool that ran into the pause is acknowledged behind it, and proves the epoch. Nothing begins on that proof.
func TestPause_ResultBehindIt_BeginsNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.daemon()
	run := start(t, w.fleet(), "r1")
	turn, err := run.StartTurn(t.Context(), publisher.TurnSpec{})
	require.NoError(t, err)
	first, second := publisher.ToolCall{ID: "h1", Name: "pay", Replay: schema.ReplayHold}, publisher.ToolCall{ID: "h2", Name: "pay", Replay: schema.ReplayHold}
	_, err = turn.Call(t.Context(), first, second)
	require.NoError(t, err)
	_, err = turn.Tool(t.Context(), first, func(context.Context, publisher.Invocation) (publisher.ToolResult, error) {
		reply := askPause(t, w.nc, schema.PauseRequest{Scope: schema.Scope{Run: "r1"}, Reason: "stop"})
		require.Zero(t, reply.Unproven)
		require.Eventually(t, func() bool { return run.Head().Paused }, patience, time.Millisecond)
		return publisher.Result("paid")
	})
	require.NoError(t, err)
	_, err = turn.Tool(t.Context(), second, func(context.Context, publisher.Invocation) (publisher.ToolResult, error) {
		t.Error("the tool runs")
		return publisher.Result("paid")
	})
	require.ErrorIs(t, err, publisher.ErrPaused)
	require.ErrorIs(t, turn.Begin(t.Context(), schema.CallKey{Turn: turn.Number(), ToolCallID: "h2"}), publisher.ErrPaused)
	// No other run carries the work on, either.
	_, err = run.Delegate(t.Context(), publisher.RunSpec{ID: "child", Agent: "helper"})
	require.ErrorIs(t, err, publisher.ErrPaused)
	_, err = w.fleet().Head(t.Context(), "child")
	require.ErrorIs(t, err, publisher.ErrRunNotFound)
	_, err = run.Continue(t.Context(), run.Handoff(schema.HandoffOfferedData{HandoffID: "h", Reason: "threshold_critical"}), publisher.RunSpec{})
	require.ErrorIs(t, err, publisher.ErrPaused)
}

// begins reports whether an event begins a turn, a call or a phase.
func begins(tb testing.TB, events []*schema.Event, i int) bool {
	tb.Helper()
	data, err := schema.ParseData(events[i])
	require.NoError(tb, err)
	switch d := data.(type) {
	case *schema.ToolCalledData:
		return !d.Requested
	case *schema.PhaseStartedData:
		return true
	case *schema.ToolSettledData:
		return d.How == schema.SettledRerun && !events[i].IsControl()
	case *schema.ToolDecidedData:
		return d.Policy == schema.BeginPolicy
	}
	return false
}

// nothingBegan requires that no event behind a pause begins anything before the next takeover, and that there is a pause.
func nothingBegan(tb testing.TB, events []*schema.Event) {
	tb.Helper()
	paused, pauses := false, 0
	for i, e := range events {
		switch e.Name() {
		case schema.RunPaused:
			paused = true
			pauses++
		case schema.RunResumed:
			paused = false
		}
		require.False(tb, paused && begins(tb, events, i), "%s of %s begins something behind the pause", e.ID, e.Name())
	}
	require.Equal(tb, 1, pauses)
}

// pausedAgent is an agent that reports each boundary of its work, in words.
type pausedAgent struct {
	at func(ctx context.Context, where string)

	mu      sync.Mutex
	effects map[string]int
}

func (a *pausedAgent) did(what string) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.effects[what]
}

func (a *pausedAgent) tool(name string, replay schema.Replay, more func(context.Context) error) publisher.Tool {
	return publisher.NewTool(name, "", replay, func(ctx context.Context, in place) (string, error) {
		a.at(ctx, name+" begins")
		if more != nil {
			if err := more(ctx); err != nil {
				return "", err
			}
		}
		if ctx.Err() != nil {
			return "", context.Cause(ctx)
		}
		a.mu.Lock()
		a.effects[name]++
		a.mu.Unlock()
		a.at(ctx, name+" ends")
		return fmt.Sprint(name, " ", in.At), nil
	})
}

func (a *pausedAgent) spec() publisher.ExecutorSpec {
	answers := []publisher.Answer{
		calls(call("a", "look", `{"at":1}`), call("b", "pay", `{"at":1}`)),
		calls(call("c", "put", `{"at":2}`), call("d", "ask", `{"at":2}`)),
		{Message: assistant(schema.Text("It is done."))},
	}
	model := func(ctx context.Context, r publisher.ModelRequest) (publisher.Answer, error) {
		a.at(ctx, fmt.Sprintf("model %d begins", r.Turn))
		if ctx.Err() != nil {
			return publisher.Answer{}, context.Cause(ctx)
		}
		a.at(ctx, fmt.Sprintf("model %d ends", r.Turn))
		return answers[r.Turn-1], nil
	}
	asks := func(ctx context.Context) error {
		_, err := publisher.InvocationOf(ctx).Run().Ask(ctx, schema.RunWaitingData{InterruptID: "q", Reason: schema.WaitHumanInput, Message: "May I?"})
		return err
	}
	return publisher.ExecutorSpec{Grace: 5 * time.Second, Loops: map[string]publisher.Loop{"coder": {
		Model: model, Tools: []publisher.Tool{
			a.tool("look", publisher.Pure, nil), a.tool("pay", publisher.Hold, nil), a.tool("put", publisher.Idempotent, nil), a.tool("ask", publisher.Pure, asks),
		},
	}}}
}

// A run is paused at each boundary of its work, and its executor goes on or dies there: nothing begins behind the pause,
// no executor gets the run before its end, and then the run completes, with each side effect once.
func TestPause_AtEachBoundary_RunGoesOnAfterwards(t *testing.T) {
	if testing.Short() {
		t.Skip("short: an executor is killed at every boundary")
	}
	t.Parallel()
	w := waymarktest.Start(t)
	nc, ann := w.Conn(), w.Fleet("ann", nil)
	places := []string{"submitted", "waits"}
	for _, what := range []string{"model 1", "look", "pay", "model 2", "put", "ask", "model 3"} {
		places = append(places, what+" begins", what+" ends")
	}
	n := 0
	for _, where := range places {
		for _, dies := range []bool{false, true} {
			if dies && where == "submitted" {
				continue
			}
			n++
			run, what := fmt.Sprintf("r%d", n), fmt.Sprintf("paused where %s, dies: %v", where, dies)
			reached, once := make(chan struct{}), sync.OnceFunc(func() {
				require.Zero(t, askPause(t, nc, schema.PauseRequest{Scope: schema.Scope{Agent: "coder"}, Reason: "it bills twice"}).Going, what)
			})
			a := &pausedAgent{effects: map[string]int{}}
			a.at = func(ctx context.Context, at string) {
				select {
				case <-reached:
				default:
					if at == where {
						once()
						close(reached)
						if dies {
							<-ctx.Done()
						}
					}
				}
			}
			if where == "submitted" {
				once()
				close(reached)
			}
			_, err := ann.Submit(t.Context(), publisher.RunSpec{ID: run, Agent: "coder", Task: "work"})
			require.NoError(t, err, what)
			e := w.Serve("exec-"+run, a.spec(), nil)
			if where == "waits" {
				w.Await(run, schema.StatusWaiting)
				once()
				close(reached)
			}
			require.Eventually(t, func() bool {
				_ = answerQ(t, ann, run) // an agent that is not paused before asks its question
				select {
				case <-reached:
					return true
				default:
					return false
				}
			}, patience, 5*time.Millisecond, what)
			if dies {
				e.Kill()
				w.Advance(20 * time.Second)
				e.Start()
			}
			if strings.HasPrefix(where, "model 3") && !dies {
				w.Await(run, schema.StatusCompleted) // the answer that was under way is recorded, and ends the run
				askPause(t, nc, schema.PauseRequest{Scope: schema.Scope{Agent: "coder"}, End: true})
				e.Stop()
				continue
			}
			head := schema.Head{}
			require.Eventually(t, func() bool {
				head, err = w.Reader().Head(t.Context(), run)
				return err == nil && (head.Status.Claimable() || head.Unattended != "")
			}, patience, 5*time.Millisecond, what)
			require.Equal(t, where != "submitted", head.Paused, what)
			_, err = ann.Resume(t.Context(), run, publisher.ResumeSpec{})
			require.ErrorIs(t, err, publisher.ErrPaused, what)
			require.ErrorContains(t, err, "by ann: it bills twice", what)
			require.ErrorContains(t, err, "waymark unpause --agent coder", what)
			w.Advance(20 * time.Second) // an executor that lives is asked for work, and gets none
			head, err = w.Reader().Head(t.Context(), run)
			require.NoError(t, err, what)
			require.LessOrEqual(t, int(head.Epoch), 2, what)
			require.True(t, head.Status.Claimable() || head.Unattended != "", what)
			effects := a.did("pay")

			askPause(t, nc, schema.PauseRequest{Scope: schema.Scope{Agent: "coder"}, End: true})
			require.Eventually(t, func() bool {
				head, err := w.Reader().Head(t.Context(), run)
				require.NoError(t, err, what)
				for _, c := range head.HeldCalls() {
					require.True(t, dies && (where == "pay begins" || where == "pay ends"), "%s: %s is held", what, c.Name)
					s := schema.SettleRequest{CallKey: c.CallKey, CallEpoch: c.Epoch, How: schema.SettledRerun, By: "ann"}
					if effects > 0 {
						s.How, s.Result = schema.SettledVerified, []byte(`"pay 1"`)
					}
					_, _ = ann.Settle(t.Context(), run, s) // it may be settled already
				}
				if len(head.Interrupts) > 0 {
					_ = answerQ(t, ann, run)
				}
				return head.Status.Terminal()
			}, patience, 5*time.Millisecond, what)
			require.Equal(t, schema.StatusCompleted, w.Status(run), what)
			require.Equal(t, 1, a.did("pay"), what)
			if where != "submitted" {
				nothingBegan(t, storedEvents(t, nc, run))
			}
			e.Stop()
		}
	}
}

// Executors that have read the pause start nothing; a run for another executor is taken, and waits.
func TestPause_Start_IsRefused(t *testing.T) {
	t.Parallel()
	w := waymarktest.Start(t)
	nc, f := w.Conn(), w.Fleet("exec", nil)
	start := func(run, agent string) error {
		_, err := f.Start(t.Context(), publisher.RunSpec{ID: run, Agent: agent})
		return err
	}
	require.NoError(t, start("r0", "coder"))
	askPause(t, nc, schema.PauseRequest{Scope: schema.Scope{Agent: "coder"}, Reason: "it bills twice"})
	n := 0
	require.Eventually(t, func() bool {
		n++
		return errors.Is(start(fmt.Sprint("r", n), "coder"), publisher.ErrPaused)
	}, patience, 10*time.Millisecond)
	require.ErrorContains(t, start("other", "coder"), "it bills twice; submit it, or end the pause: waymark unpause --agent coder")
	require.NoError(t, start("tests", "tester"))
	_, err := f.Submit(t.Context(), publisher.RunSpec{ID: "later", Agent: "coder", Task: "work"})
	require.NoError(t, err)
	askPause(t, nc, schema.PauseRequest{Scope: schema.Scope{Agent: "coder"}, End: true})
	require.NoError(t, start("other", "coder"))
}

// The pause comes between Connect and the first Start, or the connection broke and its notice is lost.
func TestPause_NoticeIsLost_StartIsRefused(t *testing.T) {
	t.Parallel()
	w := waymarktest.Start(t)
	nc, f := w.Conn(), w.Fleet("exec", nil)
	start := func() error {
		_, err := f.Start(t.Context(), publisher.RunSpec{ID: "r1", Agent: "coder"})
		return err
	}
	askPause(t, nc, schema.PauseRequest{Reason: "it bills twice"})
	require.ErrorIs(t, start(), publisher.ErrPaused)
	askPause(t, nc, schema.PauseRequest{End: true})
	_, err := f.Start(t.Context(), publisher.RunSpec{ID: "r0", Agent: "coder"})
	require.NoError(t, err)

	js, err := jetstream.New(nc)
	require.NoError(t, err)
	_, _, err = kvstore.NewFleets(js).Pause(t.Context(), schema.DefaultFleet, schema.Pause{Reason: "why", By: "ann", Since: schema.FormatTime(time.Now())},
		func(*schema.Pause) bool { return false })
	require.NoError(t, err)
	before := f.Conn().Stats().Reconnects
	require.NoError(t, f.Conn().ForceReconnect())
	require.Eventually(t, func() bool { return f.Conn().Stats().Reconnects > before && f.Conn().IsConnected() }, patience, time.Millisecond)
	require.ErrorIs(t, start(), publisher.ErrPaused)
}

// answerQ answers the question of the agent, if it is open.
func answerQ(tb testing.TB, f *publisher.Fleet, run string) error {
	tb.Helper()
	head, err := f.Head(tb.Context(), run)
	if err != nil {
		return err
	}
	i := slices.IndexFunc(head.Interrupts, func(o schema.OpenInterrupt) bool { return o.InterruptID == "q" })
	if i < 0 {
		return nil
	}
	err = f.Input(tb.Context(), run, publisher.Input{InterruptID: "q", EventID: head.Interrupts[i].Position.ID, Payload: []byte(`"yes"`)})
	if errors.Is(err, publisher.ErrUnknownInterrupt) {
		return nil
	}
	return err
}
