package fold

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/rs/zerolog"

	"github.com/waymarkio/waymark/consumer/internal/logkey"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

// Bounds on the dead letters of one run: a run that floods its log with garbage must neither slow the fold of its
// shard nor push other runs' letters out of their stream. The events themselves stay in the log.
const (
	// LettersOfRun is how many letters of a run are stored within LetterPeriod.
	LettersOfRun = 100
	LetterPeriod = time.Minute
	// letterRuns is how many runs are counted within a period. Later ones share one count, as do subjects without a
	// valid run.
	letterRuns = 4096
)

// droppedLetters counts rejected events without a stored dead letter, and names one of their runs.
type droppedLetters struct {
	n   int64
	run string
}

func (d *droppedLetters) add(n int64, run string) {
	if n > 0 {
		d.n, d.run = d.n+n, run
	}
}

// letters stores the dead letters of a term. Only the folding goroutine uses it, and a new term counts again: letters
// of an uncommitted batch are granted again.
type letters struct {
	dead        *kvstore.DeadLetters
	names       schema.Names
	incarnation string
	stats       *Stats
	now         func() time.Time
	log         zerolog.Logger
	// stored counts the letters by run since a time; dropped are the other rejected events, until they are logged.
	stored  map[string]int
	since   time.Time
	dropped droppedLetters
}

// grant reports whether another letter of a run may be stored.
func (x *letters) grant(run string) bool {
	if now := x.now(); now.Sub(x.since) >= LetterPeriod || x.stored == nil {
		x.stored, x.since = make(map[string]int), now
	}
	if _, known := x.stored[run]; !schema.ValidName(run) || !known && len(x.stored) >= letterRuns {
		run = ""
	}
	if x.stored[run] >= LettersOfRun {
		return false
	}
	x.stored[run]++
	return true
}

// reject makes a dead letter of an event, and a notice to its sender, or counts it if its run has used up its share.
// executor is the run's.
func (x *letters) reject(b *batch, a *message, executor string, rec *schema.Record, reason schema.Reason, detail string) {
	if !x.grant(a.run) {
		b.dropped.add(1, a.run)
		return
	}
	x.log.Warn().Str(logkey.Run, a.run).Uint64(logkey.Position, uint64(rec.Stream)).Str(logkey.Reason, string(reason)).Str("detail", detail).Msg("event rejected")
	b.notices = append(b.notices, refusal(a, executor, reason, detail))
	b.dead = append(b.dead, kvstore.DeadLetter{
		Subject: a.Subject, Run: a.run, EventStream: x.names.EventStream(), Stream: rec.Stream, Incarnation: x.incarnation, Stored: time.Unix(0, a.Record.Stored),
		Reason: reason, Detail: detail, Header: rec.Header, Body: rec.Body,
	})
}

// put stores the dead letters of a batch, all in flight together. The size of a letter never stops the shard.
func (x *letters) put(ctx context.Context, b *batch) error {
	if len(b.dead) == 0 {
		return nil
	}
	var failed error
	for i, err := range x.dead.PutBatch(ctx, b.dead) {
		l := &b.dead[i]
		switch {
		case errors.Is(err, kvstore.ErrTooLarge):
			b.dropped.add(1, l.Run)
		case err != nil:
			failed = cmp.Or(failed, fmt.Errorf("dead letter of run %s: %w", l.Run, err))
		default:
			x.stats.DeadLetters.Add(1)
			if l.Cut > 0 {
				x.log.Warn().Str(logkey.Run, l.Run).Uint64(logkey.Position, uint64(l.Stream)).Int("bytes", l.Cut).
					Msg("dead letter stored without its content, which fits no message")
			}
		}
	}
	return failed
}

// countDropped counts the letters that a batch dropped, once it is committed.
func (x *letters) countDropped(b *batch) {
	x.stats.DeadLettersDropped.Add(b.dropped.n)
	x.dropped.add(b.dropped.n, b.dropped.run)
}

// sayDropped logs the letters dropped since the last log line.
func (x *letters) sayDropped() {
	if x.dropped.n == 0 {
		return
	}
	x.log.Warn().Str(logkey.Run, x.dropped.run).Int64("events", x.dropped.n).
		Str("hint", "the events stay in the log; one of their runs is named: stop the client that publishes them").
		Msg("rejected events not stored as dead letters")
	x.dropped = droppedLetters{}
}
