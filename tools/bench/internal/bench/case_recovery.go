package bench

import (
	"context"
	"fmt"
	"time"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// Aims of recovery: the head of a run of any length in us, content in MB/s of payload.
const (
	headAim   = 3000
	eventsAim = 100
	// eventsRunEvents is the length of the run whose content is read.
	eventsRunEvents = 20_000
)

// recoveryCase measures how soon a client has a run's state and its content.
func recoveryCase() Case {
	return Case{
		Name:  "recovery",
		About: "A run's head by the length of the run, and all of its events.",
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
		if err := t.player.Record(ctx); err != nil {
			return nil, err
		}
	}
	if t.reader, err = t.w.Fleet(ctx, "reader"); err != nil {
		return nil, err
	}
	trial := &Trial{
		Verify: func(ctx context.Context) error { return t.w.Verify(ctx, WroteBy(t.player)) },
		Ours:   t.head,
		Finish: func(_ context.Context, r *Result) error {
			r.AtMost("head p50, us", r.Ours.P50, headAim)
			return nil
		},
	}
	if t.view == "events" {
		trial.Ours = t.readings
		trial.Finish = func(_ context.Context, r *Result) error {
			r.AtLeast("MB/s of payload", r.Ours.MBPerSecond, eventsAim)
			return nil
		}
	}
	return trial, nil
}

// times repeats do n times, enough for a meaningful median.
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

// readings reads a long run once in a round, and a short one several times.
func (t *recovery) readings(ctx context.Context, _ int) (all Sample, err error) {
	for range max(1, t.w.Options.Pick(0, eventsRunEvents, 1)/(t.turns*TurnBoundaries)) {
		began := time.Now()
		if err := t.reader.Events(ctx, "run", func(schema.Record) error { return nil }); err != nil {
			return all, fmt.Errorf("events of the run: %w", err)
		}
		elapsed := time.Since(began)
		all.Boundaries += int64(t.turns * TurnBoundaries)
		all.Bytes += int64(t.turns) * TurnPayload
		all.Elapsed += elapsed
		all.Latencies = append(all.Latencies, elapsed)
	}
	return all, nil
}
