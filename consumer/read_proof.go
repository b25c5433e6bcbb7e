package consumer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/waymarkio/waymark/consumer/internal/logkey"
	"github.com/waymarkio/waymark/internal/eventlog"
	"github.com/waymarkio/waymark/internal/keyring"
	"github.com/waymarkio/waymark/internal/pause"
	"github.com/waymarkio/waymark/schema"
)

// directTries is how often any replica is asked before the leader is, which answers record by record.
const directTries = 3

// maxBackoff bounds the pauses between tries of a read that found a server behind.
const maxBackoff = 100 * time.Millisecond

// find reads the run from the first of its shards that has it, without proof. An empty reading says that none showed it.
func (rd *reader) find(ctx context.Context, shards []*shardSource, run string, m mode) (*reading, error) {
	var r *reading
	for _, src := range shards {
		var err error
		if r, err = rd.read(ctx, src, run, m); err != nil {
			return nil, err
		}
		if !r.empty() {
			break
		}
	}
	return r, nil
}

// proven reads the run so that every event acknowledged before the call is in the reading. It returns [ErrNoRun] when
// that is proven, and otherwise tries until ctx ends. A run whose checkpoint is there and whose events are all gone is no run
// that never was: it is damaged.
func (rd *reader) proven(ctx context.Context, shards []*shardSource, run string, m mode) (*reading, error) {
	return rd.repeat(ctx, run, func() (*reading, error) {
		var gone error
		for _, src := range shards {
			last, err := rd.lastProven(ctx, src, run)
			if err != nil {
				return nil, err
			}
			r, err := rd.readUpTo(ctx, src, run, m, last)
			if err != nil || !r.empty() {
				return r, err
			}
			if len(r.lost) > 0 {
				gone = allGone(run, r.lost[0])
			}
		}
		if gone != nil {
			return nil, gone
		}
		return nil, fmt.Errorf("run %s: %w", run, ErrNoRun)
	})
}

// allGone says that nothing is left of a run but its checkpoint, up to where lost says.
func allGone(run string, lost schema.Gap) error {
	e := fail(schema.CodeDamaged, "Restore it from a backup; waymark verify "+schema.ShellWord(run)+" shows what is stored.",
		"all events of run %s are gone from the log, and its checkpoint knows them up to sequence %d of epoch %d", run, lost.To, lost.Epoch)
	if details, err := json.Marshal(map[string]any{"gap": lost}); err == nil {
		e.Details = details
	}
	return e
}

// readUpTo reads the run to an event that is known to be stored, 0 for none. Any replica may answer, and another one the
// next time; in the end the leader does.
func (rd *reader) readUpTo(ctx context.Context, src *shardSource, run string, m mode, last schema.StreamSequence) (*reading, error) {
	// A log without the run ends the question, unless segments show that the log itself was lost.
	m.fresh = last == 0
	for try := 1; ; try++ {
		m.walk = try > directTries
		r, err := rd.read(ctx, src, run, m)
		switch {
		case err == nil && r.logLast >= last:
			return r, nil
		case err == nil:
			err = fmt.Errorf("run %s read up to %d of %d: %w", run, r.logLast, last, ErrStale)
		}
		if m.walk || !errors.Is(err, ErrStale) {
			return nil, err
		}
		rd.stats.StaleAnswers.Add(1)
	}
}

// current proves that a reading ends with the run's last event as of the call. It reports false when there is more.
func (rd *reader) current(ctx context.Context, r *reading) (bool, error) {
	last := schema.StreamSequence(0)
	_, err := rd.repeat(ctx, r.run, func() (*reading, error) {
		var err error
		last, err = rd.lastProven(ctx, r.src, r.run)
		return nil, err
	})
	return err == nil && last == r.logLast, err
}

// lastProven returns the stream sequence of the run's last event, 0 for none, from an answer that reaches a bound found after the call.
func (rd *reader) lastProven(ctx context.Context, src *shardSource, run string) (schema.StreamSequence, error) {
	least, err := src.barrier.wait(ctx)
	if err != nil {
		return 0, err
	}
	backoff := staleBackoff
	for {
		answer, err := eventlog.LastOf(ctx, rd.js, src.store.Names, run, schema.BarrierRun)
		if err != nil {
			return 0, err
		}
		if least.in(&answer) {
			return answer.Records[run].Stream, nil
		}
		if least.lone && answer.UpTo == 0 {
			// An answer without a message does not say how far the server's log reaches. The leader's does.
			if log, err := eventlog.AskLone(ctx, rd.js, src.store.Names, run); err != nil || log.Only && !log.Holds {
				return 0, err
			}
		}
		// This replica is behind. Any may answer the next time.
		rd.stats.StaleAnswers.Add(1)
		if err := pause.For(ctx, backoff); err != nil {
			return 0, fmt.Errorf("no server shows the log up to %d: %w: %w", least.at, ErrStale, err)
		}
		backoff = min(2*backoff, maxBackoff)
	}
}

// repeat insists on a reading.
func (rd *reader) repeat(ctx context.Context, run string, try func() (*reading, error)) (r *reading, err error) {
	err = insist(ctx, "run "+run, func() (err error) {
		r, err = try()
		return err
	}, func(err error) { rd.log.Debug().Err(err).Str(logkey.Run, run).Msg("read repeated") })
	return r, err
}

// insist tries until ctx ends what a lost answer, a missing leader or a replica that is behind can make fail. again is called before
// each further try, with what the last one came to; about is what an error begins with that ctx ended.
func insist(ctx context.Context, about string, try func() error, again func(error)) error {
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

// transient reports whether a failure may pass by itself.
func transient(err error) bool {
	var d *damaged
	for _, lasting := range []error{ErrNoRun, ErrStopping, errTooLarge, errBusy, ErrClientGone, keyring.ErrSigner, context.Canceled} {
		if errors.Is(err, lasting) {
			return false
		}
	}
	var told *schema.ServiceError // an answer
	return !errors.As(err, &d) && !errors.As(err, &told)
}
