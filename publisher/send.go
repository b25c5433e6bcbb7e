package publisher

import (
	"context"
	cryptorand "crypto/rand"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/waymarkio/waymark/internal/failpoint"
	"github.com/waymarkio/waymark/internal/pause"
	"github.com/waymarkio/waymark/internal/permissions"
	"github.com/waymarkio/waymark/schema"
)

// answerKind is what a server's answer to one publish means.
type answerKind int

const (
	// acked: the message is durable.
	acked answerKind = iota + 1
	// wrongLast: the subject's last message is another than expected.
	wrongLast
	// inFlight: another publish to the subject is under way.
	inFlight
	// full: a limit of the stream or account is reached.
	full
	// oversized: the message is larger than server or stream allow.
	oversized
	// notSent: the message certainly did not reach a stream.
	notSent
	// silent: no answer; the message may be stored or not.
	silent
	// denying: the server does not permit the publish. The message was not stored.
	denying
	// deaf: the server does not permit to be answered. The message may be stored or not.
	deaf
	// refused: the server will not take this message; trying again is of no use.
	refused
)

type answer struct {
	kind answerKind
	// seq is the stream sequence of an acked message, or the subject's last of a wrongLast.
	seq schema.StreamSequence
	// duplicate: the server had the message id already.
	duplicate bool
	err       error
}

// Error codes of the server that this package acts on.
const (
	codeWrongLast         = 10071
	codeWrongLastConstant = 10164
	codeDuplicateInFlight = 10158
	codeNotReady          = 10163
	codeStoreFailed       = 10077
	codeStorageResources  = 10047
	codeInsufficient      = 10023
	codeAccountResources  = 10002
	codeTooLarge          = 10054
)

func isFull(e *jetstream.APIError) bool {
	switch e.ErrorCode {
	case codeStorageResources, codeInsufficient, codeAccountResources:
		return true
	case codeStoreFailed:
		return strings.Contains(e.Description, "maximum ") && strings.Contains(e.Description, "exceeded")
	default:
		return false
	}
}

// pubAck is the server's answer to a publish.
type pubAck struct {
	Stream    string              `json:"stream"`
	Sequence  uint64              `json:"seq"`
	Duplicate bool                `json:"duplicate"`
	Error     *jetstream.APIError `json:"error"`
}

// send publishes one message and waits for the answer of this one try.
func (f *Fleet) send(ctx context.Context, m *nats.Msg) answer {
	if err := failpoint.Hit(ctx, failpoint.BeforePublish); err != nil {
		return answer{kind: silent, err: err}
	}
	resp, err := f.request(ctx, m)
	if err == nil {
		err = failpoint.Hit(ctx, failpoint.AfterPublish)
	}
	if err != nil {
		return answerOf(err)
	}
	var ack pubAck
	if err := json.Unmarshal(resp.Data, &ack); err != nil {
		return answer{kind: silent, err: fmt.Errorf("answer %.80q: %w", resp.Data, err)}
	}
	switch {
	case ack.Error != nil:
		return answerOf(ack.Error)
	case ack.Sequence == 0 || ack.Stream == "":
		return answer{kind: silent, err: fmt.Errorf("answer %.80q is no acknowledgement", resp.Data)}
	}
	return answer{kind: acked, seq: schema.StreamSequence(ack.Sequence), duplicate: ack.Duplicate}
}

// request publishes the message and returns the answer to this one try, at the latest after the try timeout.
func (f *Fleet) request(ctx context.Context, m *nats.Msg) (*nats.Msg, error) {
	try, cancel := context.WithTimeout(ctx, f.cfg.TryTimeout)
	defer cancel()
	inbox := f.nc.Opts.InboxPrefix
	if inbox == "" {
		inbox = strings.TrimSuffix(nats.InboxPrefix, ".")
	}
	if f.nc.IsClosed() {
		return nil, &notPublishedError{nats.ErrConnectionClosed}
	}
	refusals := f.denied.Tail()
	resp, err := f.nc.RequestMsgWithContext(try, m)
	for err != nil {
		select {
		case <-refusals.Heard():
			if e := f.refusedBy(refusals.Take(), m.Subject, inbox); e != nil {
				return nil, e
			}
		default:
			if errors.Is(err, nats.ErrConnectionClosed) {
				return nil, err // closed while the answer was waited for: the message may be stored
			}
			return nil, notPublished(err)
		}
	}
	return resp, nil
}

// refusedBy returns the refusal as the error of a request on subject that is answered below inbox, nil when it is of
// something else.
func (*Fleet) refusedBy(e *permissions.Error, subject, inbox string) error {
	if e.Publish && e.Subject == subject || !e.Publish && strings.HasPrefix(e.Subject, inbox) {
		return fmt.Errorf("%w: %w", ErrNotPermitted, e)
	}
	return nil
}

// notPublishedError is an error of a publish itself: nothing of the message left this process. The same error of nats.go
// says nothing of the kind where an answer is waited for.
type notPublishedError struct{ err error }

func (e *notPublishedError) Error() string { return e.err.Error() }
func (e *notPublishedError) Unwrap() error { return e.err }

// notPublished wraps the error of a publish if it says that nothing was written, which an error of the socket does not.
func notPublished(err error) error {
	for _, before := range []error{nats.ErrReconnectBufExceeded, nats.ErrConnectionClosed, nats.ErrConnectionDraining, nats.ErrInvalidConnection} {
		if errors.Is(err, before) {
			return &notPublishedError{err}
		}
	}
	return err
}

// answerOf translates what NATS says into what it means for the message.
func answerOf(err error) answer {
	if api, ok := errors.AsType[*jetstream.APIError](err); ok {
		a := answer{kind: refused, err: err}
		switch {
		case isFull(api):
			a.kind = full
		case api.ErrorCode == codeWrongLast:
			// The number is only in the text.
			_, number, _ := strings.Cut(api.Description, ": ")
			n, bad := strconv.ParseUint(strings.TrimSpace(number), 10, 64)
			a.kind, a.seq = wrongLast, schema.StreamSequence(n)
			if bad != nil {
				a.kind = inFlight
			}
		case api.ErrorCode == codeWrongLastConstant, api.ErrorCode == codeDuplicateInFlight, api.ErrorCode == codeNotReady:
			a.kind = inFlight
		case api.ErrorCode == codeTooLarge:
			a.kind = oversized
		case api.ErrorCode == codeStoreFailed, api.Code >= 500:
			// The store failed at an unknown point, or a leader is on its way.
			a.kind = silent
		}
		return a
	}
	if e, ok := errors.AsType[*permissions.Error](err); ok {
		if e.Publish {
			return answer{kind: denying, err: err}
		}
		return answer{kind: deaf, err: err}
	}
	switch {
	case errors.Is(err, nats.ErrMaxPayload):
		return answer{kind: oversized, err: err}
	case errors.Is(err, nats.ErrNoResponders):
		return answer{kind: notSent, err: err}
	}
	if _, ok := errors.AsType[*notPublishedError](err); ok {
		return answer{kind: notSent, err: err}
	}
	return answer{kind: silent, err: err}
}

// Headers of an atomic batch.
const (
	headerBatch         = "Nats-Batch-Id"
	headerBatchSequence = "Nats-Batch-Sequence"
	headerBatchCommit   = "Nats-Batch-Commit"
)

// batchSequences are the numbers of a batch's members as header values, made once.
var batchSequences = func() (list [maxWindowEvents][]string) {
	for i := range list {
		list[i] = []string{strconv.Itoa(i + 1)}
	}
	return list
}()

// sendBatch publishes messages, which it leaves as they are, as one atomic batch. Only the last is answered: a batch
// of which anything did not arrive is refused there. Only an acked answer is final: after any other each message must be
// resolved on its own. seq is the stream sequence of the last.
func (f *Fleet) sendBatch(ctx context.Context, msgs []*nats.Msg) answer {
	id := cryptorand.Text()
	ids := []string{id}
	last := len(msgs) - 1
	end := &nats.Msg{}
	for i, m := range msgs {
		header := make(nats.Header, len(m.Header)+3)
		maps.Copy(header, m.Header)
		header[headerBatch] = ids
		header[headerBatchSequence] = batchSequences[i]
		member := &nats.Msg{Subject: m.Subject, Header: header, Data: m.Data}
		if i == last {
			header[headerBatchCommit] = batchSequences[0]
			end = member
			break
		}
		if err := f.nc.PublishMsg(member); err != nil {
			return answerOf(&notPublishedError{err}) // without its end the server drops the batch
		}
	}
	resp, err := f.request(ctx, end)
	if err != nil {
		return answerOf(err)
	}
	var ack batchAck
	if err := json.Unmarshal(resp.Data, &ack); err != nil {
		return answer{kind: silent, err: fmt.Errorf("answer %.80q: %w", resp.Data, err)}
	}
	switch {
	case ack.Error != nil:
		return answerOf(ack.Error)
	case ack.Batch != id || ack.Count != len(msgs) || ack.Sequence < uint64(len(msgs)):
		return answer{kind: silent, err: fmt.Errorf("answer %.120q does not acknowledge the batch %s of %d", resp.Data, id, len(msgs))}
	}
	return answer{kind: acked, seq: schema.StreamSequence(ack.Sequence)}
}

// batchAck is the server's answer to the last message of a batch.
type batchAck struct {
	pubAck
	Batch string `json:"batch"`
	Count int    `json:"count"`
}

// backoff waits between tries, with jitter, longer each time.
type backoff struct {
	next, most time.Duration
}

func (f *Fleet) backoff() *backoff { return &backoff{next: f.cfg.Backoff, most: f.cfg.MaxBackoff} }

// wait returns false when ctx ends first.
func (b *backoff) wait(ctx context.Context) bool {
	d := b.next/2 + rand.N(b.next/2+1) //nolint:gosec // jitter
	b.next = min(2*b.next, b.most)
	return pause.For(ctx, d) == nil
}

// insist does something again while what it needs is unavailable, as long as ctx lasts; most bounds each try.
func (f *Fleet) insist(ctx context.Context, most time.Duration, do func(try context.Context) error) error {
	wait := f.backoff()
	for {
		try, cancel := context.WithTimeout(ctx, most)
		err := do(try)
		cancel()
		if err == nil || !errors.Is(err, ErrUnavailable) || !wait.wait(ctx) {
			return err
		}
	}
}
