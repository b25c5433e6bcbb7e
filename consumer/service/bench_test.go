package service_test

import (
	"flag"
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/consumer/fold"
	"github.com/waymarkio/waymark/consumer/service"
	"github.com/waymarkio/waymark/internal/eventlog"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

// benchWorld is a service and a run of n events, sealed by a fold worker that then stops, unless sealed is false.
func benchWorld(b *testing.B, n, payload int, sealed bool) (*serviceWorld, *writer) {
	b.Helper()
	w := newServiceWorld(b, func(f *kvstore.FleetConfig, _ *service.Config) { f.QuotaBytes = 2 << 30 })
	x := w.long("run-1", n, payload)
	if sealed {
		_, stop := w.Fold(fold.Config{})
		w.awaitSealed(x, n-n/10-1024)
		require.Eventually(b, func() bool {
			c, _, err := w.Shard.Checkpoints.GetFresh(b.Context(), "run-1")
			return err == nil && c.Counts.Events == int64(n+1)
		}, stored, 10*time.Millisecond)
		stop()
	}
	b.ReportAllocs()
	b.ResetTimer()
	return w, x
}

// once reports whether each benchmark runs once, with -benchtime 1x, which only shows that it works.
func once() bool { return flag.Lookup("test.benchtime").Value.String() == "1x" }

// BenchmarkHead reads a run's head, barrier included, by the length of the run; raw is one publish and one get of the
// last message, the minimum for any proof.
func BenchmarkHead(b *testing.B) {
	lengths := []int{100, 10_000, 100_000}
	if once() {
		lengths = []int{100, 2000}
	}
	for _, n := range lengths {
		b.Run(fmt.Sprintf("get/events=%d", n), func(b *testing.B) {
			w, _ := benchWorld(b, n, 200, true)
			for b.Loop() {
				w.get("run-1", schema.ViewHead)
			}
		})
		b.Run(fmt.Sprintf("recover/events=%d", n), func(b *testing.B) {
			w, _ := benchWorld(b, n, 200, true)
			i := 0
			for b.Loop() {
				i++
				request := takeover("executor-2", fmt.Sprintf("req-%d", i))
				request.View = schema.ViewHead
				reply, _ := w.recover("run-1", request)
				if i%64 == 0 { // as the fold worker would
					b.StopTimer()
					c, rev, err := w.Shard.Checkpoints.GetFresh(b.Context(), "run-1")
					require.NoError(b, err)
					c.TailEvents += 64
					c.Head = reply.Head
					_, err = w.Shard.Checkpoints.Put(b.Context(), c, rev)
					require.NoError(b, err)
					b.StartTimer()
				}
			}
		})
	}
	b.Run("raw", func(b *testing.B) {
		w, _ := benchWorld(b, 100, 200, false)
		for b.Loop() {
			_, err := w.JS.Publish(b.Context(), w.Names.EventSubject("raw"), nil)
			require.NoError(b, err)
			_, _, err = eventlog.Last(b.Context(), w.JS, w.Names, "run-1")
			require.NoError(b, err)
		}
	})
}

// BenchmarkEvents reads all of a run's events, in bytes of payload per second; raw fetches the same messages from the
// log with an ordered consumer and ignores them.
func BenchmarkEvents(b *testing.B) {
	const payload = 2 << 10
	n := 20_000
	if once() {
		n = 2000
	}
	size := func(b *testing.B, w *serviceWorld) {
		b.Helper()
		total, events := int64(0), 0
		require.NoError(b, eventlog.Read(b.Context(), w.JS, w.Names, "run-1", 0, func(r schema.Record) error {
			total += int64(r.Size())
			events++
			return nil
		}))
		require.Equal(b, n+1, events)
		b.SetBytes(total)
	}
	// No case but the sealed one changes the log, so the others share one.
	open, _ := benchWorld(b, n, payload, false)
	for _, sealed := range []bool{true, false} {
		b.Run(fmt.Sprintf("sealed=%v", sealed), func(b *testing.B) {
			w := open
			if sealed {
				w, _ = benchWorld(b, n, payload, true)
			}
			size(b, w)
			b.ReportAllocs()
			b.ResetTimer()
			first := time.Duration(0)
			for b.Loop() {
				start, come := time.Now(), false
				_, err := w.askWith(schema.VerbGet, "run-1", schema.GetRequest{View: schema.ViewEvents}, func(m *nats.Msg) {
					if kind := m.Header.Get(schema.HeaderKind); !come && (kind == schema.KindSegment || kind == schema.KindFrames) {
						come = true
						first += time.Since(start)
					}
				})
				require.NoError(b, err)
			}
			b.ReportMetric(float64(first.Microseconds())/float64(b.N)/1000, "ms/first-byte")
		})
	}
	b.Run("raw", func(b *testing.B) {
		w := open
		size(b, w)
		b.ReportAllocs()
		b.ResetTimer()
		for b.Loop() {
			sub, err := w.NC.SubscribeSync(w.NC.NewRespInbox())
			require.NoError(b, err)
			js, err := w.NC.JetStream()
			require.NoError(b, err)
			cons, err := js.SubscribeSync(w.Names.EventSubject("run-1"), nats.OrderedConsumer())
			require.NoError(b, err)
			for range n + 1 {
				_, err := cons.NextMsg(time.Minute)
				require.NoError(b, err)
			}
			require.NoError(b, cons.Unsubscribe())
			require.NoError(b, sub.Unsubscribe())
		}
	})
	b.Run("eventlog", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			size(b, open)
		}
	})
}
