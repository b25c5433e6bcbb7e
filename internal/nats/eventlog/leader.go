package eventlog

import (
	"context"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/waymarkio/waymark/internal/nats/jsapi"
	"github.com/waymarkio/waymark/schema"
)

// sentinel translates the error of a request to the leader into this package's errors.
func sentinel(err error) error {
	api, ok := errors.AsType[*jetstream.APIError](err)
	switch {
	case errors.Is(err, nats.ErrNoResponders):
		return ErrNoStream
	case errors.Is(err, jsapi.ErrAnswer):
		return fmt.Errorf("leader: %w: %w", ErrAnswer, err)
	case !ok || api.Code == 503:
		return fmt.Errorf("leader: %w: %w", ErrNoAnswer, err)
	case api.Code == 404:
		return fmt.Errorf("leader: %w: %w", ErrNoStream, err)
	default:
		return fmt.Errorf("leader: %w: %w", ErrAnswer, err)
	}
}

// Last returns the run's last record from the stream's leader, false if the leader has none.
func Last(ctx context.Context, js jetstream.JetStream, names schema.Names, run string) (schema.Record, bool, error) {
	return get(ctx, js, names, run, jsapi.GetRequest{LastFor: names.EventSubject(run)})
}

// Next returns the run's first record with a stream sequence of at least from, from the stream's leader; false if the
// leader has none.
func Next(ctx context.Context, js jetstream.JetStream, names schema.Names, run string, from schema.StreamSequence) (schema.Record, bool, error) {
	return get(ctx, js, names, run, jsapi.GetRequest{Seq: max(uint64(from), 1), NextFor: names.EventSubject(run)})
}

// At returns the record of any run at a stream sequence, from the stream's leader; false if there is none.
func At(ctx context.Context, js jetstream.JetStream, names schema.Names, at schema.StreamSequence) (schema.Record, bool, error) {
	return get(ctx, js, names, fmt.Sprintf("at %d", at), jsapi.GetRequest{Seq: uint64(at)})
}

func (d *direct) nextOfLeader(ctx context.Context, names schema.Names, run string, from uint64) (schema.Record, error) {
	rec, found, err := Next(ctx, d.js, names, run, schema.StreamSequence(from))
	if err == nil && !found {
		err = fmt.Errorf("record from %d on is with a replica but not with the leader: %w", from, ErrNoAnswer)
	}
	return rec, err
}

func get(ctx context.Context, js jetstream.JetStream, names schema.Names, run string, what jsapi.GetRequest) (schema.Record, bool, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	m, err := jsapi.Get(ctx, js, names.EventStream(), what)
	switch {
	case errors.Is(err, jetstream.ErrMsgNotFound):
		return schema.Record{}, false, nil
	case err != nil:
		return schema.Record{}, false, readError(names, run, sentinel(err))
	}
	// A malformed header block is left out, as everywhere in a client; the fold judges the record.
	header, err := m.Header()
	if err != nil {
		header = nil
	}
	rec := schema.NewRecord(schema.StreamSequence(m.Sequence), header, m.Data)
	rec.Stored = m.Time.UnixNano()
	rec.Behind, _ = expected(header)
	return rec, true, nil
}
