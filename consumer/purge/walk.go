package purge

import (
	"context"
	"hash/maphash"
	"time"

	"github.com/waymarkio/waymark/internal/base/pause"
	"github.com/waymarkio/waymark/internal/nats/eventlog"
	"github.com/waymarkio/waymark/schema"
)

const (
	// walkStep messages are read, then walkPause follows: about 50,000 a second at most.
	walkStep  = 1000
	walkPause = 20 * time.Millisecond
	// walkRetry is the pause before a failed walk starts over.
	walkRetry = 5 * time.Second
	// seenBits is the size of a walk's memory: with a million runs, one in nine is checked needlessly.
	seenBits = 1 << 23
)

// seen remembers names, with some false positives.
type seen struct {
	bits []uint64
	seed maphash.Seed
}

func newSeen() *seen { return &seen{bits: make([]uint64, seenBits/64), seed: maphash.MakeSeed()} }

// before reports whether the name was seen before, and remembers it.
func (s *seen) before(name string) bool {
	h := maphash.String(s.seed, name) % seenBits
	was := s.bits[h/64]&(1<<(h%64)) != 0
	s.bits[h/64] |= 1 << (h % 64)
	return was
}

// walk searches the log for runs to purge: from the cursor when a term begins, and from the first skipped sequence
// once the queue has room.
func (p *Purger) walk(ctx context.Context) error {
	for {
		from, ok := p.walkFrom()
		if !ok {
			if err := pause.For(ctx, p.cfg.Every); err != nil {
				return err
			}
			continue
		}
		err := p.walkOnce(ctx, from)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			p.deps.Log.Debug().Err(err).Msg("walk through the log broke off, beginning again")
			if err := pause.For(ctx, walkRetry); err != nil {
				return err
			}
			continue
		}
		p.mu.Lock()
		p.walking = 0
		p.mu.Unlock()
	}
}

// walkFrom returns where a walk must begin, false if none is needed.
func (p *Purger) walkFrom() (schema.StreamSequence, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.walking == 0 && p.queue.skipped != 0 && p.queue.len() < maxQueue/2 {
		p.walking, p.queue.skipped = p.queue.skipped, 0
	}
	return p.walking, p.walking != 0
}

// walkOnce reads the log from a position to its end, which may be after the folded position: an earlier term may have
// sealed events that are folded again. A run found once has no unchecked event before that message: ended runs have
// one message each in the log, and cost nothing here.
func (p *Purger) walkOnce(ctx context.Context, from schema.StreamSequence) error {
	usage, err := p.deps.Shard.Usage(ctx)
	if err != nil || from >= usage.Last {
		return err
	}
	follower, err := eventlog.Follow(ctx, p.deps.Conn, p.deps.JS, p.deps.Shard.Names, eventlog.FollowFrom{Stream: from, HeadersOnly: true})
	if err != nil {
		return err
	}
	defer follower.Close(ctx, p.deps.JS)
	if follower.Pending() == 0 {
		return nil
	}
	met := newSeen()
	for n := 1; ; n++ {
		a, err := follower.Next(ctx)
		if err != nil {
			return err
		}
		run := p.deps.Shard.Names.RunOfSubject(a.Subject)
		if schema.ValidName(run) && met.before(run) {
			if err := p.found(ctx, run, from, a.Record.Stream); err != nil {
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
func (p *Purger) found(ctx context.Context, run string, from, at schema.StreamSequence) error {
	for {
		p.mu.Lock()
		ok := p.queue.found(run, from, at, p.deps.Now())
		p.mu.Unlock()
		if ok {
			return nil
		}
		select {
		case <-p.wake:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
