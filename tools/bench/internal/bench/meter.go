package bench

import (
	"context"

	"github.com/nats-io/nats.go/jetstream"
)

// reading is the usage and the storage of a world at a moment.
type reading struct {
	// used by kind of process: measuring, server, daemon, executor. A measuring process may hold servers and daemons, too.
	used map[string]usage
	fold foldCounts
	// log, segments and checkpoints as JetStream counts them.
	log, segments, checkpoints stored
}

// stored are the messages and bytes of streams, and the sum of their last sequences. Sequences of buckets begin at a
// clock's microseconds: a sum of a few is too large for a float64 to count single messages.
type stored struct {
	messages, bytes float64
	sequences       uint64
}

// puts returns the number of messages put since before.
func (s stored) puts(before stored) float64 { return float64(s.sequences - before.sequences) }

// putBytes returns the size of the messages put since before; nil if messages were removed meanwhile.
func (s stored) putBytes(before stored) *float64 {
	if s.messages-before.messages != s.puts(before) {
		return nil
	}
	b := s.bytes - before.bytes
	return &b
}

// meanPutBytes returns the same for a bucket that keeps only the latest value of a key: a removed message counts with
// the average size.
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

// sum returns the sum of two figures; nil if one is unknown.
func sum(a, b *float64) *float64 {
	if a == nil || b == nil {
		return nil
	}
	s := *a + *b
	return &s
}

// spent is the usage of a world during our rounds, by kind of process.
type spent struct {
	cpu map[string]float64
	// written is nil once a process did not report it.
	written *float64
	// known is false once a kind of process did not report its usage.
	known bool
}

// add adds the usage between two readings.
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
