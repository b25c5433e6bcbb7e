package reader

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/waymarkio/waymark/consumer/internal/logkey"
	"github.com/waymarkio/waymark/internal/base/keyring"
	"github.com/waymarkio/waymark/internal/base/pause"
	"github.com/waymarkio/waymark/internal/nats/eventlog"
	"github.com/waymarkio/waymark/schema"
)

// directTries is how often any replica is asked before the leader, which answers record by record.
const directTries = 3

// maxBackoff bounds the pauses between tries of a read whose server lags.
const maxBackoff = 100 * time.Millisecond

// Want is how much of a run to read.
type Want bool

const (
	// Head is the run's state without its content.
	Head Want = false
	// Content also reads the run's events.
	Content Want = true
)

// Find reads the run without proof. An empty snapshot means that its shard does not show it.
func (rd *Reader) Find(ctx context.Context, run string, want Want) (*Snapshot, error) {
	return rd.read(ctx, rd.shard(run), run, readOptions{content: bool(want)})
}

// Proven reads the run so that every event acknowledged before the call is in the snapshot. It returns [ErrNoRun] if
// a barrier proves that its shard does not have it, and otherwise tries until ctx ends. A run with a checkpoint whose events are
// all gone is damaged, not missing.
func (rd *Reader) Proven(ctx context.Context, run string, want Want) (*Snapshot, error) {
	src := rd.shard(run)
	return rd.Repeat(ctx, run, func() (*Snapshot, error) {
		last, err := rd.lastProven(ctx, src, run)
		if err != nil {
			return nil, err
		}
		r, err := rd.readUpTo(ctx, src, run, want, &last)
		switch {
		case err != nil || !r.Empty():
			return r, err
		case len(r.Lost) > 0:
			return nil, allGone(run, r.Lost[0])
		default:
			return nil, fmt.Errorf("run %s: %w", run, ErrNoRun)
		}
	})
}

// allGone reports that only a run's checkpoint is left, and the lost events.
func allGone(run string, lost schema.Gap) error {
	return schema.Fail(schema.CodeDamaged, "Restore it from a backup. To see the stored data: waymark verify "+run+". To remove it: waymark erase "+run+" --force",
		"all events of run %s are gone from the log, and its checkpoint knows them up to sequence %d of epoch %d", run, lost.To, lost.Epoch).
		With(map[string]any{"gap": lost})
}

// readUpTo reads the run up to an event that is known to be stored, 0 for none. Any replica may answer, another one
// at the next try; finally the leader does.
func (rd *Reader) readUpTo(ctx context.Context, src *Source, run string, want Want, last *schema.Record) (*Snapshot, error) {
	o := readOptions{content: bool(want), last: last}
	if last.Stream == 0 {
		// A log without the run decides, unless segments show that the log itself was lost.
		o.start = leaderCheckpoint
	}
	for try := 1; ; try++ {
		o.fromLeader = try > directTries
		r, err := rd.read(ctx, src, run, o)
		switch {
		case err == nil && r.LogLast >= last.Stream:
			return r, nil
		case err == nil:
			err = fmt.Errorf("run %s read up to %d of %d: %w", run, r.LogLast, last.Stream, eventlog.ErrStale)
		}
		if o.fromLeader || !errors.Is(err, eventlog.ErrStale) {
			return nil, err
		}
	}
}

// Current proves that a snapshot ends with the run's last event at the time of the call. It reports false if there
// are more.
func (rd *Reader) Current(ctx context.Context, r *Snapshot) (bool, error) {
	var last schema.Record
	_, err := rd.Repeat(ctx, r.Run, func() (*Snapshot, error) {
		var err error
		last, err = rd.lastProven(ctx, r.Source, r.Run)
		return nil, err
	})
	return err == nil && last.Stream == r.LogLast, err
}

// lastProven returns the run's last record, an empty one for none, from an answer that includes a bound found after the
// call.
func (rd *Reader) lastProven(ctx context.Context, src *Source, run string) (none schema.Record, err error) {
	least, err := src.Barrier.Wait(ctx)
	if err != nil {
		return none, err
	}
	backoff := staleBackoff
	for {
		answer, err := eventlog.LastOf(ctx, rd.js, src.Store.Names, run, schema.BarrierRun)
		if err != nil {
			return none, err
		}
		if least.in(&answer) {
			return answer.Records[run], nil
		}
		if least.lone && answer.UpTo == 0 {
			// An answer without a message does not show how far the server's log reaches. The leader's answer does.
			if log, err := eventlog.AskLone(ctx, rd.js, src.Store.Names, run); err != nil || log.Only && !log.Holds {
				return none, err
			}
		}
		// This replica lags. Another may answer the next time.
		if err := pause.For(ctx, backoff); err != nil {
			return none, fmt.Errorf("no server shows the log up to %d: %w: %w", least.At, eventlog.ErrStale, err)
		}
		backoff = min(2*backoff, maxBackoff)
	}
}

// Advance reads and folds the log from the last event of a snapshot to a position, and returns the verdict about the
// event there. The verdict has no event if the log has none at the position.
func (rd *Reader) Advance(ctx context.Context, r *Snapshot, to schema.StreamSequence) (last schema.Verdict, err error) {
	backoff := staleBackoff
	for try := 1; ; try++ {
		err := rd.records(ctx, r.Source, r.Run, r.LogLast+1, try > directTries, func(rec schema.Record) error {
			if rec.Stream > to {
				return eventlog.ErrStop
			}
			keys, err := rd.keys.Keys(ctx)
			if err != nil {
				return err
			}
			last = r.Head.Apply(keys, &rec)
			r.LogLast = rec.Stream
			r.tail.add(&rec, true)
			if rec.Stream == to {
				return eventlog.ErrStop
			}
			return nil
		})
		switch {
		case r.LogLast >= to:
			return last, nil
		case err != nil && (errors.Is(err, eventlog.ErrStop) || !transient(err)):
			return schema.Verdict{}, nil
		}
		if perr := pause.For(ctx, backoff); perr != nil {
			return schema.Verdict{}, fmt.Errorf("read back event %d of run %s: %w: %w", to, r.Run, perr, errors.Join(err, eventlog.ErrStale))
		}
		backoff = min(2*backoff, maxBackoff)
	}
}

// Repeat repeats a read until it succeeds or ctx ends.
func (rd *Reader) Repeat(ctx context.Context, run string, try func() (*Snapshot, error)) (r *Snapshot, err error) {
	err = Insist(ctx, "run "+run, func() (err error) {
		r, err = try()
		return err
	}, func(err error) { rd.log.Debug().Err(err).Str(logkey.Run, run).Msg("read repeated") })
	return r, err
}

// Insist retries failures of a lost answer, a missing leader or a lagging replica until ctx ends. again is called
// before each further try, with the last error; about begins the error when ctx ended.
func Insist(ctx context.Context, about string, try func() error, again func(error)) error {
	backoff := staleBackoff
	for {
		err := try()
		if err == nil || !transient(err) {
			return err
		}
		if perr := pause.For(ctx, backoff); perr != nil {
			return fmt.Errorf("%s: %w: %w", about, perr, err)
		}
		again(err)
		backoff = min(2*backoff, maxBackoff)
	}
}

// transient reports whether a failure may pass without intervention.
func transient(err error) bool {
	var d *Damaged
	for _, lasting := range []error{ErrNoRun, ErrStopping, keyring.ErrSigner, context.Canceled} {
		if errors.Is(err, lasting) {
			return false
		}
	}
	var told *schema.ServiceError // an answer of the service
	return !errors.As(err, &d) && !errors.As(err, &told)
}
