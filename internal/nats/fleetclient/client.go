package fleetclient

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go"

	"github.com/waymarkio/waymark/internal/base/pause"
	"github.com/waymarkio/waymark/internal/nats/access"
	"github.com/waymarkio/waymark/internal/nats/jsapi"
	"github.com/waymarkio/waymark/schema"
)

// repliesUnpacked bounds the unpacked replies that wait to be consumed: at most 8 MiB, mostly less than 1 MiB.
const repliesUnpacked = 2

// repliesHeld is the number of replies that wait to be consumed: more than an answer has.
const repliesHeld = 4096

const (
	// servicePatience is how long a request waits for a daemon to start.
	servicePatience = 2 * time.Second
	// replyPatience is the longest silence within an answer of several replies.
	replyPatience = 10 * time.Second
)

// maxBroken is the number of answers that may break off before the request fails.
const maxBroken = 4

// Replies assembles the numbered replies to one request.
type Replies struct {
	// next is the number of the next reply; answered says that the answer has come.
	next     int
	answered bool
	// parts are those of the answer so far.
	parts []byte
	// Answer receives the answer, Piece the content before it: the frames of records, or an unexpected kind.
	Answer func(body []byte) error
	Piece  func(kind string, frames []byte) error
}

// reply is one reply. The frames of a segment are already unpacked, or err says why not.
type reply struct {
	*nats.Msg
	frames []byte
	err    error
}

// unpack prepares a reply: the work that can be done while another one is consumed.
func unpack(m *nats.Msg) reply {
	r := reply{Msg: m, frames: m.Data}
	if m.Header.Get(schema.HeaderKind) == schema.KindSegment && m.Header.Get(schema.HeaderErrorCode) == "" {
		_, r.frames, r.err = schema.DecodeSegment(m.Data)
	}
	return r
}

// take consumes one reply. done says that it was the last.
func (a *Replies) take(m reply) (done bool, err error) {
	if err := errorOf(m.Msg); err != nil {
		return true, err
	}
	text, kind := m.Header.Get(schema.HeaderReply), m.Header.Get(schema.HeaderKind)
	if text == "" && kind == "" && a.next == 1 {
		// A daemon may omit the numbers if there is only one reply.
		return true, a.Answer(m.Data)
	}
	number, err := strconv.Atoi(text)
	switch {
	case err != nil:
		return true, fmt.Errorf("%w: reply number %.20q", ErrBadAnswer, text)
	case number < a.next:
		return false, nil // sent twice
	case number > a.next:
		return true, fmt.Errorf("%w: reply %d came instead of %d", errBroken, number, a.next)
	case a.answered && kind == schema.KindAnswer, !a.answered && kind == schema.KindEnd:
		return true, fmt.Errorf("%w: reply %d is of kind %.20q", ErrBadAnswer, number, kind)
	}
	a.next++
	switch kind {
	case schema.KindEnd:
		return true, nil
	case schema.KindPart:
		if a.answered || len(a.parts)+len(m.Data) > schema.MaxStateAnswer {
			return true, fmt.Errorf("%w: reply %d is a part of an answer that is over, or too large", ErrBadAnswer, number)
		}
		a.parts = append(a.parts, m.Data...)
		return false, nil
	case schema.KindAnswer:
		a.answered = true
		if a.parts == nil {
			return false, a.Answer(m.Data)
		}
		return false, a.Answer(append(a.parts, m.Data...))
	}
	if m.err != nil {
		return true, fmt.Errorf("%w: %w", ErrBadAnswer, m.err)
	}
	return false, a.Piece(kind, m.frames)
}

// errBroken: the answer broke off or has a gap. The request may be sent again.
var errBroken = errors.New("the answer broke off")

// ErrorOf returns the error in a reply, nil for none: a [schema.ServiceError], or [ErrBadAnswer].
func ErrorOf(m *nats.Msg) error {
	code := m.Header.Get(schema.HeaderErrorCode)
	if code == "" {
		return nil
	}
	e := new(schema.ServiceError)
	if err := json.Unmarshal(m.Data, e); err != nil || e.Code == "" {
		return fmt.Errorf("%w: error %s: %s", ErrBadAnswer, code, m.Header.Get(schema.HeaderError))
	}
	return e
}

// errorOf is ErrorOf, with [ErrUnavailable] and [ErrNoService] for the errors that another try may resolve.
func errorOf(m *nats.Msg) error {
	if len(m.Data) == 0 && m.Header.Get("Status") == "503" {
		return ErrNoService
	}
	err := ErrorOf(m)
	code := m.Header.Get(schema.HeaderErrorCode)
	e, readable := err.(*schema.ServiceError) //nolint:errorlint // ErrorOf does not wrap it
	switch {
	case readable && (e.Code == schema.CodeUnavailable || e.Code == schema.CodeOverloaded):
		return fmt.Errorf("%w: %w", ErrUnavailable, e)
	case err != nil && !readable && (code == "503" || code == "429"):
		return fmt.Errorf("%w: %s", ErrUnavailable, m.Header.Get(schema.HeaderError))
	}
	return err
}

// Client asks the recovery service of one fleet.
type Client struct {
	Conn  *nats.Conn
	Fleet string
	// Timeout bounds the wait for the first reply, and the time for repeating requests that no daemon can serve now.
	Timeout time.Duration
	// Backoff is the pause before the second try, MaxBackoff the longest.
	Backoff, MaxBackoff time.Duration
	// Refusals receives the server's permission errors on the connection.
	Refusals *access.Watch
	// Translate turns the daemon's own error into one for the caller's users.
	Translate func(*schema.ServiceError) error
}

// Ask sends a request until it has a complete answer. begin is called before each try and creates the consumer of the
// answer. If a request that changes something was sent, [ErrUnavailable] comes with [ErrUnresolved].
func (c *Client) Ask(ctx context.Context, verb, run string, request any, begin func() *Replies) error {
	sent := false
	err := c.askUntil(ctx, verb, run, request, begin, &sent)
	if sent && schema.Changes(verb) && errors.Is(err, ErrUnavailable) {
		return fmt.Errorf("%w: %w", ErrUnresolved, err)
	}
	return err
}

// askUntil is Ask; sent becomes true when a try was sent.
func (c *Client) askUntil(ctx context.Context, verb, run string, request any, begin func() *Replies, sent *bool) error {
	body, err := json.Marshal(request)
	if err != nil {
		return fmt.Errorf("%s: %w", verb, err)
	}
	started, broken := time.Now(), 0
	wait := pause.Backoff{Next: c.Backoff, Most: c.MaxBackoff}
	for {
		err := c.try(ctx, schema.ServiceSubject(verb, c.Fleet, run), body, begin(), sent)
		if err == nil {
			return nil
		}
		if e, ok := err.(*schema.ServiceError); ok { //nolint:errorlint // from the daemon, and not wrapped
			err = c.Translate(e)
		}
		what := verb
		if run != "" {
			what += " of run " + run
		}
		err = fmt.Errorf("%s: %w", what, err)
		waited := time.Since(started)
		switch {
		case ctx.Err() != nil:
			return err
		case errors.Is(err, ErrNoService):
			if waited > servicePatience {
				return fmt.Errorf("%w for fleet %s: start one with: waymark serve", err, c.Fleet)
			}
		case errors.Is(err, errBroken):
			// The answer had begun: its deadline is one of progress, not of total time.
			if broken++; broken >= maxBroken {
				return fmt.Errorf("%w: %w", ErrUnavailable, err)
			}
		case !errors.Is(err, ErrUnavailable), waited > c.Timeout:
			return err
		}
		if !wait.Wait(ctx) {
			return err
		}
	}
}

// try sends a request once and consumes its answer. sent becomes true once it may have left this process.
func (c *Client) try(ctx context.Context, subject string, body []byte, a *Replies, sent *bool) error {
	room := make(chan *nats.Msg, repliesHeld)
	inbox := c.Conn.NewRespInbox()
	refusals := c.Refusals.Tail()
	sub, err := c.Conn.ChanSubscribe(inbox, room)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	defer func() { _ = sub.Unsubscribe() }() // a closed connection has no subscription to end
	// An answer in flight when the connection broke never comes: ask again at once.
	lost := c.Conn.StatusChanged(nats.RECONNECTING, nats.CLOSED)
	defer c.Conn.RemoveStatusListener(lost)
	if err := c.Conn.PublishRequest(subject, inbox, body); errors.Is(err, nats.ErrMaxPayload) {
		return schema.Fail(schema.CodeTooLarge, "Send less, or raise max_payload of the NATS server.", "the request has %d bytes, a message at most %d",
			len(body), c.Conn.MaxPayload())
	} else if err != nil {
		_, unsent := errors.AsType[*jsapi.UnsentError](jsapi.Unsent(err))
		*sent = *sent || !unsent
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	*sent = true
	unpacked := make(chan reply, repliesUnpacked)
	left := make(chan struct{})
	var unpacker sync.WaitGroup
	defer unpacker.Wait()
	defer close(left)
	unpacker.Go(func() {
		for {
			select {
			case m := <-room:
				select {
				case unpacked <- unpack(m):
				case <-left:
					return
				}
			case <-left:
				return
			}
		}
	})
	a.next = 1
	patience := min(replyPatience, c.Timeout)
	timer := time.NewTimer(c.Timeout)
	defer timer.Stop()
	for {
		select {
		case m := <-unpacked:
			done, err := a.take(m)
			if done || err != nil {
				return err
			}
			timer.Reset(patience)
		case <-refusals.Heard():
			switch e := refusals.Take(); {
			case e.Of(subject, inbox):
				return fmt.Errorf("%w: %w", ErrNotPermitted, e)
			case e.Crowded() && a.next == 1: // perhaps this inbox; the same request again does no harm
				return fmt.Errorf("%w: %w", ErrUnavailable, e)
			}
		case <-lost:
			if a.next == 1 {
				return fmt.Errorf("%w: the connection was lost before the daemon answered", ErrUnavailable)
			}
			return fmt.Errorf("%w: the connection was lost after reply %d", errBroken, a.next-1)
		case <-timer.C:
			if a.next == 1 {
				return fmt.Errorf("%w: no answer of the daemon in %s", ErrUnavailable, c.Timeout)
			}
			return fmt.Errorf("%w: nothing after reply %d for %s", errBroken, a.next-1, patience)
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", ErrUnavailable, context.Cause(ctx))
		}
	}
}

// One is Ask for an answer of one reply, which it decodes into out.
func (c *Client) One(ctx context.Context, verb, run string, request, out any) error {
	return c.Ask(ctx, verb, run, request, func() *Replies {
		return &Replies{
			Answer: func(body []byte) error { return Decode(body, out) },
			Piece: func(kind string, _ []byte) error {
				return fmt.Errorf("%w: unexpected reply of kind %.20q", ErrBadAnswer, kind)
			},
		}
	})
}

// Decode reads the body of an answer.
func Decode(body []byte, out any) error {
	if err := json.Unmarshal(body, out); err != nil {
		return fmt.Errorf("%w: %w", ErrBadAnswer, err)
	}
	return nil
}
