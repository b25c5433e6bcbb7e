package bench

import (
	"context"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/waymarkio/waymark/schema"
)

// stallWait bounds the wait of a publish for earlier acknowledgements: a busy disk makes a round slow, and does not fail
// it.
const stallWait = time.Minute

// foldCase measures how fast the log becomes checkpoints.
func foldCase() Case {
	return Case{
		Name:  "fold",
		About: "Folding into the KV, catching up alone, compared with raw async publishes of as many bytes.",
		Variants: func(o Options) []Variant {
			runs, turns := o.Pick(o.Runs, 64, 4), o.Pick(o.Turns, 200, 3)
			return []Variant{{
				Parameters: map[string]any{"runs": runs, "turns": turns},
				World: func(s *WorldSpec) {
					s.NoDaemon = true
					if s.Sync == "" {
						s.Sync = SyncDefault // the disk is no part of it
					}
				},
				Setup: func(ctx context.Context, w *World) (*Trial, error) {
					f := &foldTrial{w: w, runs: runs, turns: turns}
					return f.trial(), nil
				},
			}}
		},
	}
}

// foldTrial publishes events without the SDK, as fast as JetStream takes them.
type foldTrial struct {
	w           *World
	runs, turns int
	wrote       []Wrote
	// events of the coming round, and raw messages of the same sizes.
	events, raw []*nats.Msg
	payload     int64
}

func (f *foldTrial) trial() *Trial {
	return &Trial{
		Prepare: func(_ context.Context, round int) error { return f.prepare(round) },
		Raw:     func(ctx context.Context, _ int) (Sample, error) { return f.w.publish(ctx, f.raw) },
		Ours:    f.ours,
		Verify: func(ctx context.Context) error {
			if err := f.w.StartDaemon(ctx); err != nil { // reading back needs one
				return err
			}
			return f.w.Verify(ctx, f.wrote)
		},
	}
}

// prepare makes the messages of a round, of runs of its own.
func (f *foldTrial) prepare(round int) error {
	f.events, f.raw, f.payload = nil, nil, 0
	type writer struct {
		w    schema.Writer
		head schema.Head
		text *Text
	}
	writers := make([]*writer, f.runs)
	add := func(x *writer, d schema.Data, turn int32) error {
		e, err := x.w.Event(d, turn, time.Now(), 0)
		if err != nil {
			return err
		}
		if err := x.w.Commit(e); err != nil {
			return err
		}
		header, body := e.Encode()
		record := schema.NewRecord(0, header, body)
		x.head.Apply(schema.NoKeys, &record)
		shard := f.w.shards[schema.ShardOf(x.w.Run, f.w.Settings.Shards)]
		f.events = append(f.events, &nats.Msg{Subject: shard.Names.EventSubject(x.w.Run), Header: header, Data: body})
		f.raw = append(f.raw, &nats.Msg{Subject: RawSubject(x.w.Run), Data: x.text.Bytes(headerSize(header) + len(body))})
		return nil
	}
	for i := range writers {
		run := fmt.Sprintf("round-%d-run-%d", round, i)
		x := &writer{
			w:    schema.Writer{Fleet: FleetName, Run: run, Executor: "executor", Epoch: 1},
			head: schema.NewHead(FleetName, run), text: NewText(seedOf(run)),
		}
		writers[i] = x
		if err := add(x, &schema.RunStartedData{Agent: "bench", Executor: "executor"}, 0); err != nil {
			return err
		}
	}
	for turn := range int32(f.turns) { // the runs advance together, as they would
		for _, x := range writers {
			for _, d := range turnData(x.text, turn+1) {
				if err := add(x, d, turn+1); err != nil {
					return err
				}
			}
			f.payload += TurnPayload
		}
	}
	for _, x := range writers {
		f.wrote = append(f.wrote, Wrote{Run: x.w.Run, Head: x.head})
	}
	return nil
}

// turnData returns the data of a turn's events, as [Player.Turn] publishes them.
func turnData(text *Text, turn int32) []schema.Data {
	said := FullTurn.text(text)
	answer := answerOf(said, int(turn))
	answered := &schema.TurnAnsweredData{Turn: turn, Message: answer.Message, FinishReasons: answer.FinishReasons}
	data := []schema.Data{answered}
	for i, c := range answer.Calls {
		answered.Calls = append(answered.Calls, schema.RequestedCall{ToolCallID: c.ID, Name: c.Name, Arguments: []byte(c.Arguments), Replay: c.Replay})
		data = append(data, &schema.ToolReturnedData{ToolCallID: c.ID, Occurrence: 1, Result: said.results[i], DurationMS: 1})
	}
	return data
}

// publish sends messages asynchronously, and waits for all acknowledgements.
func (w *World) publish(ctx context.Context, messages []*nats.Msg) (Sample, error) {
	futures := make([]jetstream.PubAckFuture, 0, len(messages))
	began := time.Now()
	for _, m := range messages {
		future, err := w.JS.PublishMsgAsync(m, jetstream.WithStallWait(stallWait))
		if err != nil {
			return Sample{}, err
		}
		futures = append(futures, future)
	}
	for _, future := range futures {
		select {
		case <-future.Ok():
		case err := <-future.Err():
			return Sample{}, err
		case <-ctx.Done():
			return Sample{}, context.Cause(ctx)
		}
	}
	return Sample{Elapsed: time.Since(began), Boundaries: int64(len(messages))}, nil
}

// ours measures from the daemons' start until all is folded.
func (f *foldTrial) ours(ctx context.Context, _ int) (s Sample, err error) {
	if s, err = f.w.publish(ctx, f.events); err != nil {
		return s, err
	}
	s.Payload = f.payload
	began := time.Now()
	for range max(f.w.Spec.Daemons, 1) {
		if err := f.w.StartDaemon(ctx); err != nil {
			return s, err
		}
	}
	if err := f.w.AwaitFolded(ctx); err != nil {
		return s, err
	}
	s.Elapsed = time.Since(began)
	return s, f.w.StopDaemons()
}
