package publisher_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/harness/natstest"
	"github.com/waymarkio/waymark/publisher"
)

// payload is about what a boundary of an agent carries.
var payload = strings.Repeat("the quick brown fox ", 80)

func percentile(times []time.Duration, p float64) float64 {
	slices.Sort(times)
	return float64(times[int(float64(len(times)-1)*p)].Microseconds())
}

// BenchmarkBoundary compares one durable boundary with a raw JetStream publish of the same bytes, in turns on the
// same server, everything synced.
func BenchmarkBoundary(b *testing.B) {
	w := newWorld(b, natstest.SyncAlways())
	f := w.fleet()
	run := start(b, f, "r1")
	ctx := b.Context()
	require.NoError(b, run.AddMessage(ctx, user(payload)))
	last, err := w.js.Stream(ctx, w.names.EventStream())
	require.NoError(b, err)
	msg, err := last.GetLastMsgForSubject(ctx, w.names.EventSubject("r1"))
	require.NoError(b, err)
	body := msg.Data
	header := nats.Header{}
	for name, values := range msg.Header {
		if strings.HasPrefix(name, "ce-") {
			header[name] = values
		}
	}
	bare, sdk := make([]time.Duration, 0, b.N), make([]time.Duration, 0, b.N)
	full, fenced := make([]time.Duration, 0, b.N), make([]time.Duration, 0, b.N)
	place := uint64(0)
	for b.Loop() {
		t0 := time.Now()
		_, err := w.js.Publish(ctx, w.names.EventSubject("raw"), body)
		t1 := time.Now()
		require.NoError(b, err)
		bare = append(bare, t1.Sub(t0))
		m := &nats.Msg{Subject: w.names.EventSubject("raw2"), Header: header, Data: body}
		t2 := time.Now()
		_, err = w.js.PublishMsg(ctx, m)
		full = append(full, time.Since(t2))
		require.NoError(b, err)
		c := &nats.Msg{Subject: w.names.EventSubject("raw3"), Header: maps.Clone(header), Data: body}
		id := fmt.Sprintf("raw3.1.%d.01234567", len(fenced))
		t4 := time.Now()
		ack, err := w.js.PublishMsg(ctx, c, jetstream.WithMsgID(id), jetstream.WithExpectLastSequencePerSubject(place))
		fenced = append(fenced, time.Since(t4))
		require.NoError(b, err)
		place = ack.Sequence
		message := user(payload)
		t3 := time.Now()
		err = run.AddMessage(ctx, message)
		sdk = append(sdk, time.Since(t3))
		require.NoError(b, err)
	}
	b.ReportMetric(percentile(bare, 0.5), "raw-p50-us")
	b.ReportMetric(percentile(full, 0.5), "rawheaders-p50-us")
	b.ReportMetric(percentile(fenced, 0.5), "rawcas-p50-us")
	b.ReportMetric(percentile(sdk, 0.5), "sdk-p50-us")
	b.ReportMetric(percentile(sdk, 0.5)/percentile(bare, 0.5), "ratio")
	b.ReportMetric(percentile(sdk, 0.99), "sdk-p99-us")
}

// BenchmarkManyRuns measures durable boundaries a second of many runs in one process, compared with raw publishes
// of as many goroutines.
func BenchmarkManyRuns(b *testing.B) {
	for _, runs := range []int{16, 64, 256} {
		for _, kind := range []string{"raw", "sdk"} {
			b.Run(fmt.Sprintf("%d/%s", runs, kind), func(b *testing.B) {
				w := newWorld(b, natstest.SyncAlways())
				f := w.fleet()
				publish := make([]func() error, runs)
				for i := range publish {
					if kind == "raw" {
						subject := w.names.EventSubject(fmt.Sprintf("r%d", i))
						body := []byte(payload)
						publish[i] = func() error {
							_, err := w.js.Publish(b.Context(), subject, body)
							return err
						}
						continue
					}
					run, err := f.Start(b.Context(), publisher.RunSpec{ID: fmt.Sprintf("r%d", i)})
					require.NoError(b, err)
					publish[i] = func() error { return run.AddMessage(b.Context(), user(payload)) }
				}
				b.ResetTimer()
				var wait sync.WaitGroup
				work := make(chan struct{}, b.N)
				for range b.N {
					work <- struct{}{}
				}
				close(work)
				for _, p := range publish {
					wait.Go(func() {
						for range work {
							if err := p(); err != nil {
								b.Error(err)
								return
							}
						}
					})
				}
				wait.Wait()
				b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "boundaries/s")
			})
		}
	}
}
