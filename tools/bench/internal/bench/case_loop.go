package bench

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/go-json-experiment/json"
	"golang.org/x/sync/errgroup"

	"github.com/waymarkio/waymark/internal/pause"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// loopCase is what an agent made of publisher.Loop pays for a turn.
func loopCase() Case {
	return Case{
		Name: "loop",
		About: "What publisher.Loop adds to a turn whose model takes 200 ms and whose two pure tools take 20 ms each, at once, compared with the same loop " +
			"without Waymark, and with that loop with one raw message behind each answer. Times are those of turns, without those of model and tools.",
		Uses: []string{"turns", "shards", "daemons"},
		Variants: func(o Options) []Variant {
			turns := o.Pick(o.Turns, 30, 3)
			var list []Variant
			add := func(await, message bool, results, comparedWith string) {
				list = append(list, Variant{
					Parameters: map[string]any{"turns": turns, "results": results, "compared with": comparedWith},
					Setup:      func(ctx context.Context, w *World) (*Trial, error) { return loopTrial(ctx, w, turns, await, message) },
				})
			}
			add(false, false, "on their way", "nothing")
			add(false, true, "on their way", "one raw message")
			add(true, false, "awaited", "nothing")
			return list
		},
	}
}

// loopTrial compares the loop with one without Waymark. With message that one publishes a message as large as the event of the answer
// before it runs the tools of the answer, and waits until it is durable.
func loopTrial(ctx context.Context, w *World, turns int, await, message bool) (*Trial, error) {
	f, err := w.Fleet(ctx, "executor")
	if err != nil {
		return nil, err
	}
	a := &loopAgent{shape: TimedTurn, turns: turns, text: NewText(seedOf("loop"))}
	loop := publisher.Loop{Model: a.model, Tools: []publisher.Tool{publisher.NewTool("read", "Reads.", publisher.Pure, a.tool)}, AwaitResults: await}
	durable := func(context.Context) error { return nil }
	if message {
		sizes, err := w.WireSizes(ctx, f, TimedTurn)
		if err != nil {
			return nil, err
		}
		body := a.text.Bytes(sizes[0])
		durable = func(ctx context.Context) error {
			_, err := w.JS.Publish(ctx, RawSubject("loop"), body)
			return err
		}
	}
	var wrote []Wrote
	ours := func(ctx context.Context, _ int) (Sample, error) {
		run, err := f.Start(ctx, publisher.RunSpec{ID: fmt.Sprintf("run-%d", len(wrote)), Task: "Read."})
		if err != nil {
			return Sample{}, err
		}
		s, err := a.measured(func() error { return loop.Work(ctx, run) })
		wrote = append(wrote, Wrote{Run: run.ID(), Head: run.Head()})
		return s, err
	}
	raw := func(ctx context.Context, _ int) (Sample, error) {
		return a.measured(func() error { return a.plain(ctx, durable) })
	}
	return &Trial{
		WarmUp: func(ctx context.Context) error {
			if _, err := raw(ctx, 0); err != nil {
				return err
			}
			_, err := ours(ctx, 0)
			return err
		},
		Raw: raw, Ours: ours,
		Verify: func(ctx context.Context) error { return w.Verify(ctx, wrote) },
		Finish: func(_ context.Context, r *Result) error {
			if r.Ours.P99 != nil && r.Raw.P99 != nil {
				r.Set("added_p99_us", *r.Ours.P99-*r.Raw.P99)
			}
			if r.Ours.P50 == nil || r.Raw.P50 == nil {
				return nil
			}
			added := *r.Ours.P50 - *r.Raw.P50
			r.Set("added_p50_us", added)
			if !await && !message {
				r.AtMost("added by publisher.Loop to a turn, p50 us", &added, turnAddedAim).For(GoalTurnAdded, "publisher.Loop")
			}
			return nil
		},
	}, nil
}

// loopAgent is a model and a tool that take their time, and measures what comes between.
type loopAgent struct {
	shape Shape
	turns int
	text  *Text

	results []string
	// asked is when the model was asked in the turn under way, waited how long it took.
	asked  time.Time
	waited time.Duration
	times  []time.Duration

	mu sync.Mutex
	// first and last are the begin of the first tool of the turn, and the end of the last.
	first, last time.Time
}

// loopArguments are those of a call.
type loopArguments struct {
	At   int    `json:"at"`
	Text string `json:"text"`
}

// measured is what one conversation took.
func (a *loopAgent) measured(work func() error) (Sample, error) {
	a.times, a.asked = nil, time.Time{}
	began := time.Now()
	err := work()
	turns := int64(len(a.times))
	if err == nil && len(a.times) != a.turns {
		err = fmt.Errorf("%w: %d turns instead of %d", ErrWrongData, turns, a.turns)
	}
	return Sample{
		Boundaries: turns * TurnBoundaries, Elapsed: time.Since(began), Latencies: a.times, Payload: turns * TurnPayload,
	}, err
}

// model answers with calls, and in the end without.
func (a *loopAgent) model(ctx context.Context, _ publisher.ModelRequest) (publisher.Answer, error) {
	now := time.Now()
	if !a.asked.IsZero() {
		a.times = append(a.times, now.Sub(a.asked)-a.waited-a.last.Sub(a.first))
	}
	a.asked, a.first, a.last = now, time.Time{}, time.Time{}
	defer func() { a.waited = time.Since(now) }()
	answer := publisher.Answer{Message: schema.Message{Role: schema.RoleAssistant, Parts: []schema.Part{schema.Text(string(a.text.Bytes(a.shape.Answer)))}}}
	a.results = nil
	for i := range a.shape.Calls {
		if len(a.times) == a.turns {
			break
		}
		arguments, err := json.Marshal(loopArguments{At: i, Text: string(a.text.Bytes(a.shape.Call))})
		if err != nil {
			return answer, err
		}
		answer.Calls = append(answer.Calls, publisher.ToolCall{ID: fmt.Sprintf("call-%d", i), Name: "read", Arguments: arguments})
		a.results = append(a.results, string(a.text.Bytes(a.shape.Result)))
	}
	return answer, pause.For(ctx, a.shape.Model-time.Since(now))
}

func (a *loopAgent) tool(ctx context.Context, in loopArguments) (string, error) {
	a.mu.Lock()
	if a.first.IsZero() {
		a.first = time.Now()
	}
	a.mu.Unlock()
	err := pause.For(ctx, a.shape.Tool)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.last = time.Now()
	return a.results[in.At], err
}

// plain is the loop without Waymark: nothing of it is kept but what durable keeps of each answer with calls.
func (a *loopAgent) plain(ctx context.Context, durable func(context.Context) error) error {
	var conversation []schema.Message
	for turn := int32(1); ; turn++ {
		answer, err := a.model(ctx, publisher.ModelRequest{Turn: turn, Messages: conversation})
		if err != nil || len(answer.Calls) == 0 {
			return err
		}
		if err := durable(ctx); err != nil {
			return err
		}
		results := make([]schema.Part, len(answer.Calls))
		group, ctx := errgroup.WithContext(ctx)
		for i, call := range answer.Calls {
			group.Go(func() error {
				var in loopArguments
				if err := json.Unmarshal(call.Arguments, &in); err != nil {
					return err
				}
				result, err := a.tool(ctx, in)
				if err != nil {
					return err
				}
				results[i] = schema.Part{Type: schema.PartToolCallResponse, ID: call.ID}
				results[i].Response, err = json.Marshal(result)
				return err
			})
		}
		if err := group.Wait(); err != nil {
			return err
		}
		conversation = append(conversation, answer.Message, schema.Message{Role: schema.RoleTool, Parts: results})
	}
}
