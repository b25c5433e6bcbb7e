//go:build unix

package nemesis_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/harness/nemesis"
	"github.com/waymarkio/waymark/internal/harness/testbin"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

const (
	// partitionLasts is how long each partition is there.
	partitionLasts = 25 * time.Second
	// cutOffFor is how long an executor reaches no server.
	cutOffFor = 15 * time.Second
	// noReads and noWrites are bounds from measurements; pings find a silent connection within fifteen seconds, and a
	// leader is elected in nine.
	noReads, noWrites = 30 * time.Second, 15 * time.Second
)

// It silently isolates servers: two partitions in a row while a run is read all the time on the side of the majority,
// and an executor that reaches no server for fifteen seconds.
func TestPartition_RoutesAreSilent_ReadsAndWritesReturn(t *testing.T) {
	t.Parallel() // it mostly waits
	if testing.Short() {
		t.Skip("short: real servers are cut off from each other")
	}
	rounds := 5
	if !testbin.Whole() {
		t.Logf("sample: 1 of %d rounds", rounds)
		rounds = 1
	}
	rounds = int(number(t, "WAYMARK_CHAOS_ROUNDS", uint64(rounds))) //nolint:gosec // small
	s := scaleOf(3)
	s.executors = 0
	w := newWorld(t, s, number(t, "WAYMARK_CHAOS_SEED", 1))
	js, err := jetstream.New(w.dial("nemesis", 0))
	require.NoError(t, err)
	w.js = js
	r := &returning{world: w, storm: &storm{world: w}}
	r.run, err = r.sdk("executor").Start(t.Context(), publisher.RunSpec{ID: "returning"})
	require.NoError(t, err)
	r.reader = r.sdk("reader")
	var reads, writes []time.Duration
	for range rounds {
		reads = append(reads, r.partitions(t.Context()))
		writes = append(writes, r.cutOff(t.Context()))
	}
	slices.Sort(reads)
	slices.Sort(writes)
	t.Logf("%d rounds: no read succeeded for %s in the median, %s at most; an executor that was cut off for %s wrote again %s later in the median, %s at most",
		rounds, reads[rounds/2].Round(100*time.Millisecond), reads[rounds-1].Round(100*time.Millisecond), cutOffFor,
		writes[rounds/2].Round(100*time.Millisecond), writes[rounds-1].Round(100*time.Millisecond))
	require.Less(t, reads[rounds-1], noReads)
	require.Less(t, writes[rounds-1], noWrites)
}

type returning struct {
	*world
	storm  *storm
	reader *publisher.Fleet
	run    *publisher.Run
}

// sdk connects as an executor does that gives the SDK a URL.
func (r *returning) sdk(name string) (fleet *publisher.Fleet) {
	r.tb.Helper()
	r.eventually("the fleet is not there", func() (err error) {
		fleet, err = publisher.Connect(r.tb.Context(), publisher.Config{
			URL: r.urls(name, 0), Options: []nats.Option{nats.UserInfo(r.user, r.password)}, Executor: name, Agent: nemesis.Agent,
			RequestTimeout: 2 * time.Second,
		})
		return err
	})
	r.tb.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		_ = fleet.Close(ctx) // the servers may be gone
	})
	return fleet
}

// partitions cuts the leader off, and then one of the others that is not the leader now. It returns the longest time without a read.
func (r *returning) partitions(ctx context.Context) (longest time.Duration) {
	r.tb.Helper()
	for _, leads := range []bool{true, false} {
		r.eventually("the servers do not catch up", func() error { return r.replicated(ctx, r.js) })
		victim, err := r.storm.leader(ctx)
		r.must(err)
		if !leads {
			victim = (victim + 1) % len(r.nodes)
		}
		held := nemesis.Weather{Hold: [2]bool{true, true}}
		for i := range r.nodes {
			if i != victim {
				r.routes[i][victim].Set(held)
				r.routes[victim][i].Set(held)
			}
		}
		for _, links := range r.links {
			links[victim].Set(held)
		}
		begun, last := time.Now(), time.Now()
		for healed := false; ; {
			if !healed && time.Since(begun) > partitionLasts {
				healed = true
				r.must(r.heal())
			}
			if _, err := r.reader.Head(ctx, r.run.ID()); err == nil {
				longest, last = max(longest, time.Since(last)), time.Now()
				if time.Since(begun) > partitionLasts+10*time.Second {
					break
				}
			}
			require.Less(r.tb, time.Since(last), patience, "no read succeeds")
			pause(ctx, probeEvery)
		}
		r.tb.Logf("leader cut off %t: no read for %s", leads, longest.Round(100*time.Millisecond))
	}
	return longest
}

// cutOff lets nothing through between the executor and the servers for a while. It returns how long after that the
// executor wrote.
func (r *returning) cutOff(ctx context.Context) time.Duration {
	r.tb.Helper()
	r.eventually("the servers do not catch up", func() error { return r.replicated(ctx, r.js) })
	for _, link := range r.links["executor"] {
		link.Set(nemesis.Weather{Hold: [2]bool{true, true}})
	}
	done := make(chan error, 1)
	go func() {
		for {
			err := r.run.AddMessage(ctx, said(schema.RoleUser, strings.Repeat("x", 100)))
			for errors.Is(err, publisher.ErrUnresolved) && ctx.Err() == nil {
				err = r.run.Resolve(ctx)
			}
			if err == nil || !errors.Is(err, publisher.ErrUnavailable) {
				done <- err
				return
			}
		}
	}()
	pause(ctx, cutOffFor)
	healed := time.Now()
	r.must(r.heal())
	err := <-done
	require.NoError(r.tb, err, "%s behind the end of the cut", time.Since(healed))
	r.tb.Logf("cut off for %s: written %s later", cutOffFor, time.Since(healed).Round(100*time.Millisecond))
	return time.Since(healed)
}
