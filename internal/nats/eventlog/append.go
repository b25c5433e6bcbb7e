package eventlog

import (
	"context"
	"errors"
	"strconv"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/waymarkio/waymark/internal/nats/access"
	"github.com/waymarkio/waymark/internal/nats/jsapi"
	"github.com/waymarkio/waymark/schema"
)

// Outcome is the meaning of the server's answer to one append.
type Outcome int

const (
	// Stored means: the message is durable.
	Stored Outcome = iota + 1
	// Outdated means: the run's last message is not the expected one.
	Outdated
	// Contended means: the run's last message is not the expected one, or another publish to the run is in progress;
	// the server does not distinguish them.
	Contended
	// InFlight means: a message with the same id is being stored, or the leader is not ready to compare.
	InFlight
	// Full means: a limit of the stream or account is reached.
	Full
	// Oversized means: the message is larger than server or stream allow.
	Oversized
	// Unsent means: the message certainly did not reach a stream.
	Unsent
	// Unanswered means: the message may be stored or not.
	Unanswered
	// Denied means: the server does not permit the publish. The message was not stored.
	Denied
	// AnswerDenied means: the server does not permit the answer. The message may be stored or not.
	AnswerDenied
	// Refused means: the server will never accept this message; do not try again.
	Refused
)

// Appended is the answer to one append.
type Appended struct {
	Outcome Outcome
	// Stream is the stream sequence of a [Stored] message; for an [Outdated] message it is that of the run's last
	// message.
	Stream schema.StreamSequence
	// Duplicate: the server already had the message id.
	Duplicate bool
	// Err is nil when the message is stored.
	Err error
}

// Request publishes a message and returns the server's answer, like RequestMsgWithContext of a connection.
type Request func(ctx context.Context, m *nats.Msg) (*nats.Msg, error)

// Message returns an event as the message that [Append] stores.
func Message(names schema.Names, e *schema.Event) *nats.Msg {
	header, body := e.Encode()
	msg := &nats.Msg{Subject: names.EventSubject(e.Subject), Header: header, Data: body}
	msg.Header[jetstream.MsgIDHeader] = []string{e.ID}
	return msg
}

// Expect makes the server store a message only after last, by compare-and-set on its subject; 0 is a subject without
// messages.
func Expect(m *nats.Msg, last schema.StreamSequence) {
	m.Header[jetstream.ExpectedLastSubjSeqHeader] = []string{strconv.FormatUint(uint64(last), 10)}
}

// Append stores a message after the run's last message, by compare-and-set, in one try until ctx ends.
func Append(ctx context.Context, request Request, m *nats.Msg, last schema.StreamSequence) Appended {
	Expect(m, last)
	answer, err := request(ctx, m)
	if err != nil {
		return outcomeOf(err)
	}
	ack, err := jsapi.DecodeAck(answer)
	if err != nil {
		return outcomeOf(err)
	}
	return Appended{Outcome: Stored, Stream: schema.StreamSequence(ack.Sequence), Duplicate: ack.Duplicate}
}

// ResourcesExhausted reports whether the server refused a message because of a limit of its stream, of the account,
// or of the storage.
func ResourcesExhausted(err error) bool {
	api, ok := errors.AsType[*jetstream.APIError](err)
	if !ok {
		return false
	}
	switch api.ErrorCode {
	case jsapi.CodeStorageExceeded, jsapi.CodeInsufficientResources, jsapi.CodeAccountResources:
		return true
	default:
		return jsapi.StreamFull(err)
	}
}

// outcomeOf translates a NATS error into its meaning for the message.
func outcomeOf(err error) Appended {
	a := Appended{Outcome: Unanswered, Err: err}
	if api, ok := errors.AsType[*jetstream.APIError](err); ok {
		a.Outcome = Refused
		switch {
		case ResourcesExhausted(api):
			a.Outcome = Full
		case api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequence:
			// The number is only in the text.
			_, number, _ := strings.Cut(api.Description, ": ")
			n, bad := strconv.ParseUint(strings.TrimSpace(number), 10, 64)
			a.Outcome, a.Stream = Outdated, schema.StreamSequence(n)
			if bad != nil {
				a.Outcome = Contended
			}
		case api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequenceConstant:
			a.Outcome = Contended
		case api.ErrorCode == jsapi.CodeDuplicateInFlight, api.ErrorCode == jsapi.CodeNotReady:
			a.Outcome = InFlight
		case api.ErrorCode == jetstream.JSErrCodeStreamMessageExceedsMaximum:
			a.Outcome = Oversized
		case api.ErrorCode == jsapi.CodeStoreFailed, api.Code >= 500:
			// The store failed at an unknown point, or a leader is being elected.
			a.Outcome = Unanswered
		}
		return a
	}
	refusal, denied := errors.AsType[*access.Refusal](err)
	_, unsent := errors.AsType[*jsapi.UnsentError](err)
	switch {
	case denied && refusal.Publish:
		a.Outcome = Denied
	case denied:
		a.Outcome = AnswerDenied
	case errors.Is(err, nats.ErrMaxPayload):
		a.Outcome = Oversized
	case errors.Is(err, nats.ErrNoResponders), unsent:
		a.Outcome = Unsent
	}
	return a
}
