package bench

import (
	"context"

	"github.com/nats-io/nats.go/jetstream"
)

// reading is the usage and the storage of a world at a moment.
type reading struct {
	// cpu by kind of process in us: measuring, server, daemon, executor. A measuring process may hold servers and daemons, too.
	cpu map[string]*float64
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

// measures reports whether this process does a part of the measured work. Otherwise it only directs other processes.
func (w *World) measures() bool {
	return w.Spec.Server == Embedded || w.Spec.Daemons == 0 || len(w.executors) == 0
}

// read takes a reading.
func (w *World) read(ctx context.Context) (reading, error) {
	r := reading{cpu: make(map[string]*float64)}
	if w.measures() {
		r.cpu["measuring"] = cpuTime()
	}
	kinds := map[string][]*child{"server": w.servers.children, "executor": w.executors}
	for _, d := range w.daemons {
		if d.child != nil && !d.gone {
			kinds["daemon"] = append(kinds["daemon"], d.child)
		}
	}
	for kind, children := range kinds {
		for i, c := range children {
			a, err := c.tell()
			if err != nil {
				return r, err
			}
			if i > 0 {
				a.CPU = sum(r.cpu[kind], a.CPU)
			}
			r.cpu[kind] = a.CPU
		}
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

// spent is the processor time of a world during the rounds of one side, by kind of process.
type spent struct {
	cpu map[string]float64
	// unknown is true once a kind of process did not report it.
	unknown bool
}

// add adds the processor time that each kind of process used between two readings.
func (s *spent) add(before, after reading) {
	if s.cpu == nil {
		s.cpu = make(map[string]float64)
	}
	for kind, now := range after.cpu {
		if was := before.cpu[kind]; now != nil && was != nil {
			s.cpu[kind] += *now - *was
		} else {
			s.unknown = true
		}
	}
}
