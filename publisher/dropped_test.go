package publisher_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// silence is how long a daemon hears nothing of an executor before its runs are orphaned.
const silence = 15 * time.Second

// unwritable takes the event subjects from the log: all of it can be read, and nothing is stored. mend gives them back.
func (w *world) unwritable() (mend func()) {
	w.tb.Helper()
	stream, err := w.js.Stream(w.tb.Context(), w.names.EventStream())
	require.NoError(w.tb, err)
	open := stream.CachedInfo().Config
	closed := open
	closed.Subjects = []string{"nowhere"}
	_, err = w.js.UpdateStream(w.tb.Context(), closed)
	require.NoError(w.tb, err)
	return func() {
		w.tb.Helper()
		_, err := w.js.UpdateStream(w.tb.Context(), open)
		require.NoError(w.tb, err)
	}
}

// Whatever makes an executor drop a run: while its process lives on and attends others, another executor claims the run, long before anything
// was silent.
func TestExecutor_DroppedRun_IsClaimedByAnother(t *testing.T) {
	t.Parallel()
	for name, found := range map[string]error{
		"log regressed": publisher.ErrLogRegressed, "fenced": publisher.ErrFenced, "forked": publisher.ErrForked, "unresolved": nil,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.daemon()
			s := serveRuns(t, w.fleet(), func(ctx context.Context, run *publisher.Run) error {
				switch {
				case run.ID() != "r1":
					<-ctx.Done()
					return context.Cause(ctx)
				case found == nil:
					return fmt.Errorf("work: %w", publisher.ErrUnresolved)
				default:
					return publisher.Die(run, fmt.Errorf("run r1: %w", found))
				}
			})
			begin(t, s, "attended")
			begin(t, s, "r1")
			if found == nil {
				require.Equal(t, publisher.OutcomeInterrupted, s.outcome(t, "r1").outcome)
			} else {
				require.Equal(t, publisher.OutcomeDropped, s.outcome(t, "r1").outcome)
			}
			w.requireClaimed(t)
		})
	}
}

// A handle that no executor drives is no different.
func TestFleet_HandleThatEnded_IsClaimedByAnother(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.daemon()
	f := w.fleet()
	start(t, f, "attended")
	run := start(t, f, "r1")
	require.Error(t, publisher.Die(run, fmt.Errorf("run r1: %w", publisher.ErrLogRegressed)))
	w.requireClaimed(t)
}

// What could not be released in the log, for the patience or when the executor stopped, is given up by its process, which lives on.
func TestExecutor_ReleaseNotPublished_IsClaimedByAnother(t *testing.T) {
	t.Parallel()
	for _, stops := range []bool{false, true} {
		t.Run(fmt.Sprintf("executor stops %t", stops), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.daemon()
			f := w.fleet()
			start(t, f, "attended")
			working, leave := make(chan struct{}), make(chan struct{})
			s := serveRuns(t, f, func(ctx context.Context, _ *publisher.Run) error {
				close(working)
				select {
				case <-leave:
					return errors.New("it failed")
				case <-ctx.Done():
					return context.Cause(ctx)
				}
			}, func(spec *publisher.ExecutorSpec) {
				spec.Grace = 100 * time.Millisecond
				if spec.Patience = 100 * time.Millisecond; stops {
					spec.Patience = time.Hour
				}
			})
			begin(t, s, "r1")
			<-working
			publisher.SetPublishTimeout(f, 50*time.Millisecond)
			mend := w.unwritable()
			if stops {
				require.Error(t, s.stop())
			} else {
				close(leave)
			}
			require.Equal(t, publisher.OutcomeLeft, s.outcome(t, "r1").outcome)
			mend()
			w.requireClaimed(t)
		})
	}
}

// Work that panics or returns an error ends its run: nothing of it is left to claim.
func TestExecutor_WorkThatFails_EndsTheRun(t *testing.T) {
	t.Parallel()
	for name, work := range map[string]func() error{
		"panic": func() error { panic("it broke") },
		"error": func() error { return errors.New("it failed") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			s := serveRuns(t, w.fleet(), func(context.Context, *publisher.Run) error { return work() })
			begin(t, s, "r1")
			require.Equal(t, publisher.OutcomeFailed, s.outcome(t, "r1").outcome)
			require.Equal(t, schema.StatusFailed, w.fold("r1").Head.Status)
		})
	}
}

// requireClaimed claims run r1 with another executor, within twice the silence.
func (w *world) requireClaimed(t *testing.T) {
	t.Helper()
	began := time.Now()
	run := claimed(t, w.fleet(named("exec-2")), publisher.ClaimSpec{})
	require.Equal(t, "r1", run.ID())
	require.EqualValues(t, 2, run.Epoch())
	require.Less(t, time.Since(began), 2*silence)
	t.Logf("claimed after %s", time.Since(began).Round(time.Millisecond))
}

// A server that cannot read its store answers a publish with "last sequence 0", as it would if the run were gone. Its index still has the run.
func TestPublish_ServerCannotReadItsStore_IsNoRegression(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	run := start(t, w.fleet(), "r1")
	require.NoError(t, run.Mark(t.Context(), "one"))
	mend := w.unwritable()
	asked := make(chan struct{}, 64)
	sub, err := w.nc.Subscribe(w.names.EventSubjects(), func(m *nats.Msg) {
		_ = m.Respond([]byte(`{"error":{"code":400,"err_code":10071,"description":"wrong last sequence: 0"},"stream":"` + w.names.EventStream() + `","seq":0}`))
		asked <- struct{}{}
	})
	require.NoError(t, err)
	require.NoError(t, w.nc.Flush())
	marked := make(chan error, 1)
	go func() { marked <- run.Mark(t.Context(), "two") }()
	for range 3 {
		select {
		case <-asked:
		case err := <-marked:
			require.NoError(t, err, "the handle gave up")
		}
	}
	require.NoError(t, sub.Unsubscribe())
	mend()
	require.NoError(t, <-marked)
	require.NoError(t, run.Err())
	require.Equal(t, w.fold("r1"), run.State())
}
