package bench

import (
	"context"
	"fmt"
	"hash/fnv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/errgroup"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// A turn of the workload has four boundaries, of so many bytes of payload: what the model is told, what a tool is
// called with, what it returns, what the model answers.
const (
	startedBytes  = 300
	calledBytes   = 300
	returnedBytes = 4 << 10
	endedBytes    = 2 << 10

	// TurnBoundaries and TurnPayload are those of one turn.
	TurnBoundaries = 4
	TurnPayload    = startedBytes + calledBytes + returnedBytes + endedBytes
)

// Player plays turns on a run. It has one owner.
type Player struct {
	Run  *publisher.Run
	text *Text
	turn int32
}

// StartRun begins a run and returns its player. The handle keeps only the head, as for a long run.
func StartRun(ctx context.Context, f *publisher.Fleet, id string) (*Player, error) {
	run, err := f.Start(ctx, publisher.RunSpec{ID: id, HeadOnly: true})
	if err != nil {
		return nil, fmt.Errorf("start run %s: %w", id, err)
	}
	return &Player{Run: run, text: NewText(seedOf(id))}, nil
}

// starters begin runs at once.
const starters = 64

// StartRuns begins n runs named prefix-0, prefix-1 and so on.
func StartRuns(ctx context.Context, f *publisher.Fleet, prefix string, n int) ([]*Player, error) {
	players := make([]*Player, n)
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(starters)
	for i := range players {
		group.Go(func() (err error) {
			players[i], err = StartRun(ctx, f, fmt.Sprintf("%s-%d", prefix, i))
			return err
		})
	}
	return players, group.Wait()
}

// seedOf gives every run text of its own.
func seedOf(id string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(id)) // it cannot fail
	return h.Sum64()
}

// Step is one boundary: what publishes it.
type Step func(ctx context.Context) error

// Turn plays one turn: each of its boundaries is handed to do, ready to be published, its text made already. It ends
// with the first error of do.
func (p *Player) Turn(ctx context.Context, do func(context.Context, Step) error) error {
	p.turn++
	text := string(p.text.Bytes(startedBytes))
	var turn *publisher.Turn
	err := do(ctx, func(ctx context.Context) (err error) {
		turn, err = p.Run.StartTurn(ctx, publisher.TurnSpec{Messages: []schema.Message{
			{Role: schema.RoleUser, Parts: []schema.Part{schema.Text(text)}},
		}})
		return err
	})
	if err != nil {
		return err
	}
	call := publisher.ToolCall{ID: fmt.Sprintf("call-%d", p.turn), Name: "read", Arguments: p.text.Quoted(calledBytes), Replay: schema.ReplayPure}
	var keys []schema.CallKey
	if err := do(ctx, func(ctx context.Context) (err error) {
		keys, err = turn.Call(ctx, call)
		return err
	}); err != nil {
		return err
	}
	result := publisher.ToolResult{Result: p.text.Quoted(returnedBytes)}
	if err := do(ctx, func(ctx context.Context) error { return turn.Return(ctx, keys[0], result) }); err != nil {
		return err
	}
	end := publisher.TurnEnd{
		Messages:      []schema.Message{{Role: schema.RoleAssistant, Parts: []schema.Part{schema.Text(string(p.text.Bytes(endedBytes)))}}},
		FinishReasons: []string{"stop"},
	}
	return do(ctx, func(ctx context.Context) error { return turn.End(ctx, end) })
}

// Clock times boundaries. It has one owner.
type Clock struct{ Latencies []time.Duration }

// Time does a step and keeps how long it took.
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
	sizes   [TurnBoundaries]int
	text    *Text
}

// NewRawWriter returns a writer of a subject of its own.
func NewRawWriter(js jetstream.JetStream, name string, sizes [TurnBoundaries]int) *RawWriter {
	return &RawWriter{js: js, subject: RawSubject(name), sizes: sizes, text: NewText(seedOf(name))}
}

// Turn publishes the four messages of a turn; each is handed to do as in [Player.Turn].
func (r *RawWriter) Turn(ctx context.Context, do func(context.Context, Step) error) error {
	for _, size := range r.sizes {
		body := r.text.Bytes(size)
		if err := do(ctx, func(ctx context.Context) error {
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
func (w *World) WireSizes(ctx context.Context, f *publisher.Fleet) (sizes [TurnBoundaries]int, err error) {
	const run = "sizes"
	p, err := StartRun(ctx, f, run)
	if err != nil {
		return sizes, err
	}
	if err := p.Turn(ctx, func(ctx context.Context, step Step) error { return step(ctx) }); err != nil {
		return sizes, err
	}
	if err := p.Run.End(ctx, publisher.RunEnd{}); err != nil {
		return sizes, err
	}
	shard := w.Settings.Candidates(run)[0]
	stream, err := w.JS.Stream(ctx, w.shards[shard].Names.EventStream())
	if err != nil {
		return sizes, err
	}
	n := 0
	return sizes, f.Events(ctx, run, func(r schema.Record) error {
		if n++; n == 1 || n > 1+TurnBoundaries { // the first is run.started
			return nil
		}
		m, err := stream.GetMsg(ctx, uint64(r.Stream))
		if err != nil {
			return fmt.Errorf("size of an event: %w", err)
		}
		sizes[n-2] = len(m.Data) + headerSize(m.Header)
		return nil
	})
}

// headerSize is that of headers on the wire.
func headerSize(h nats.Header) int {
	n := len("NATS/1.0\r\n\r\n")
	for name, values := range h {
		for _, v := range values {
			n += len(name) + len(v) + len(": \r\n")
		}
	}
	return n
}
