package consumer

import (
	"context"
	"hash/maphash"
	"time"

	"github.com/waymarkio/waymark/internal/eventlog"
	"github.com/waymarkio/waymark/internal/pause"
	"github.com/waymarkio/waymark/schema"
)

const (
	// walkStep messages are looked at, then walkPause: about 50,000 a second at most.
	walkStep  = 1000
	walkPause = 20 * time.Millisecond
	// walkRetry is the pause before a walk that broke off begins again.
	walkRetry = 5 * time.Second
	// seenBits is the size of the memory of a walk: with a million runs one in nine is looked at for nothing.
	seenBits = 1 << 23
)

// seen remembers names, and sometimes ones that it never saw.
type seen struct {
	bits []uint64
	seed maphash.Seed
}

func newSeen() *seen { return &seen{bits: make([]uint64, seenBits/64), seed: maphash.MakeSeed()} }

// before reports whether the name was there before, and remembers it.
func (s *seen) before(name string) bool {
	h := maphash.String(s.seed, name) % seenBits
	was := s.bits[h/64]&(1<<(h%64)) != 0
	s.bits[h/64] |= 1 << (h % 64)
	return was
}

// walk looks through the log for runs of which something may be purged: from the mark on when a reign begins, and from
// what did not fit into the queue once there is room.
func (j *janitor) walk(ctx context.Context) error {
	for {
		from, ok := j.walkFrom()
		if !ok {
			if err := pause.For(ctx, j.cfg.SweepEvery); err != nil {
				return err
			}
			continue
		}
		err := j.walkOnce(ctx, from)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			j.log.Debug().Err(err).Msg("walk through the log broke off, beginning again")
			if err := pause.For(ctx, walkRetry); err != nil {
				return err
			}
			continue
		}
		j.mu.Lock()
		j.walking = 0
		j.mu.Unlock()
	}
}

// walkFrom says where a walk is to begin, false when there is none to do.
func (j *janitor) walkFrom() (schema.StreamSequence, bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.walking == 0 && j.queue.skipped != 0 && j.queue.len() < maxPurgeQueue/2 {
		j.walking, j.queue.skipped = j.queue.skipped, 0
	}
	return j.walking, j.walking != 0
}

// walkOnce looks at the messages of the log from a place to its end, which may be behind what is folded: an earlier reign
// may have sealed what is folded once more. A run that it meets once has nothing before that
// message, or it was looked at: ended runs have one message each in the log, and cost nothing here.
func (j *janitor) walkOnce(ctx context.Context, from schema.StreamSequence) error {
	usage, err := j.shard.Usage(ctx)
	if err != nil || from >= usage.Last {
		return err
	}
	follower, err := eventlog.Follow(ctx, j.nc, j.js, j.names, eventlog.FollowFrom{Stream: from, HeadersOnly: true})
	if err != nil {
		return err
	}
	defer follower.Close(ctx, j.js)
	if follower.Pending() == 0 {
		return nil
	}
	met := newSeen()
	for n := 1; ; n++ {
		a, err := follower.Next(ctx)
		if err != nil {
			return err
		}
		run := j.names.RunOfSubject(a.Subject)
		if schema.ValidName(run) && met.before(run) {
			if err := j.found(ctx, run, from, a.Record.Stream); err != nil {
				return err
			}
		}
		if a.Record.Stream >= usage.Last || a.Pending == 0 {
			return nil
		}
		if n%walkStep == 0 {
			if err := pause.For(ctx, walkPause); err != nil {
				return err
			}
		}
	}
}

// found puts a run into the queue, and waits for room.
func (j *janitor) found(ctx context.Context, run string, from, at schema.StreamSequence) error {
	for {
		j.mu.Lock()
		ok := j.queue.found(run, from, at, j.now())
		j.mu.Unlock()
		if ok {
			return nil
		}
		select {
		case <-j.wake:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
