package bench

import (
	"context"

	"github.com/nats-io/nats.go/jetstream"
)

// reading is what a world has used and stored up to a moment.
type reading struct {
	// used by kind of process: measuring, server, daemon, executor. A measuring process may hold servers and daemons, too.
	used map[string]usage
	fold foldCounts
	// log, segments and checkpoints as JetStream counts them.
	log, segments, checkpoints stored
}

// stored is what streams hold: messages and bytes now, and their last sequences added up. Sequences of buckets begin at a clock's
// microseconds, so that the sum of a few is beyond what a float64 counts one by one.
type stored struct {
	messages, bytes float64
	sequences       uint64
}

// puts is the number of messages that were put since before.
func (s stored) puts(before stored) float64 { return float64(s.sequences - before.sequences) }

// putBytes is the size of all that was put since before; nil when something was taken out meanwhile.
func (s stored) putBytes(before stored) *float64 {
	if s.messages-before.messages != s.puts(before) {
		return nil
	}
	b := s.bytes - before.bytes
	return &b
}

// meanPutBytes is the same for a bucket that keeps only the latest of a key: what is gone counts as what is there
// does on average.
func (s stored) meanPutBytes(before stored) *float64 {
	if exact := s.putBytes(before); exact != nil {
		return exact
	}
	if s.messages == 0 {
		return nil
	}
	b := s.bytes / s.messages * s.puts(before)
	return &b
}

// read takes a reading.
func (w *World) read(ctx context.Context) (reading, error) {
	r := reading{used: map[string]usage{"measuring": ownUsage()}}
	merge := func(kind string, u usage) {
		if old, ok := r.used[kind]; ok {
			u = usage{CPU: sum(old.CPU, u.CPU), Resident: sum(old.Resident, u.Resident), PeakResident: sum(old.PeakResident, u.PeakResident), Written: sum(old.Written, u.Written)}
		}
		r.used[kind] = u
	}
	for _, c := range w.servers.children {
		a, err := c.tell()
		if err != nil {
			return r, err
		}
		merge("server", a.Usage)
	}
	for _, d := range w.daemons {
		counts, u, err := d.tell()
		if err != nil {
			return r, err
		}
		r.fold.add(counts)
		if d.child != nil && !d.gone {
			merge("daemon", u)
		}
	}
	for _, c := range w.executors {
		a, err := c.tell()
		if err != nil {
			return r, err
		}
		merge("executor", a.Usage)
	}
	for _, shard := range w.shards {
		for stream, into := range map[string]*stored{
			shard.Names.EventStream():              &r.log,
			"KV_" + shard.Names.SegmentBucket():    &r.segments,
			"KV_" + shard.Names.CheckpointBucket(): &r.checkpoints,
		} {
			if err := into.add(ctx, w.JS, stream); err != nil {
				return r, err
			}
		}
	}
	return r, nil
}

func (s *stored) add(ctx context.Context, js jetstream.JetStream, name string) error {
	stream, err := js.Stream(ctx, name)
	if err != nil {
		return err
	}
	state := stream.CachedInfo().State
	s.messages += float64(state.Msgs)
	s.bytes += float64(state.Bytes)
	s.sequences += state.LastSeq
	return nil
}

// sum is that of two figures; nil where one was not told.
func sum(a, b *float64) *float64 {
	if a == nil || b == nil {
		return nil
	}
	s := *a + *b
	return &s
}

// spent is what was used in a world while our rounds ran, by kind of process.
type spent struct {
	cpu map[string]float64
	// written is nil once a process told nothing.
	written *float64
	// known is false once a kind of process told nothing.
	known bool
}

// add puts the usage between two readings on top.
func (s *spent) add(before, after reading) {
	if s.cpu == nil {
		s.cpu, s.known, s.written = make(map[string]float64), true, new(float64)
	}
	written := new(float64)
	for kind, now := range after.used {
		if d := minus(now.CPU, before.used[kind].CPU); d != nil {
			s.cpu[kind] += *d
		} else {
			s.known = false
		}
		written = sum(written, minus(now.Written, before.used[kind].Written))
	}
	s.written = sum(s.written, written)
}
