package bench

import (
	"context"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// eventsRunEvents is the length of the run whose content is read.
const eventsRunEvents = 20_000

// recoveryCase measures how soon a client has a run's state and its content.
func recoveryCase() Case {
	return Case{
		Name:  "recovery",
		About: "A run's head by the length of the run, and all of its events, compared with an ordered consumer of as many raw messages. Times of view events are those to the first event.",
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
	// reader is a second handle, as another process would have.
	reader *publisher.Fleet
}

// trial writes the run.
func (t *recovery) trial(ctx context.Context) (*Trial, error) {
	f, err := t.w.Fleet(ctx, "executor")
	if err != nil {
		return nil, err
	}
	if t.player, err = StartRun(ctx, f, "run", FullTurn); err != nil {
		return nil, err
	}
	for range t.turns {
		if err := t.player.Turn(ctx, func(ctx context.Context, step Step) error { return step(ctx) }); err != nil {
			return nil, err
		}
	}
	if t.reader, err = t.w.Fleet(ctx, "reader"); err != nil {
		return nil, err
	}
	trial := &Trial{Ours: t.head, Verify: func(ctx context.Context) error { return t.w.Verify(ctx, WroteBy(t.player)) }}
	if t.view == "events" {
		sizes, err := t.w.WireSizes(ctx, f, FullTurn)
		if err != nil {
			return nil, err
		}
		raw := NewRawWriter(t.w.JS, "recovery", sizes, FullTurn)
		raw.Prepare(t.turns)
		var messages []*nats.Msg
		for _, body := range raw.ready {
			messages = append(messages, &nats.Msg{Subject: raw.subject, Data: body})
		}
		if _, err := t.w.publish(ctx, messages); err != nil {
			return nil, err
		}
		trial.Raw = func(ctx context.Context, _ int) (Sample, error) {
			return t.readings(func(seen func()) error { return t.readRaw(ctx, raw.subject, seen) })
		}
		trial.Ours = func(ctx context.Context, _ int) (Sample, error) {
			return t.readings(func(seen func()) error {
				return t.reader.Events(ctx, "run", func(schema.Record) error { seen(); return nil })
			})
		}
	}
	return trial, nil
}

// head reads the head so often that the median means something.
func (t *recovery) head(ctx context.Context, _ int) (s Sample, err error) {
	want := t.player.Run.Head().Digest
	var c Clock
	began := time.Now()
	for range t.w.Options.Pick(0, 100, 3) {
		if err := c.Time(ctx, func(ctx context.Context) error {
			head, err := t.reader.Head(ctx, "run")
			if err == nil && head.Digest != want {
				err = &WrongDataError{Run: "run", Field: "digest", Wrote: want, Read: head.Digest}
			}
			return err
		}); err != nil {
			return s, err
		}
	}
	return Sample{Boundaries: int64(len(c.Latencies)), Elapsed: time.Since(began), Latencies: c.Latencies}, nil
}

// readings reads a long run once in a round, and a short one several times. read calls seen for each event.
func (t *recovery) readings(read func(seen func()) error) (all Sample, err error) {
	for range max(1, t.w.Options.Pick(0, eventsRunEvents, 1)/(t.turns*TurnBoundaries)) {
		began, events := time.Now(), 0
		if err := read(func() {
			if events++; events == 1 {
				all.Latencies = append(all.Latencies, time.Since(began))
			}
		}); err != nil {
			return all, fmt.Errorf("events of the run: %w", err)
		}
		all.Elapsed += time.Since(began)
		all.Boundaries += int64(t.turns * TurnBoundaries)
		if events < t.turns*TurnBoundaries {
			return all, fmt.Errorf("%w: %d events of %d", ErrWrongData, events, t.turns*TurnBoundaries)
		}
	}
	return all, nil
}

// readRaw reads the raw messages of a subject with an ordered consumer.
func (t *recovery) readRaw(ctx context.Context, subject string, seen func()) error {
	consumer, err := t.w.JS.OrderedConsumer(ctx, rawStream, jetstream.OrderedConsumerConfig{FilterSubjects: []string{subject}})
	if err != nil {
		return err
	}
	left, done := t.turns*TurnBoundaries, make(chan struct{})
	running, err := consumer.Consume(func(jetstream.Msg) {
		seen()
		if left--; left == 0 {
			close(done)
		}
	}, jetstream.PullMaxMessages(2000))
	if err != nil {
		return err
	}
	defer func() {
		running.Stop()
		<-running.Closed()
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
