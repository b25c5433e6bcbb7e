package bench

import (
	"context"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// rawStream is a plain JetStream stream on the servers of the fleet's streams, with the same storage, replicas and syncs.
const rawStream = "BENCH_RAW"

// createRaw makes the raw stream; one that is there stays.
func (w *World) createRaw(ctx context.Context) error {
	_, err := w.JS.CreateOrUpdateStream(ctx, jetstream.StreamConfig{
		Name: rawStream, Subjects: []string{"bench.raw.>"}, Storage: jetstream.FileStorage, Replicas: w.Replicas(),
		Discard: jetstream.DiscardNew, AllowDirect: true, Duplicates: 2 * time.Minute, AllowAtomicPublish: true,
	})
	if err != nil {
		return fmt.Errorf("raw stream: %w", err)
	}
	return nil
}

// RawSubject is where a raw writer publishes: one subject each, as a run has.
func RawSubject(writer string) string { return "bench.raw." + writer }
