package examples_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/consumer"
	"github.com/waymarkio/waymark/docs/examples"
	"github.com/waymarkio/waymark/internal/harness/natstest"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

func TestMain(m *testing.M) { natstest.Main(m) }

const patience = 20 * time.Second

// world is a server with the fleet "default", in shards as on the server of waymark serve, and the daemon's service.
type world struct {
	tb     testing.TB
	server *natstest.Server
}

func newWorld(tb testing.TB) *world {
	tb.Helper()
	w := &world{tb: tb, server: natstest.Start(tb)}
	nc := w.server.Conn(tb, nats.ReconnectBufSize(-1))
	js, err := jetstream.New(nc)
	require.NoError(tb, err)
	require.NoError(tb, kvstore.Provision(tb.Context(), js, kvstore.FleetConfig{Fleet: "default", QuotaBytes: 64 << 20, Shards: kvstore.LoneShards}))
	require.NoError(tb, w.server.NATSD().Map(schema.EventMapping("default", kvstore.LoneShards)))
	daemon, err := consumer.New(tb.Context(), consumer.Config{Fleet: "default", Name: "daemon", Service: js, Fold: js, Alone: true}, time.Now, natstest.Logger(tb))
	require.NoError(tb, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- daemon.Run(ctx) }()
	tb.Cleanup(func() {
		cancel()
		require.NoError(tb, <-done)
	})
	<-daemon.Ready()
	return w
}

// fleet connects an executor.
func (w *world) fleet(executor string, policy publisher.Policy) *publisher.Fleet {
	w.tb.Helper()
	f, err := publisher.Connect(w.tb.Context(), publisher.Config{
		Conn: w.server.Conn(w.tb, nats.ReconnectBufSize(-1)), Executor: executor, Agent: "coder", Policy: policy,
	})
	require.NoError(w.tb, err)
	w.tb.Cleanup(func() { require.NoError(w.tb, f.Close(context.Background())) })
	return f
}

func start(t *testing.T, f *publisher.Fleet) *publisher.Run {
	t.Helper()
	run, err := f.Start(t.Context(), publisher.RunSpec{ID: "r1"})
	require.NoError(t, err)
	return run
}

func startTurn(t *testing.T, run *publisher.Run) *publisher.Turn {
	t.Helper()
	turn, err := run.StartTurn(t.Context(), publisher.TurnSpec{})
	require.NoError(t, err)
	return turn
}

func takeOver(t *testing.T, f *publisher.Fleet) *publisher.Run {
	t.Helper()
	run, err := f.Resume(t.Context(), "r1", publisher.ResumeSpec{})
	require.NoError(t, err)
	return run
}

// crash is where an executor dies in a tool.
type crash string

const (
	before crash = "before the tool had its effect"
	after  crash = "after it, and before the result was recorded"
)

// dying runs a tool's effect as far as the crash lets it: the executor's context ends there, so nothing more is recorded.
type dying struct {
	where crash
	die   context.CancelFunc
}

func (d *dying) effect(do func()) error {
	if d.where == after {
		do()
	}
	d.die()
	return context.Canceled
}

// bothWindows are where an executor may die in a tool.
var bothWindows = []crash{before, after}

// pair is a world with an executor that dies, and one that takes over.
func pair(t *testing.T) (w *world, first, second *publisher.Fleet) {
	t.Helper()
	w = newWorld(t)
	return w, w.fleet("ex-1", nil), w.fleet("ex-2", nil)
}

func TestPureCall_Crash_RunsAgain(t *testing.T) {
	t.Parallel()
	for _, where := range bothWindows {
		t.Run(string(where), func(t *testing.T) {
			_, first, second := pair(t)
			ctx, die := context.WithCancel(t.Context())
			d := &dying{where, die}
			reads := 0
			_, err := examples.ReadFile(ctx, startTurn(t, start(t, first)), "c1", "main.go", func(string) (string, error) {
				return "", d.effect(func() { reads++ })
			})
			require.Error(t, err)
			result, err := examples.ReadFile(t.Context(), takeOver(t, second).OpenTurn(), "c1", "main.go", func(string) (string, error) {
				reads++
				return "package main", nil
			})
			require.NoError(t, err)
			require.JSONEq(t, `"package main"`, string(result.Result))
			require.Equal(t, map[crash]int{before: 1, after: 2}[where], reads)
		})
	}
}

// bank counts by key what was charged.
type bank struct {
	charged map[string]int64
	asked   int
	then    func() error
}

func (b *bank) Charge(_ context.Context, key string, cents int64) (string, error) {
	b.asked++
	if b.then != nil && b.charged == nil && b.asked == 1 {
		if err := b.then(); err != nil {
			return "", err
		}
	}
	b.book(key, cents)
	return "receipt for " + key, nil
}

func (b *bank) book(key string, cents int64) {
	if b.charged == nil {
		b.charged = map[string]int64{}
	}
	b.charged[key] = cents
}

func TestIdempotentCall_Crash_RunsAgainWithKey(t *testing.T) {
	t.Parallel()
	for _, where := range bothWindows {
		t.Run(string(where), func(t *testing.T) {
			_, first, second := pair(t)
			ctx, die := context.WithCancel(t.Context())
			d := &dying{where, die}
			b := new(bank)
			b.then = func() error { return d.effect(func() { b.book("r1.1.c1.1", 500) }) }
			_, err := examples.Charge(ctx, startTurn(t, start(t, first)), "c1", 500, b)
			require.Error(t, err)
			result, err := examples.Charge(t.Context(), takeOver(t, second).OpenTurn(), "c1", 500, b)
			require.NoError(t, err)
			require.JSONEq(t, `"receipt for r1.1.c1.1"`, string(result.Result))
			require.Equal(t, 2, b.asked)
			require.Equal(t, map[string]int64{"r1.1.c1.1": 500}, b.charged, "the money moved once")
		})
	}
}

func TestVerifyCall_Crash_AsksTool(t *testing.T) {
	t.Parallel()
	for _, where := range bothWindows {
		t.Run(string(where), func(t *testing.T) {
			w, first, second := pair(t)
			bookings := new(examples.Bookings)
			stop, err := examples.ServeBookings(w.server.Conn(t), bookings)
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, stop()) })
			turn := startTurn(t, start(t, first))
			call := publisher.ToolCall{ID: "c1", Name: "book", Arguments: []byte(`{"seat":"7A"}`), Replay: schema.ReplayVerify, VerifySubject: "bookings.verify"}
			ctx, die := context.WithCancel(t.Context())
			var paused publisher.Invocation
			_, err = turn.Tool(ctx, call, func(_ context.Context, inv publisher.Invocation) (publisher.ToolResult, error) {
				paused = inv
				d := &dying{where, die}
				return publisher.ToolResult{}, d.effect(func() {
					_, err := bookings.Book(inv, "7A")
					require.NoError(t, err)
				})
			})
			require.Error(t, err)
			run := takeOver(t, second)
			result, err := examples.Book(t.Context(), run.OpenTurn(), "c1", "7A", bookings)
			require.NoError(t, err)
			require.JSONEq(t, `"7A"`, string(result.Result))
			how := run.State().Calls[0].Settlements
			require.Equal(t, map[crash][]schema.Settlement{before: {schema.SettledRerun}, after: {schema.SettledVerified}}[where], how)
			_, err = bookings.Book(paused, "7A")
			if where == before {
				require.ErrorIs(t, err, examples.ErrTooLate, "the older executor was only paused, and comes too late")
			} else {
				require.NoError(t, err)
			}
		})
	}
}

func TestHeldCall_Crash_LeftToPerson(t *testing.T) {
	t.Parallel()
	for _, where := range bothWindows {
		t.Run(string(where), func(t *testing.T) {
			_, first, second := pair(t)
			ctx, die := context.WithCancel(t.Context())
			d := &dying{where, die}
			letters := 0
			_, err := examples.Mail(ctx, startTurn(t, start(t, first)), "c1", "ann", func(string) error { return d.effect(func() { letters++ }) })
			require.Error(t, err)
			send := func(string) error { letters++; return nil }
			run := takeOver(t, second)
			_, err = examples.Mail(t.Context(), run.OpenTurn(), "c1", "ann", send)
			held, ok := errors.AsType[*publisher.HeldError](err)
			require.True(t, ok)
			require.Contains(t, held.Command, "waymark settle")
			// The person looks into the outbox.
			request := schema.SettleRequest{CallKey: held.Key, CallEpoch: held.Epoch, How: schema.SettledRerun, By: "ann"}
			if letters == 1 {
				request.How, request.Result = schema.SettledDecided, []byte(`"sent"`)
			}
			_, err = second.Settle(t.Context(), "r1", request)
			require.NoError(t, err)
			require.NoError(t, run.AwaitSettled(t.Context(), held.Key))
			result, err := examples.Mail(t.Context(), run.OpenTurn(), "c1", "ann", send)
			require.NoError(t, err)
			require.JSONEq(t, `"sent"`, string(result.Result))
			require.Equal(t, 1, letters)
		})
	}
}

func TestPolicy_Calls_AsksOrRefuses(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	f := w.fleet("ex-1", examples.Careful)
	run := start(t, f)
	turn := startTurn(t, run)
	answered := make(chan error, 1)
	go func() {
		answered <- answerOnce(t, f, schema.WaitToolApproval, `{"decision":"allow"}`)
	}()
	letters := 0
	_, err := examples.Mail(t.Context(), turn, "c1", "ann", func(string) error { letters++; return nil })
	require.NoError(t, err)
	require.NoError(t, <-answered)
	require.Equal(t, 1, letters)
	_, err = turn.Tool(t.Context(), publisher.ToolCall{ID: "c2", Name: "delete"}, func(context.Context, publisher.Invocation) (publisher.ToolResult, error) {
		return publisher.ToolResult{}, errors.New("it must not run")
	})
	failed, ok := errors.AsType[*publisher.ToolError](err)
	require.True(t, ok)
	require.Equal(t, publisher.DeniedType, failed.Failure.Type)
}

// answerOnce waits until the run asks, and answers.
func answerOnce(t *testing.T, f *publisher.Fleet, reason, payload string) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		head, err := f.Head(ctx, "r1")
		if err != nil {
			return err
		}
		for _, o := range head.Interrupts {
			if o.Reason == reason {
				return f.Input(ctx, "r1", publisher.Input{InterruptID: o.InterruptID, EventID: o.Position.ID, Payload: []byte(payload), By: "ann"})
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func TestAnswer_RunOnOtherExecutor_Delivered(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	first, second := w.fleet("ex-1", nil), w.fleet("ex-2", nil)
	run := start(t, first)
	ctx, die := context.WithCancel(t.Context())
	asked := make(chan error, 1)
	go func() {
		_, err := examples.Colour(ctx, run)
		asked <- err
	}()
	require.Eventually(t, func() bool {
		head, err := second.Head(t.Context(), "r1")
		return err == nil && head.Status == schema.StatusWaiting
	}, patience, 10*time.Millisecond)
	die()
	require.Error(t, <-asked)
	head, err := second.Head(t.Context(), "r1")
	require.NoError(t, err)
	question := head.Interrupts[0]
	require.ErrorIs(t, second.Input(t.Context(), "r1", publisher.Input{InterruptID: "colour", EventID: question.Position.ID, Payload: []byte(`"green"`)}), publisher.ErrInvalidAnswer)
	require.NoError(t, second.Input(t.Context(), "r1", publisher.Input{InterruptID: "colour", EventID: question.Position.ID, Payload: []byte(`"red"`)}))
	colour, err := examples.Colour(t.Context(), takeOver(t, second))
	require.NoError(t, err)
	require.Equal(t, "red", colour)
}

func TestPhases_Crash_SkippedOrRestarted(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var done []string
	phase := func(name string, err error) func(context.Context) (any, error) {
		return func(context.Context) (any, error) {
			done = append(done, name)
			return name, err
		}
	}
	err := examples.Release(t.Context(), start(t, w.fleet("ex-1", nil)), phase("build", nil), phase("test", errors.New("killed")), phase("publish", nil))
	require.Error(t, err)
	run := takeOver(t, w.fleet("ex-2", nil))
	require.NoError(t, examples.Release(t.Context(), run, phase("build", nil), phase("test", nil), phase("publish", nil)))
	require.Equal(t, []string{"build", "test", "test", "publish"}, done)
}

func TestCancel_Work_MayCleanUp(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	f := w.fleet("ex-1", nil)
	tidied, outcomes := make(chan struct{}), make(chan publisher.Outcome, 1)
	working := make(chan struct{})
	work := examples.WindUp(func(ctx context.Context, _ *publisher.Run) error {
		close(working)
		<-ctx.Done()
		return context.Cause(ctx)
	}, func(ctx context.Context) error { close(tidied); return ctx.Err() })
	e, err := f.NewExecutor(publisher.ExecutorSpec{
		Agents: map[string]func(context.Context, *publisher.Run) (publisher.Work, error){
			"coder": func(context.Context, *publisher.Run) (publisher.Work, error) { return work, nil },
		},
		Capacity:  -1,
		OnOutcome: func(_ string, outcome publisher.Outcome, _ error) { outcomes <- outcome },
	})
	require.NoError(t, err)
	ctx, stop := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- e.Serve(ctx) }()
	run, err := e.Start(t.Context(), publisher.RunSpec{ID: "r1"})
	require.NoError(t, err)
	<-working
	require.NoError(t, f.Cancel(t.Context(), "r1", "ann", "too dear"))
	require.NoError(t, run.Sync(t.Context())) // the daemon's notice would do the same; there is no folder here
	<-tidied
	require.Equal(t, publisher.OutcomeCancelled, <-outcomes)
	stop()
	require.NoError(t, <-served)
	head, err := f.Head(t.Context(), "r1")
	require.NoError(t, err)
	require.Equal(t, schema.StatusCancelled, head.Status)
}

func TestHandoff_Offer_CarriedOutOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	first, second := w.fleet("ex-1", nil), w.fleet("ex-2", nil)
	run := start(t, first)
	startTurn(t, run)
	_, err := examples.TakeOffer(t.Context(), second, "r1")
	require.ErrorIs(t, err, examples.ErrNoOffer)
	offer, err := examples.HandOver(t.Context(), run, schema.HandoffRemaining{Description: "review parser.go"})
	require.NoError(t, err)
	child, err := examples.TakeOffer(t.Context(), second, "r1")
	require.NoError(t, err)
	head := child.Head()
	require.Equal(t, "reviewer", head.Agent)
	require.Equal(t, &schema.HandoffSource{Run: "r1", HandoffID: "to-review", OfferHash: offer.Hash}, head.Handoff)
	_, err = examples.TakeOffer(t.Context(), first, "r1")
	require.ErrorIs(t, err, examples.ErrNoOffer)
	_, err = first.AcceptHandoff(t.Context(), offer, publisher.RunSpec{ID: "mine"})
	require.ErrorIs(t, err, publisher.ErrHandoffTaken)
}

func TestSubmitted_UnderAContract_EndsThroughTheToolOrItsLimit(t *testing.T) {
	t.Parallel()
	for name, at := range map[string]int32{"the tool": 2, "the limit": 9} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			run, err := w.fleet("ex-1", nil).Start(t.Context(), publisher.RunSpec{ID: "r1", Complete: "submit", MaxTurns: 3})
			require.NoError(t, err)
			work := examples.Submitted(func(ctx context.Context, turn *publisher.Turn) (submitted schema.CallKey, err error) {
				tool := "look"
				if turn.Number() == at {
					tool = "submit"
				}
				keys, err := turn.Call(ctx, publisher.ToolCall{ID: "c", Name: tool, Replay: schema.ReplayPure})
				if err != nil {
					return submitted, err
				}
				if err := turn.Return(ctx, keys[0], publisher.ToolResult{Result: []byte(`"done"`)}); err != nil {
					return submitted, err
				}
				if err := turn.End(ctx, publisher.TurnEnd{}); tool == "look" || err != nil {
					return submitted, err
				}
				return keys[0], nil
			}, func(context.Context, *publisher.Turn) (string, error) { return "half done", nil })
			require.NoError(t, work(t.Context(), run))
			head := run.Head()
			if name == "the tool" {
				require.Equal(t, "completed by c, limit , turn 2", string(head.Status)+" by "+head.CompletedBy+", limit "+head.Limit+", turn "+string('0'+head.Turn))
				return
			}
			require.Equal(t, "failed by , limit turns, turn 4", string(head.Status)+" by "+head.CompletedBy+", limit "+head.Limit+", turn "+string('0'+head.Turn))
			require.Equal(t, "half done", head.Summary)
		})
	}
}

func TestHook_DeniedTool_DoesNotRunAndIsRecordedAsFailed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	run := start(t, w.fleet("ex-1", examples.Careful))
	turn := startTurn(t, run)
	ran := map[string]int{}
	for _, name := range []string{"look", "delete"} {
		require.NoError(t, examples.Hook(t.Context(), turn, publisher.ToolCall{ID: name, Name: name}, func() (publisher.ToolResult, error) {
			ran[name]++
			return publisher.Result("done")
		}))
	}
	require.Equal(t, map[string]int{"look": 1}, ran)
	calls := run.State().Calls
	require.Equal(t, schema.OutcomeReturned, calls[0].Outcome)
	require.Equal(t, schema.DeniedType, calls[1].Error.Type)
	require.ErrorIs(t, turn.Return(t.Context(), calls[1].CallKey, publisher.ToolResult{}), publisher.ErrNotAllowed)
}

func TestHandOverDocument_CamelCase_IsOffered(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	first, second := w.fleet("ex-1", nil), w.fleet("ex-2", nil)
	run := start(t, first)
	document := `{"reason":"threshold_critical","agentId":"agent-7","createdAt":"2026-01-02T03:04:05Z","nextAgent":"reviewer",
		"remaining":[{"file":"src\\b.ts","description":"write it","referencePattern":"src/a.ts","priority":"high"}],"context":{"filesModified":["C:\\w\\a.ts","c:/W/a.ts"]}}`
	_, warning, err := examples.HandOverDocument(t.Context(), run, []byte(document))
	require.NoError(t, err)
	require.Empty(t, warning)
	offers, err := second.Offers(t.Context(), "r1")
	require.NoError(t, err)
	require.Len(t, offers, 1)
	require.Equal(t, []string{`C:\w\a.ts`}, offers[0].Data.Context.FilesModified)
	require.Equal(t, "src/a.ts", offers[0].Data.Remaining[0].ReferencePattern)
	child, err := examples.TakeOffer(t.Context(), second, "r1")
	require.NoError(t, err)
	require.Equal(t, "reviewer", child.Head().Agent)
}

func TestHandOverDocument_TooLongOrWrong_IsNotOffered(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	run := start(t, w.fleet("ex-1", nil))
	_, warning, err := examples.HandOverDocument(t.Context(), run, []byte(`{"reason":"error","context":{"issues":["`+strings.Repeat("x", 4001)+`"]}}`))
	require.NoError(t, err)
	require.Contains(t, warning, "4001 characters")
	_, _, err = examples.HandOverDocument(t.Context(), run, []byte(`{"reason":"error","remaining":[{"priority":"high"}]}`))
	require.ErrorContains(t, err, "/remaining/0/description: is required")
	require.Zero(t, run.Head().Counts.Handoffs)
}

func TestHandoff_TakerDied_CarriedOutByNext(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	first, second := w.fleet("ex-1", nil), w.fleet("ex-2", nil)
	offer, err := examples.HandOver(t.Context(), start(t, first), schema.HandoffRemaining{Description: "review parser.go"})
	require.NoError(t, err)
	body, err := json.Marshal(&schema.HandoffRequest{HandoffID: offer.HandoffID, Action: schema.HandoffAccept, By: "dead", ChildRun: "child", OfferHash: offer.Hash})
	require.NoError(t, err)
	reply, err := first.Conn().RequestWithContext(t.Context(), schema.ServiceSubject(schema.VerbHandoff, "default", "r1"), body)
	require.NoError(t, err)
	require.Empty(t, reply.Header.Get(schema.HeaderErrorCode))
	child, err := examples.TakeOffer(t.Context(), second, "r1")
	require.NoError(t, err)
	require.Equal(t, "child", child.ID())
	_, err = examples.TakeOffer(t.Context(), first, "r1")
	require.ErrorIs(t, err, examples.ErrNoOffer, "now it is carried out")
}

func TestLimit_TurnsUsed_EndsWithSummary(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	oneTurn := func(ctx context.Context, run *publisher.Run) (bool, error) {
		turn, err := run.StartTurn(ctx, publisher.TurnSpec{})
		if err != nil {
			return false, err
		}
		require.Equal(t, turn.Number() > 1, examples.TooFull(run))
		return false, turn.End(ctx, publisher.TurnEnd{Usage: &schema.Usage{InputTokens: 195_000}})
	}
	asked := 0
	sumUp := func(context.Context, []schema.Message) (publisher.Answer, error) {
		if asked++; asked == 1 {
			return publisher.Answer{}, errors.New("the executor dies")
		}
		return publisher.Answer{Message: schema.Message{Role: schema.RoleAssistant, Parts: []schema.Part{schema.Text("Half of it is done.")}}}, nil
	}
	work := examples.Bounded(2, oneTurn, sumUp)
	require.Error(t, work(t.Context(), start(t, w.fleet("ex-1", nil))))
	run := takeOver(t, w.fleet("ex-2", nil))
	require.NoError(t, work(t.Context(), run))
	head := run.Head()
	require.Equal(t, schema.StatusFailed, head.Status)
	require.Equal(t, "turns", head.Limit)
	require.Equal(t, "Half of it is done.", head.Summary)
	require.Equal(t, int32(3), head.Turn)
	require.Equal(t, schema.PurposeRecovery, head.TurnPurpose)
	require.Empty(t, head.CompletedBy)
}
