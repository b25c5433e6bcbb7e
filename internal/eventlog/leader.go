package eventlog

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/waymarkio/waymark/schema"
)

// leaderAnswer is the answer of STREAM.MSG.GET.
type leaderAnswer struct {
	Message *struct {
		Subject string `json:"subject"`
		Seq     uint64 `json:"seq"`
		Header  []byte `json:"hdrs"`
		Data    []byte `json:"data"`
		// Time is when the server stored it.
		Time time.Time `json:"time"`
	} `json:"message"`
	Error *apiError `json:"error"`
}

// apiError is the server's own error.
type apiError struct {
	Code        int    `json:"code"`
	ErrCode     int    `json:"err_code"`
	Description string `json:"description"`
}

// sentinel is the error as this package's callers know it.
func (e *apiError) sentinel() error {
	switch e.Code {
	case 503:
		return fmt.Errorf("leader: %s: %w", e.Description, ErrNoAnswer)
	case 404:
		return fmt.Errorf("leader: %s: %w", e.Description, ErrNoStream)
	default:
		return fmt.Errorf("leader: %d %s: %w", e.ErrCode, e.Description, ErrAnswer)
	}
}

// codeNoMessage is the server's error code for a message that is not there.
const codeNoMessage = 10037

// Last returns the run's last record from the stream's leader, false when the leader knows none.
func Last(ctx context.Context, js jetstream.JetStream, names schema.Names, run string) (schema.Record, bool, error) {
	return get(ctx, js, names, run, getRequest{LastFor: names.EventSubject(run)})
}

// Next returns the run's first record with a stream sequence of at least from, from the stream's leader; false when the
// leader knows none.
func Next(ctx context.Context, js jetstream.JetStream, names schema.Names, run string, from schema.StreamSequence) (schema.Record, bool, error) {
	return get(ctx, js, names, run, getRequest{Seq: max(uint64(from), 1), NextFor: names.EventSubject(run)})
}

// At returns the record at a stream sequence, of whichever run, from the stream's leader; false when there is none.
func At(ctx context.Context, js jetstream.JetStream, names schema.Names, at schema.StreamSequence) (schema.Record, bool, error) {
	return get(ctx, js, names, fmt.Sprintf("at %d", at), getRequest{Seq: uint64(at)})
}

func (d *direct) nextOfLeader(ctx context.Context, names schema.Names, run string, from uint64) (schema.Record, error) {
	rec, found, err := Next(ctx, d.js, names, run, schema.StreamSequence(from))
	if err == nil && !found {
		err = fmt.Errorf("record from %d on is with a replica but not with the leader: %w", from, ErrNoAnswer)
	}
	return rec, err
}

func get(ctx context.Context, js jetstream.JetStream, names schema.Names, run string, req getRequest) (schema.Record, bool, error) {
	body, err := json.Marshal(req)
	if err != nil {
		return schema.Record{}, false, err
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	m, err := js.Conn().RequestWithContext(ctx, APISubject(js, "STREAM.MSG.GET."+names.EventStream()), body)
	switch {
	case errors.Is(err, nats.ErrNoResponders):
		return schema.Record{}, false, readError(names, run, ErrNoStream)
	case err != nil:
		return schema.Record{}, false, readError(names, run, fmt.Errorf("leader: %w: %w", ErrNoAnswer, err))
	}
	var answer leaderAnswer
	if err := json.Unmarshal(m.Data, &answer); err != nil {
		return schema.Record{}, false, readError(names, run, fmt.Errorf("leader: %w: %w", ErrAnswer, err))
	}
	if e := answer.Error; e != nil {
		if e.ErrCode == codeNoMessage {
			return schema.Record{}, false, nil
		}
		return schema.Record{}, false, readError(names, run, e.sentinel())
	}
	if answer.Message == nil || answer.Message.Seq == 0 {
		return schema.Record{}, false, readError(names, run, fmt.Errorf("leader: neither message nor error: %w", ErrAnswer))
	}
	var header nats.Header
	if len(answer.Message.Header) > 0 {
		// What is no header block is left out, as it is everywhere a client meets it; the fold says what it thinks of it.
		if h, err := nats.DecodeHeadersMsg(answer.Message.Header); err == nil {
			header = h
		}
	}
	rec := schema.NewRecord(schema.StreamSequence(answer.Message.Seq), header, answer.Message.Data)
	rec.Stored = answer.Message.Time.UnixNano()
	rec.Behind, _ = expected(header)
	return rec, true, nil
}
