package bench

import (
	"context"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// rawStream is a plain JetStream stream on the servers of the fleet's streams, with the same storage, replicas and syncs.
const rawStream = "BENCH_RAW"

// createRaw makes the raw stream, unless it exists.
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

// RawSubject is the subject of a raw writer: one each, like a run's.
func RawSubject(writer string) string { return "bench.raw." + writer }
