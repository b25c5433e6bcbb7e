package bench

import (
	"context"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/errgroup"

	"github.com/waymarkio/waymark/internal/base/pause"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// Shape is what a turn carries, in bytes of payload: the text of the model's answer, the arguments of each call that it
// asks for, and the result of each.
type Shape struct {
	Answer int `json:"answer"`
	Calls  int `json:"calls"`
	Call   int `json:"call"`
	Result int `json:"result"`
	// ModelMS and ToolMS are how long the model takes to answer, and a tool to return, in milliseconds.
	ModelMS int `json:"model_ms,omitzero"`
	ToolMS  int `json:"tool_ms,omitzero"`
}

// TurnBoundaries and TurnPayload are those of a [FullTurn].
const (
	answerBytes = 2 << 10
	callBytes   = 300
	resultBytes = 4 << 10
	turnCalls   = 2
	modelMS     = 200
	toolMS      = 20

	TurnBoundaries = 1 + turnCalls
	TurnPayload    = answerBytes + turnCalls*(callBytes+resultBytes)
)

// FullTurn is the turn of every case. TimedTurn is the same with a model and tools that take their time. SmallTurn is a
// small step: a call and its result, without text.
var (
	FullTurn  = Shape{Answer: answerBytes, Calls: turnCalls, Call: callBytes, Result: resultBytes}
	TimedTurn = Shape{Answer: answerBytes, Calls: turnCalls, Call: callBytes, Result: resultBytes, ModelMS: modelMS, ToolMS: toolMS}
	SmallTurn = Shape{Calls: 1, Call: 50, Result: 50}
)

// Boundaries is the number of durable facts of a turn: the answer and the outcome of each call.
func (s Shape) Boundaries() int { return 1 + s.Calls }

// Payload is the number of bytes that the executor wants to be kept.
func (s Shape) Payload() int { return s.Answer + s.Calls*(s.Call+s.Result) }

// pauses are the times of model and tools. A model takes half to one and a half times as long as its shape says, so runs
// that begin together do not stay together.
type pauses struct {
	shape  Shape
	rng    *rand.Rand
	waited time.Duration
}

func newPauses(shape Shape, seed uint64) pauses {
	return pauses{shape: shape, rng: rand.New(rand.NewPCG(seed, 0x70617573))} //nolint:gosec // pauses, not secrets
}

func (p *pauses) model(ctx context.Context) error {
	return p.wait(ctx, (0.5+p.rng.Float64())*float64(p.shape.ModelMS))
}

func (p *pauses) tool(ctx context.Context) error { return p.wait(ctx, float64(p.shape.ToolMS)) }

func (p *pauses) wait(ctx context.Context, ms float64) error {
	if ms == 0 {
		return nil
	}
	began := time.Now()
	defer func() { p.waited += time.Since(began) }()
	return pause.For(ctx, time.Duration(ms*float64(time.Millisecond)))
}

// Waited returns the time of the pauses since the last call.
func (p *pauses) Waited() time.Duration {
	waited := p.waited
	p.waited = 0
	return waited
}

// turnText is the texts of one turn.
type turnText struct {
	answer  string
	calls   [][]byte
	results [][]byte
}

func (s Shape) text(t *Text) turnText {
	out := turnText{answer: string(t.Bytes(s.Answer))}
	for range s.Calls {
		out.calls = append(out.calls, t.Quoted(s.Call))
		out.results = append(out.results, t.Quoted(s.Result))
	}
	return out
}

// Player plays turns on a run. It has one owner.
type Player struct {
	Run *publisher.Run
	pauses
	text *Text
	// ready holds the texts of the coming turns, if [Player.Prepare] made them.
	ready []turnText
	turn  int
}

// StartRun begins a run and returns its player.
func StartRun(ctx context.Context, f *publisher.Fleet, id string, shape Shape) (*Player, error) {
	run, err := f.Start(ctx, publisher.RunSpec{ID: id})
	if err != nil {
		return nil, fmt.Errorf("start run %s: %w", id, err)
	}
	return &Player{Run: run, pauses: newPauses(shape, seedOf(id)), text: NewText(seedOf(id))}, nil
}

// starters begin runs at once.
const starters = 64

// StartRuns begins n runs named prefix-0, prefix-1 and so on.
func StartRuns(ctx context.Context, f *publisher.Fleet, prefix string, n int, shape Shape) ([]*Player, error) {
	players := make([]*Player, n)
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(starters)
	for i := range players {
		group.Go(func() (err error) {
			players[i], err = StartRun(ctx, f, fmt.Sprintf("%s-%d", prefix, i), shape)
			return err
		})
	}
	return players, group.Wait()
}

// seedOf returns the seed of a run's texts.
func seedOf(id string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(id)) // it cannot fail
	return h.Sum64()
}

// Step publishes one boundary.
type Step func(ctx context.Context) error

// Prepare makes the texts of the next turns in advance.
func (p *Player) Prepare(turns int) {
	for range turns {
		p.ready = append(p.ready, p.shape.text(p.text))
	}
}

// next returns the text of the next turn and the model's answer.
func (p *Player) next() (turnText, publisher.Answer) {
	if len(p.ready) == 0 {
		p.Prepare(1)
	}
	text := p.ready[0]
	p.ready = p.ready[1:]
	p.turn++
	return text, answerOf(text, p.turn)
}

// answerOf returns an answer like an adapter's: the text, a part for each call, and the calls with their arguments.
func answerOf(text turnText, turn int) publisher.Answer {
	a := publisher.Answer{Message: schema.Message{Role: schema.RoleAssistant}, FinishReasons: []string{"tool_calls"}}
	if text.answer != "" {
		a.Message.Parts = append(a.Message.Parts, schema.Text(text.answer))
	}
	for i, arguments := range text.calls {
		call := publisher.ToolCall{ID: fmt.Sprintf("call-%d-%d", turn, i), Name: "read", Arguments: arguments, Replay: schema.ReplayPure}
		a.Message.Parts = append(a.Message.Parts, schema.CallPart(call.ID, call.Name))
		a.Calls = append(a.Calls, call)
	}
	return a
}

// Turn plays one turn as docs/first-agent.md has it: the answer, then each of its calls by Turn.Tool. It hands each
// boundary to do, and ends with the first error of do.
func (p *Player) Turn(ctx context.Context, do func(context.Context, Step) error) error {
	text, answer := p.next()
	var turn *publisher.Turn
	if err := do(ctx, func(ctx context.Context) (err error) {
		if turn, err = p.Run.StartTurn(ctx, publisher.TurnSpec{}); err != nil {
			return err
		}
		if err := p.model(ctx); err != nil {
			return err
		}
		_, err = turn.Answer(ctx, answer)
		return err
	}); err != nil {
		return err
	}
	for i, call := range answer.Calls {
		if err := do(ctx, func(ctx context.Context) error {
			_, err := turn.Tool(ctx, call, func(ctx context.Context, _ publisher.Invocation) (publisher.ToolResult, error) {
				return publisher.ToolResult{Result: text.results[i]}, p.tool(ctx)
			})
			return err
		}); err != nil {
			return err
		}
	}
	return nil
}

// Clock times boundaries. It has one owner.
type Clock struct{ Latencies []time.Duration }

// Time does a step and keeps its duration.
func (c *Clock) Time(ctx context.Context, step Step) error {
	began := time.Now()
	err := step(ctx)
	c.Latencies = append(c.Latencies, time.Since(began))
	return err
}

// RawWriter publishes messages of the same sizes as a turn's events have on the wire, to raw JetStream: one after the
// other, each acknowledged before the next. It has one owner.
type RawWriter struct {
	js      jetstream.JetStream
	subject string
	sizes   []int
	pauses
	text *Text
	// ready holds the bodies of the coming messages, if [RawWriter.Prepare] made them.
	ready [][]byte
}

// NewRawWriter returns a writer on its own subject, with the pauses of the shape.
func NewRawWriter(js jetstream.JetStream, name string, sizes []int, shape Shape) *RawWriter {
	return &RawWriter{js: js, subject: RawSubject(name), sizes: sizes, pauses: newPauses(shape, seedOf(name)), text: NewText(seedOf(name))}
}

// Prepare makes the bodies of the next turns, as [Player.Prepare] does.
func (r *RawWriter) Prepare(turns int) {
	for range turns {
		for _, size := range r.sizes {
			r.ready = append(r.ready, r.text.Bytes(size))
		}
	}
}

// Turn publishes the messages of a turn; each is handed to do as in [Player.Turn].
func (r *RawWriter) Turn(ctx context.Context, do func(context.Context, Step) error) error {
	if len(r.ready) == 0 {
		r.Prepare(1)
	}
	for i := range r.sizes {
		body := r.ready[0]
		r.ready = r.ready[1:]
		before := r.tool
		if i == 0 {
			before = r.model
		}
		if err := do(ctx, func(ctx context.Context) error {
			if err := before(ctx); err != nil {
				return err
			}
			_, err := r.js.Publish(ctx, r.subject, body)
			return err
		}); err != nil {
			return err
		}
	}
	return nil
}

// WireSizes plays one turn on a run of its own and returns how large its events are as stored, headers included: what
// raw messages must have to be of equal size.
func (w *World) WireSizes(ctx context.Context, f *publisher.Fleet, shape Shape) (sizes []int, err error) {
	const run = "sizes"
	p, err := StartRun(ctx, f, run, shape)
	if err != nil {
		return sizes, err
	}
	if err := p.Turn(ctx, func(ctx context.Context, step Step) error { return step(ctx) }); err != nil {
		return sizes, err
	}
	if err := p.Run.End(ctx, publisher.RunEnd{}); err != nil {
		return sizes, err
	}
	shard := schema.ShardOf(run, w.Settings.Shards)
	stream, err := w.JS.Stream(ctx, w.shards[shard].Names.EventStream())
	if err != nil {
		return sizes, err
	}
	n := 0
	err = f.Events(ctx, run, func(r schema.Record) error {
		if n++; n == 1 || n > 1+shape.Boundaries() { // the first is run.started
			return nil
		}
		m, err := stream.GetMsg(ctx, uint64(r.Stream))
		if err != nil {
			return fmt.Errorf("size of an event: %w", err)
		}
		sizes = append(sizes, len(m.Data)+headerSize(m.Header))
		return nil
	})
	if err == nil && n != 2+shape.Boundaries() { // and the last is run.ended
		err = fmt.Errorf("%w: a turn made %d events, not %d", ErrWrongData, n-2, shape.Boundaries())
	}
	return sizes, err
}

// headerSize returns the size of headers on the wire.
func headerSize(h nats.Header) int {
	n := len("NATS/1.0\r\n\r\n")
	for name, values := range h {
		for _, v := range values {
			n += len(name) + len(v) + len(": \r\n")
		}
	}
	return n
}
