package consumer

import (
	"context"
	"sync"
	"time"

	"github.com/waymarkio/waymark/consumer/internal/control"
	"github.com/waymarkio/waymark/consumer/reader"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

// Feed puts entries into a roster that no watch feeds: the tests decide what a replica knows and when.
func (r *Roster) Feed(entries ...schema.Live) {
	for i := range entries {
		l := entries[i]
		shard := schema.ShardOf(l.Run, len(r.stores))
		r.mu.RLock()
		next := schema.Revision(1)
		if old := r.find(l.Run); old != nil {
			next = old.revision + 1
		}
		r.mu.RUnlock()
		r.apply(shard, &kvstore.LiveEntry{Run: l.Run, Live: &l, Revision: next})
	}
}

// HandClock is a clock that goes when a test moves it.
type HandClock struct {
	mu  sync.Mutex
	now time.Time
}

// NewHandClock returns a clock that stands at a time.
func NewHandClock(at time.Time) *HandClock { return &HandClock{now: at} }

// Now is the time at which it stands.
func (c *HandClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

// Forward moves it.
func (c *HandClock) Forward(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// Write writes a control event that no request would ask for.
func Write(ctx context.Context, s *Service, run string, data schema.Data) error {
	_, err := s.writer.write(ctx, run, "", sender{}, func(context.Context, *reader.Snapshot) (decision, error) { return decision{data: data}, nil })
	return err
}

// Advance stores a control event without asking the fold before, and returns what a request is told of it.
func Advance(ctx context.Context, s *Service, run string, data schema.Data) error {
	r, err := s.routing.proven(ctx, run, reader.Head)
	if err != nil {
		return err
	}
	e, err := s.writer.event(r, "", &decision{data: data})
	if err != nil {
		return err
	}
	at, err := control.Publish(ctx, s.js, r.Source.Store, e, r.LogLast)
	if err != nil {
		return err
	}
	_, err = s.writer.advance(ctx, r, e, at)
	return err
}
