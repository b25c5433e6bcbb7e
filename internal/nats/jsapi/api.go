package jsapi

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Subject is a subject of the JetStream API for this client: with its prefix or domain. The constructors of package
// jetstream set one of them, or none.
func Subject(js jetstream.JetStream, rest string) string {
	opts := js.Options()
	switch {
	case opts.APIPrefix != "":
		return strings.TrimSuffix(opts.APIPrefix, ".") + "." + rest
	case opts.Domain != "":
		return "$JS." + opts.Domain + ".API." + rest
	default:
		return jetstream.DefaultAPIPrefix + rest
	}
}

// Request asks the API and decodes the answer into a struct. The server's own error is a [jetstream.APIError]. A body of nil is left out.
func Request[T any](ctx context.Context, js jetstream.JetStream, subject string, body any) (T, error) {
	var request []byte
	if body != nil {
		var err error
		if request, err = json.Marshal(body); err != nil {
			var none T
			return none, err
		}
	}
	msg, err := js.Conn().RequestWithContext(ctx, Subject(js, subject), request)
	if err != nil {
		var none T
		return none, err
	}
	return Decode[T](msg.Data)
}

// ErrAnswer is returned for an answer in a form this version does not know. It quotes the answer.
var ErrAnswer = errors.New("unexpected answer of JetStream")

// Decode reads an answer of the server into a struct. The server's own error is a [jetstream.APIError].
func Decode[T any](answer []byte) (T, error) {
	var reply struct {
		Error  *jetstream.APIError `json:"error"`
		Answer T                   `json:",embed"`
	}
	// Subjects that are no valid text look alike in an answer; they must not spoil the others.
	if err := json.Unmarshal(answer, &reply, jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true)); err != nil {
		return reply.Answer, fmt.Errorf("%w: %.80q: %w", ErrAnswer, answer, err)
	}
	if reply.Error != nil {
		return reply.Answer, reply.Error
	}
	return reply.Answer, nil
}

// GetRequest is the body of a get, direct or from the leader.
type GetRequest struct {
	Seq       uint64   `json:"seq,omitzero"`
	NextFor   string   `json:"next_by_subj,omitzero"`
	LastFor   string   `json:"last_by_subj,omitzero"`
	MultiLast []string `json:"multi_last,omitzero"`
	Batch     int      `json:"batch,omitzero"`
	MaxBytes  int      `json:"max_bytes,omitzero"`
	// Start replaces the sequence: from this time on.
	Start time.Time `json:"start_time,omitzero"`
}

// Message is a message from its stream's leader.
type Message struct {
	Sequence uint64 `json:"seq"`
	Subject  string `json:"subject"`
	// RawHeader may be anything; see [Message.Header].
	RawHeader []byte `json:"hdrs"`
	Data      []byte `json:"data"`
	// Time is when the server stored it.
	Time time.Time `json:"time"`
}

// Header decodes the message's headers, nil for none. A malformed header block is an error.
func (m *Message) Header() (nats.Header, error) {
	if len(m.RawHeader) == 0 {
		return nil, nil
	}
	return nats.DecodeHeadersMsg(m.RawHeader)
}

// Get asks a stream's leader for one message. If there is none, the error is [jetstream.ErrMsgNotFound].
func Get(ctx context.Context, js jetstream.JetStream, stream string, what GetRequest) (*Message, error) {
	answer, err := Request[struct {
		Message *Message `json:"message"`
	}](ctx, js, "STREAM.MSG.GET."+stream, what)
	if err == nil && (answer.Message == nil || answer.Message.Sequence == 0) {
		err = fmt.Errorf("%w: neither message nor error", ErrAnswer)
	}
	return answer.Message, err
}

// PurgeRequest selects the messages of one subject to remove. Without Below and Keep it removes all.
type PurgeRequest struct {
	Filter string `json:"filter"`
	// Below removes only messages below a sequence.
	Below uint64 `json:"seq,omitzero"`
	// Keep is how many of the last ones stay.
	Keep uint64 `json:"keep,omitzero"`
}

// Purge removes messages of one subject from a stream, and returns their number.
func Purge(ctx context.Context, js jetstream.JetStream, stream string, what PurgeRequest) (uint64, error) {
	answer, err := Request[struct {
		Purged uint64 `json:"purged"`
	}](ctx, js, "STREAM.PURGE."+stream, what)
	return answer.Purged, err
}

// DeleteRequest names a message to delete. The server overwrites it unless NoErase is set.
type DeleteRequest struct {
	Seq     uint64 `json:"seq"`
	NoErase bool   `json:"no_erase,omitzero"`
}

// Delete deletes a message of a stream. One that is not there is no error.
func Delete(ctx context.Context, js jetstream.JetStream, stream string, what DeleteRequest) error {
	_, err := Request[struct{}](ctx, js, "STREAM.MSG.DELETE."+stream, what)
	if told, ok := errors.AsType[*jetstream.APIError](err); ok && (told.ErrorCode == CodeSequenceNotFound ||
		told.ErrorCode == CodeDeleteFailed && told.Description == "no message found") { // before the stream's first one
		return nil
	}
	return err
}

// Ack is the server's answer to a publish.
type Ack struct {
	Stream    string `json:"stream"`
	Sequence  uint64 `json:"seq"`
	Duplicate bool   `json:"duplicate"`
}

// DecodeAck reads the answer to a publish. Anything but an acknowledgement is an error.
func DecodeAck(msg *nats.Msg) (Ack, error) {
	if len(msg.Data) == 0 && msg.Header.Get(headerStatus) == StatusNoResponders {
		return Ack{}, nats.ErrNoResponders
	}
	ack, err := Decode[Ack](msg.Data)
	if err == nil && (ack.Stream == "" || ack.Sequence == 0) {
		err = fmt.Errorf("%w: %.80q is no acknowledgement", ErrAnswer, msg.Data)
	}
	return ack, err
}

// Headers of an atomic batch: its id, the number of the member, and the flag of the last one.
const (
	HeaderBatch         = "Nats-Batch-Id"
	HeaderBatchSequence = "Nats-Batch-Sequence"
	HeaderBatchCommit   = "Nats-Batch-Commit"
)
