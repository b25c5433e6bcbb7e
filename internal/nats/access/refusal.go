package access

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/nats-io/nats.go"
)

// Refusal is a server's refusal of a publish or a subscription, as the error of the call that caused it. The server
// reports it on the connection only, and the caller would wait for an answer until its deadline.
type Refusal struct {
	// Publish: a message was refused; else a subscription.
	Publish bool
	// Subject of the refusal.
	Subject string
	err     error
}

// Error names the refused action, and the next step.
func (e *Refusal) Error() string { return e.What() + ": " + e.Hint() }

// What is the refused action.
func (e *Refusal) What() string {
	if e.Crowded() {
		return "the nats server refuses a subscription: the connection has as many as it may have"
	}
	what := "subscribe to"
	if e.Publish {
		what = "publish to"
	}
	return fmt.Sprintf("the nats server does not permit this user to %s %.200q", what, e.Subject)
}

// Hint is the next step.
func (e *Refusal) Hint() string {
	if e.Crowded() {
		return "end some of them, or use another connection for them"
	}
	if !e.Publish && strings.HasPrefix(e.Subject, "_INBOX") {
		return "connect with the inbox prefix of the user's role, such as nats.CustomInboxPrefix(\"_INBOX_executor\") or --inbox-prefix, " +
			"or with the nats context that waymark fleet add wrote"
	}
	if roles := e.roles(); len(roles) > 0 {
		return "use credentials of this fleet for one of these roles: " + strings.Join(roles, ", ") +
			" (waymark fleet add wrote a NATS context for each); docs/security.md has the permissions of each role"
	}
	return "use the credentials of the fleet and of a role that may; docs/security.md says which may what"
}

// roles are those that may use the subject, the least powerful first; nil if its words do not tell.
func (e *Refusal) roles() (names []string) {
	word, _, _ := strings.Cut(strings.TrimPrefix(e.Subject, "waymark."), ".")
	var roles []Role
	switch {
	case !e.Publish && word != "notices":
	case strings.Contains(e.Subject, ".STREAM.SNAPSHOT."), strings.Contains(e.Subject, ".STREAM.RESTORE."), strings.HasPrefix(e.Subject, "$KV."), word == "refused":
		roles = []Role{Daemon}
	case strings.HasSuffix(e.Subject, ".API.INFO"), strings.Contains(e.Subject, ".API.STREAM."):
		roles = []Role{Observer, Operator}
	case word == "events", word == "notices":
		roles = []Role{Executor, Operator}
	case slices.Contains(slices.Concat(readingVerbs, workingVerbs, decidingVerbs), word):
		roles = verbRoles(word)
	}
	for _, role := range roles {
		names = append(names, string(role))
	}
	return names
}

// Crowded reports whether the connection has as many subscriptions as it may have. The server does not name the refused one.
func (e *Refusal) Crowded() bool { return errors.Is(e.err, nats.ErrMaxSubscriptionsExceeded) }

// Of reports whether a request on subject with an answer below inbox was refused, or its answer.
func (e *Refusal) Of(subject, inbox string) bool {
	return e.Publish && e.Subject == subject || !e.Publish && strings.HasPrefix(e.Subject, inbox)
}

// Unwrap is nats.go's error.
func (e *Refusal) Unwrap() error { return e.err }

// RefusalIn returns the refusal in an asynchronous error of a connection.
func RefusalIn(err error) (*Refusal, bool) {
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
			return &Refusal{Publish: of.publish, Subject: subject, err: err}, true
		}
	}
	return nil, false
}

// Watch receives the refusals on one connection. Nothing is kept: a refusal without a waiting caller is dropped, so that
// new permissions count at once.
type Watch struct {
	mu   sync.Mutex
	tail *node
}

// node is one refusal, or the place for the next.
type node struct {
	filled chan struct{}
	err    *Refusal
	next   *node
}

func newNode() *node { return &node{filled: make(chan struct{})} }

// NewWatch returns a watch, which receives nothing until its handler is set on a connection.
func NewWatch() *Watch { return &Watch{tail: newNode()} }

// Handler is a connection's error handler, which also calls before; nil for none.
func (w *Watch) Handler(before nats.ErrHandler) nats.ErrHandler {
	return func(nc *nats.Conn, sub *nats.Subscription, err error) {
		if e, ok := RefusalIn(err); ok {
			w.hear(e)
		} else if errors.Is(err, nats.ErrMaxSubscriptionsExceeded) {
			w.hear(&Refusal{err: err})
		}
		if before != nil {
			before(nc, sub, err)
		}
	}
}

func (w *Watch) hear(e *Refusal) {
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
func (t *Tail) Take() *Refusal {
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
	if e, ok := errors.AsType[*Refusal](context.Cause(ctx)); ok && err != nil {
		return e
	}
	return err
}

// watches are those of connections that other code made, while they are open.
var watches = struct {
	sync.Mutex
	of map[*nats.Conn]*Watch
}{of: make(map[*nats.Conn]*Watch)}

// WatchOf returns the watch of a connection that was made without one. Its error handler, if any, is still called.
func WatchOf(nc *nats.Conn) *Watch {
	watches.Lock()
	defer watches.Unlock()
	for other := range watches.of {
		if other.IsClosed() {
			delete(watches.of, other)
		}
	}
	w := watches.of[nc]
	if w == nil {
		w = NewWatch()
		watches.of[nc] = w
		nc.SetErrorHandler(w.Handler(nc.ErrorHandler()))
	}
	return w
}
