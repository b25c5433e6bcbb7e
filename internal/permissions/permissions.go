package permissions

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"

	"github.com/nats-io/nats.go"
)

// Error is a refusal by the server.
type Error struct {
	// Publish: a message was refused; else a subscription.
	Publish bool
	// Subject of the refusal.
	Subject string
	err     error
}

// Error names the refused action, and the next step.
func (e *Error) Error() string { return e.What() + ": " + e.Hint() }

// What is the refused action.
func (e *Error) What() string {
	what := "subscribe to"
	if e.Publish {
		what = "publish to"
	}
	return fmt.Sprintf("the nats server does not permit this user to %s %.200q", what, e.Subject)
}

// Hint is the next step.
func (e *Error) Hint() string {
	if !e.Publish && strings.HasPrefix(e.Subject, "_INBOX") {
		return "connect with the inbox prefix of the user's role, such as nats.CustomInboxPrefix(\"_INBOX_executor\") or --inbox-prefix, " +
			"or with the nats context that waymark fleet add wrote"
	}
	return "use the credentials of the fleet and of a role that may; docs/security.md says which may what"
}

// Of reports whether a request on subject with an answer below inbox was refused, or its answer.
func (e *Error) Of(subject, inbox string) bool {
	return e.Publish && e.Subject == subject || !e.Publish && strings.HasPrefix(e.Subject, inbox)
}

// Unwrap is nats.go's error.
func (e *Error) Unwrap() error { return e.err }

// From returns the refusal in an asynchronous error of a connection.
func From(err error) (*Error, bool) {
	if !errors.Is(err, nats.ErrPermissionViolation) {
		return nil, false
	}
	text := err.Error()
	_, rest, ok := strings.Cut(text, `" using queue "`)
	if ok {
		text = strings.TrimSuffix(text, `" using queue "`+rest)
	} else {
		text = strings.TrimSuffix(text, `"`)
	}
	for _, of := range []struct {
		words   string
		publish bool
	}{{`Publish to "`, true}, {`Subscription to "`, false}} {
		if _, subject, ok := strings.Cut(text, of.words); ok {
			if plain, err := strconv.Unquote(`"` + subject + `"`); err == nil {
				subject = plain
			}
			return &Error{Publish: of.publish, Subject: subject, err: err}, true
		}
	}
	return nil, false
}

// Watch receives the refusals on one connection.
type Watch struct {
	mu   sync.Mutex
	tail *node
}

// node is one refusal, or the place for the next.
type node struct {
	filled chan struct{}
	err    *Error
	next   *node
}

func newNode() *node { return &node{filled: make(chan struct{})} }

// New returns a watch, which receives nothing until its handler is set on a connection.
func New() *Watch { return &Watch{tail: newNode()} }

// Handler is a connection's error handler, which also calls before; nil for none.
func (w *Watch) Handler(before nats.ErrHandler) nats.ErrHandler {
	return func(nc *nats.Conn, sub *nats.Subscription, err error) {
		if e, ok := From(err); ok {
			w.hear(e)
		}
		if before != nil {
			before(nc, sub, err)
		}
	}
}

func (w *Watch) hear(e *Error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := w.tail
	n.err, n.next = e, newNode()
	w.tail = n.next
	close(n.filled)
}

// Tail waits for the refusals from now on. It is used by one goroutine.
type Tail struct{ at *node }

// Tail begins to wait.
func (w *Watch) Tail() Tail {
	w.mu.Lock()
	defer w.mu.Unlock()
	return Tail{w.tail}
}

// Heard is closed when there is a refusal to take.
func (t *Tail) Heard() <-chan struct{} { return t.at.filled }

// Take returns the next refusal, after Heard was closed.
func (t *Tail) Take() *Error {
	<-t.at.filled
	e := t.at.err
	t.at = t.at.next
	return e
}

// Context returns a context that ends, with the refusal as its cause, if an inbox or a subject that contains about is
// refused: for calls of libraries that do not know of refusals. Call the function when done.
func (w *Watch) Context(ctx context.Context, about string) (context.Context, func()) {
	tail := w.Tail()
	ctx, cancel := context.WithCancelCause(ctx)
	var ended sync.WaitGroup
	ended.Go(func() {
		for {
			select {
			case <-tail.Heard():
				if e := tail.Take(); strings.Contains(e.Subject, about) || !e.Publish && strings.HasPrefix(e.Subject, "_INBOX") {
					cancel(e)
					return
				}
			case <-ctx.Done():
				return
			}
		}
	})
	return ctx, func() {
		cancel(context.Canceled)
		ended.Wait()
	}
}

// Cause adds the refusal that ended a context of [Watch.Context] to a call's error.
func Cause(ctx context.Context, err error) error {
	if e, ok := errors.AsType[*Error](context.Cause(ctx)); ok && err != nil {
		return e
	}
	return err
}

// watches are those of connections that other code made, while they are open.
var watches = struct {
	sync.Mutex
	of map[*nats.Conn]*Watch
}{of: make(map[*nats.Conn]*Watch)}

// Of returns the watch of a connection that was made without one. Its error handler, if any, is still called.
func Of(nc *nats.Conn) *Watch {
	watches.Lock()
	defer watches.Unlock()
	for other := range watches.of {
		if other.IsClosed() {
			delete(watches.of, other)
		}
	}
	w := watches.of[nc]
	if w == nil {
		w = New()
		watches.of[nc] = w
		nc.SetErrorHandler(w.Handler(nc.ErrorHandler()))
	}
	return w
}
