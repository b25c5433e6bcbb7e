package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// Aims of recovery: the head of a run of any length in us, content in MB/s of payload, its first byte in us.
const (
	headAim      = 3000
	eventsAim    = 100
	firstByteAim = 5000
	// eventsRunEvents is the length of the run whose content is read.
	eventsRunEvents = 20_000
)

// recoveryCase measures how soon a client has a run's state and its content.
func recoveryCase() Case {
	return Case{
		Name:  "recovery",
		About: "A run's head by the length of the run, compared with one raw publish and one read of its last message; its events, compared with reading the same messages raw.",
		Uses:  []string{"turns", "daemons"},
		Variants: func(o Options) []Variant {
			variant := func(view string, events int) Variant {
				turns := max(1, events/TurnBoundaries)
				return Variant{
					Parameters: map[string]any{"view": view, "turns": turns},
					Setup: func(ctx context.Context, w *World) (*Trial, error) {
						t := &recovery{w: w, view: view, turns: turns}
						return t.trial(ctx)
					},
				}
			}
			var list []Variant
			for _, events := range o.Span(o.Turns*TurnBoundaries, []int{100, 10_000, 100_000}, []int{40, 400}) {
				list = append(list, variant("head", events))
			}
			for _, events := range o.Span(o.Turns*TurnBoundaries, []int{800, eventsRunEvents}, []int{400}) {
				list = append(list, variant("events", events))
			}
			return list
		},
	}
}

// recovery is one variant.
type recovery struct {
	w      *World
	view   string
	turns  int
	player *Player
	// reader is another process's handle.
	reader *publisher.Fleet
	names  schema.Names
	first  []time.Duration
}

// trial writes the run, and waits until it is folded and sealed as far as it will be.
func (t *recovery) trial(ctx context.Context) (*Trial, error) {
	f, err := t.w.Fleet(ctx, "executor")
	if err != nil {
		return nil, err
	}
	if t.player, err = StartRun(ctx, f, "run", FullTurn); err != nil {
		return nil, err
	}
	for range t.turns {
		if err := t.player.Record(ctx); err != nil {
			return nil, err
		}
	}
	if t.reader, err = t.w.Fleet(ctx, "reader"); err != nil {
		return nil, err
	}
	t.names = t.w.shards[schema.ShardOf("run", t.w.Settings.Shards)].Names
	trial := &Trial{
		Verify: func(ctx context.Context) error { return t.w.Verify(ctx, WroteBy(t.player)) },
		Raw:    t.rawHead, Ours: t.head,
		Finish: func(_ context.Context, r *Result) error {
			r.AtMost("head p50, us", r.Ours.P50, headAim)
			return nil
		},
	}
	if t.view == "events" {
		trial.Raw, trial.Ours, trial.Finish = t.readings(t.rawEvents), t.readings(t.events), t.finishEvents
	}
	return trial, nil
}

// times does something so often that its median means something.
func (t *recovery) times(ctx context.Context, n int, do func(ctx context.Context) error) (Sample, error) {
	var c Clock
	began := time.Now()
	for range n {
		if err := c.Time(ctx, do); err != nil {
			return Sample{}, err
		}
	}
	return Sample{Boundaries: int64(n), Elapsed: time.Since(began), Latencies: c.Latencies}, nil
}

const headsPerRound = 100

// rawHead is the least that could prove where a run stands: a publish, and a read of the last message.
func (t *recovery) rawHead(ctx context.Context, _ int) (Sample, error) {
	stream, err := t.w.JS.Stream(ctx, t.names.EventStream())
	if err != nil {
		return Sample{}, err
	}
	subject := t.names.EventSubject("run")
	return t.times(ctx, t.w.Options.Pick(0, headsPerRound, 3), func(ctx context.Context) error {
		if _, err := t.w.JS.Publish(ctx, RawSubject("barrier"), nil); err != nil {
			return err
		}
		_, err := stream.GetLastMsgForSubject(ctx, subject)
		return err
	})
}

func (t *recovery) head(ctx context.Context, _ int) (Sample, error) {
	want := t.player.Run.Head().Digest
	return t.times(ctx, t.w.Options.Pick(0, headsPerRound, 3), func(ctx context.Context) error {
		head, err := t.reader.Head(ctx, "run")
		if err == nil && head.Digest != want {
			err = &WrongDataError{Run: "run", Field: "digest", Wrote: want, Read: head.Digest}
		}
		return err
	})
}

// sample is that of one reading of the whole run.
func (t *recovery) sample(began time.Time) Sample {
	elapsed := time.Since(began)
	return Sample{
		Boundaries: int64(t.turns * TurnBoundaries), Elapsed: elapsed, Bytes: int64(t.turns) * TurnPayload,
		Latencies: []time.Duration{elapsed},
	}
}

// readings makes a round of one reading of a long run, or of several of a short one.
func (t *recovery) readings(read func(context.Context) (Sample, error)) func(context.Context, int) (Sample, error) {
	return func(ctx context.Context, _ int) (all Sample, err error) {
		for range max(1, t.w.Options.Pick(0, eventsRunEvents, 1)/(t.turns*TurnBoundaries)) {
			s, err := read(ctx)
			if err != nil {
				return all, err
			}
			all.Boundaries, all.Bytes, all.Elapsed = all.Boundaries+s.Boundaries, all.Bytes+s.Bytes, all.Elapsed+s.Elapsed
			all.Latencies = append(all.Latencies, s.Latencies...)
		}
		return all, nil
	}
}

// rawEvents reads the messages of the run with an ordered consumer, and does nothing with them.
func (t *recovery) rawEvents(ctx context.Context) (Sample, error) {
	began := time.Now()
	consumer, err := t.w.JS.OrderedConsumer(ctx, t.names.EventStream(), jetstream.OrderedConsumerConfig{
		FilterSubjects: []string{t.names.EventSubject("run")},
	})
	if err != nil {
		return Sample{}, err
	}
	left := t.player.Run.Head().Counts.Events
	done := make(chan struct{})
	running, err := consumer.Consume(func(jetstream.Msg) {
		if left--; left == 0 {
			close(done)
		}
	}, jetstream.PullMaxMessages(2000))
	if err != nil {
		return Sample{}, err
	}
	defer func() {
		running.Stop()
		<-running.Closed()
	}()
	select {
	case <-done:
		return t.sample(began), nil
	case <-ctx.Done():
		return Sample{}, context.Cause(ctx)
	}
}

func (t *recovery) events(ctx context.Context) (Sample, error) {
	began := time.Now()
	first := time.Duration(0)
	err := t.reader.Events(ctx, "run", func(schema.Record) error {
		if first == 0 {
			first = time.Since(began)
		}
		return nil
	})
	if err != nil {
		return Sample{}, fmt.Errorf("events of the run: %w", err)
	}
	t.first = append(t.first, first)
	return t.sample(began), nil
}

func (t *recovery) finishEvents(_ context.Context, r *Result) error {
	if len(t.first) == 0 {
		return errors.New("no event was read")
	}
	var us []float64
	for _, d := range t.first {
		us = append(us, float64(d)/float64(time.Microsecond))
	}
	first := median(us)
	r.Set("first_event_us", *first)
	r.AtLeast("MB/s of payload", r.Ours.MBPerSecond, eventsAim)
	r.AtMost("first event p50, us", first, firstByteAim)
	return nil
}
