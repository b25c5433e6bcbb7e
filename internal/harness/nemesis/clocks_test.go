//go:build unix

package nemesis_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/harness/checker"
	"github.com/waymarkio/waymark/internal/harness/testbin"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// Three executors work, the clock of one an hour late and of another an hour early, as in every world here. No live
// executor counts as dead, a dead one is noticed, and a run that has just ended is young, whatever times its events
// have.
func TestClock_ExecutorSkewed_NoEffect(t *testing.T) {
	t.Parallel() // it mostly waits
	if testing.Short() {
		t.Skip("short: real servers and programs are broken")
	}
	if !testbin.Full(t) {
		t.Skip(`sample: the other tests have these clocks, too; for what is asked of them here run make chaos CHAOSFLAGS="-run Clock"`)
	}
	s := scaleOf(1)
	s.steal, s.turns = 0, 7
	r := newRound(t, s, number(t, "WAYMARK_CHAOS_SEED", 1))
	late, early := r.executors[1], r.executors[2]

	// While all are alive, their runs are not claimed all the time. Each executor has had the full silence, and more.
	// (On a very busy machine an executor may be silent for so long.)
	calm := time.Now()
	ended := map[string]string{}
	r.eventually("every executor brings runs to their end", func() error {
		h, err := r.read()
		if err != nil {
			return err
		}
		for i := range h.Ops {
			op := &h.Ops[i]
			if op.Kind == checker.Publish && op.Outcome == checker.OK && op.Detail == schema.RunEnded {
				name, _, _ := strings.Cut(op.Actor, ".")
				ended[name] = op.Run
			}
		}
		if len(ended) < 3 || time.Since(calm) < 3*silence {
			return fmt.Errorf("%d executors have", len(ended))
		}
		return nil
	})
	h, err := r.read()
	require.NoError(t, err)
	claims := 0
	for i := range h.Ops {
		if op := &h.Ops[i]; op.Kind == checker.Takeover && op.Outcome == checker.OK && op.Detail == DetailClaim {
			claims++
		}
	}
	require.LessOrEqual(t, claims, len(runsOf(h))/4, "runs are claimed whose executors live")

	// The times of the events are off as the clocks are.
	off := func(run string) time.Duration {
		var at time.Time
		require.NoError(t, r.fleet.Events(t.Context(), run, func(rec schema.Record) error {
			e, err := schema.Decode(rec.Header, rec.Body)
			if err == nil {
				at, err = time.Parse(time.RFC3339Nano, e.Time)
			}
			return err
		}))
		return time.Since(at)
	}
	require.Greater(t, off(ended[late.name]), 50*time.Minute)
	require.Less(t, off(ended[early.name]), -50*time.Minute)

	// Nothing is older than half an hour, the runs of the executor that is late included; and once all is older than a second, all that
	// ended is removed, the runs of the one that is early included.
	young, err := r.cleanup(t.Context(), 30*time.Minute, "--dry-run")
	require.NoError(t, err)
	require.Empty(t, young)
	r.eventually("what has ended is removed, whatever its executor's clock says", func() error {
		if _, err := r.cleanup(t.Context(), time.Second); err != nil {
			return err
		}
		for _, run := range ended {
			if _, err := r.fleet.Head(t.Context(), run); !errors.Is(err, publisher.ErrRunErased) {
				return fmt.Errorf("run %s is there: %w", run, err)
			}
		}
		return nil
	})

	// A dead executor is noticed: others continue its active runs.
	for _, p := range []*process{late, early} {
		since := r.record.Now()
		require.NoError(t, p.kill())
		r.eventually("the runs of "+p.name+" are claimed", func() error {
			h, err := r.read()
			if err != nil {
				return err
			}
			for i := range h.Ops {
				op := &h.Ops[i]
				if op.Kind == checker.Takeover && op.Outcome == checker.OK && op.Start > since && strings.HasPrefix(op.Run, p.name+"-") &&
					op.Executor != p.name {
					return nil
				}
			}
			return errors.New("none is")
		})
		require.NoError(t, r.heal())
	}
	r.calm()
	// The removed runs cannot be judged; every other world with the same clocks shows that all others are complete.
	r.stop()
}
