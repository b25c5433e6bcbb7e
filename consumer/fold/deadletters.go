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

// Bounds on the dead letters of one run: a run that floods its log with garbage must neither slow the fold of its shard nor push the
// letters of others out of their stream. The events themselves stay in the log.
const (
	// LetterBurst is how many bytes of dead letters of a run are stored at once.
	LetterBurst = 4 << 20
	// LetterRate is how many bytes of them are stored in each second after.
	LetterRate = 4 << 10
	// letterCost is what a letter counts at least: what describes it is larger than most garbage.
	letterCost = 4 << 10
	// letterRuns is how many runs have a quota of their own. The others share one, and so do subjects that name no run.
	letterRuns = 1024
)

// letterQuota says which dead letters are stored. It is the folding goroutine's, and forgotten with the term: what a batch was granted that
// was not committed is granted again.
type letterQuota struct {
	runs   map[string]*letterBucket
	shared letterBucket
	swept  time.Time
}

// letterBucket is what was stored of late, in bytes, as of a time.
type letterBucket struct {
	used int
	at   time.Time
}

// settle takes off what time allows.
func (b *letterBucket) settle(now time.Time) {
	passed := now.Sub(b.at)
	if allowed := int(passed.Seconds() * LetterRate); allowed < b.used {
		// What is below a byte counts the next time; a clock that went back allows nothing.
		allowed = max(allowed, 0)
		b.used -= allowed
		b.at = b.at.Add(time.Duration(allowed) * time.Second / LetterRate)
		return
	}
	b.used, b.at = 0, now
}

// grant reports whether a letter of a run may be stored. A run that has used nothing of late may store one of any size.
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

// droppedLetters counts rejected events that are not stored as dead letters, and names one of their runs.
type droppedLetters struct {
	n   int64
	run string
}

func (d *droppedLetters) add(n int64, run string) {
	if n > 0 {
		d.n, d.run = d.n+n, run
	}
}

// letters stores the dead letters of a term. It is the folding goroutine's.
type letters struct {
	dead        *kvstore.DeadLetters
	names       schema.Names
	incarnation string
	stats       *Stats
	now         func() time.Time
	log         zerolog.Logger
	// quota says which rejected events are stored; dropped are those that are not, until it is logged.
	quota   letterQuota
	dropped droppedLetters
}

// reject makes a dead letter of an event, or counts it where its run has had its share of them.
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

// put stores the dead letters of a batch, all in flight together. Its size never makes a letter stop the shard.
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

// countDropped counts what a batch, once it is committed, has left out.
func (x *letters) countDropped(b *batch) {
	x.stats.DeadLettersDropped.Add(b.dropped.n)
	x.dropped.add(b.dropped.n, b.dropped.run)
}

// sayDropped logs what was left out since it was last said.
func (x *letters) sayDropped() {
	if x.dropped.n == 0 {
		return
	}
	x.log.Warn().Str(logkey.Run, x.dropped.run).Int64("events", x.dropped.n).
		Str("hint", "the events stay in the log; one run that they are of is named: stop what publishes them").
		Msg("rejected events not stored as dead letters")
	x.dropped = droppedLetters{}
}
