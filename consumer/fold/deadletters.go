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
	// LetterBurst is how many bytes of a run's dead letters may be stored at once.
	LetterBurst = 4 << 20
	// LetterRate is how many further bytes are allowed per second.
	LetterRate = 4 << 10
	// letterCost is the smallest size that a letter counts as: its description is larger than most garbage.
	letterCost = 4 << 10
	// letterRuns is how many runs have their own quota. The others share one, and so do subjects without a valid run.
	letterRuns = 1024
)

// letterQuota decides which dead letters are stored. Only the folding goroutine uses it, and a new term starts with a
// fresh one: letters of an uncommitted batch are granted again.
type letterQuota struct {
	runs   map[string]*letterBucket
	shared letterBucket
	swept  time.Time
}

// letterBucket is the recently stored size, in bytes, as of a time.
type letterBucket struct {
	used int
	at   time.Time
}

// settle subtracts the allowance for the time since.
func (b *letterBucket) settle(now time.Time) {
	passed := now.Sub(b.at)
	if allowed := int(passed.Seconds() * LetterRate); allowed < b.used {
		// The rest below a byte counts the next time; a clock that went back allows nothing.
		allowed = max(allowed, 0)
		b.used -= allowed
		b.at = b.at.Add(time.Duration(allowed) * time.Second / LetterRate)
		return
	}
	b.used, b.at = 0, now
}

// grant reports whether a letter of a run may be stored. A run without recent letters may store one of any size.
func (q *letterQuota) grant(run string, size int, now time.Time) bool {
	b := q.of(run, now)
	b.settle(now)
	size = max(size, letterCost)
	if b.used > 0 && b.used+size > LetterBurst {
		return false
	}
	b.used += size
	return true
}

func (q *letterQuota) of(run string, now time.Time) *letterBucket {
	if !schema.ValidName(run) {
		return &q.shared
	}
	if b, ok := q.runs[run]; ok {
		return b
	}
	if len(q.runs) >= letterRuns && now.Sub(q.swept) >= time.Second {
		q.swept = now
		for id, b := range q.runs {
			if b.settle(now); b.used == 0 {
				delete(q.runs, id)
			}
		}
	}
	if len(q.runs) >= letterRuns {
		return &q.shared
	}
	if q.runs == nil {
		q.runs = make(map[string]*letterBucket)
	}
	b := &letterBucket{}
	q.runs[run] = b
	return b
}

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

// letters stores the dead letters of a term. Only the folding goroutine uses it.
type letters struct {
	dead        *kvstore.DeadLetters
	names       schema.Names
	incarnation string
	stats       *Stats
	now         func() time.Time
	log         zerolog.Logger
	// quota decides which rejected events are stored; dropped are the others, until they are logged.
	quota   letterQuota
	dropped droppedLetters
}

// reject makes a dead letter of an event, or counts it if its run has used up its share.
func (x *letters) reject(b *batch, a *message, rec *schema.Record, reason schema.Reason, detail string) {
	size := len(rec.Body)
	for name, values := range rec.Header {
		for _, v := range values {
			size += len(name) + len(v)
		}
	}
	if !x.quota.grant(a.run, size, x.now()) {
		b.dropped.add(1, a.run)
		return
	}
	x.log.Warn().Str(logkey.Run, a.run).Uint64(logkey.Position, uint64(rec.Stream)).Str(logkey.Reason, string(reason)).Str("detail", detail).Msg("event rejected")
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
