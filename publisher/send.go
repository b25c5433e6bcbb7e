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

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/waymarkio/waymark/internal/failpoint"
	"github.com/waymarkio/waymark/internal/jsapi"
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

func isFull(e *jetstream.APIError) bool {
	switch e.ErrorCode {
	case jsapi.CodeStorageExceeded, jsapi.CodeInsufficientResources, jsapi.CodeAccountResources:
		return true
	default:
		return jsapi.StreamFull(e)
	}
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
	ack, err := jsapi.DecodeAck(resp)
	if err != nil {
		return answerOf(err)
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
		case api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequence:
			// The number is only in the text.
			_, number, _ := strings.Cut(api.Description, ": ")
			n, bad := strconv.ParseUint(strings.TrimSpace(number), 10, 64)
			a.kind, a.seq = wrongLast, schema.StreamSequence(n)
			if bad != nil {
				a.kind = inFlight
			}
		case api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequenceConstant, api.ErrorCode == jsapi.CodeDuplicateInFlight, api.ErrorCode == jsapi.CodeNotReady:
			a.kind = inFlight
		case api.ErrorCode == jetstream.JSErrCodeStreamMessageExceedsMaximum:
			a.kind = oversized
		case api.ErrorCode == jsapi.CodeStoreFailed, api.Code >= 500:
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
		header[jsapi.HeaderBatch] = ids
		header[jsapi.HeaderBatchSequence] = batchSequences[i]
		member := &nats.Msg{Subject: m.Subject, Header: header, Data: m.Data}
		if i == last {
			header[jsapi.HeaderBatchCommit] = batchSequences[0]
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
	ack, err := jsapi.DecodeAck(resp)
	switch {
	case err != nil:
		return answerOf(err)
	case ack.Batch != id || ack.Count != len(msgs) || ack.Sequence < uint64(len(msgs)):
		return answer{kind: silent, err: fmt.Errorf("answer %.120q does not acknowledge the batch %s of %d", resp.Data, id, len(msgs))}
	}
	return answer{kind: acked, seq: schema.StreamSequence(ack.Sequence)}
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
