package waymarktest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// ErrKilled is returned by [Outside.Effect] in a life that was killed: the effect did not happen. Return it.
var ErrKilled = errors.New("the executor was killed")

// Outside is the world that an agent changes, which survives its executors. There is one for each run of a test, and all lives of the run
// share it. It may be used from several goroutines.
type Outside struct {
	*outside
	life *life
}

type outside struct {
	mu      sync.Mutex
	effects []effect
	kept    map[string]any
}

// effect is one thing that happened outside.
type effect struct {
	name string
	life int
	// call that it was made in; the zero key outside of a tool.
	call schema.CallKey
	tool string
	// key by which the outside knows it; empty for none.
	key string
}

// Effect says that something happens outside, now: a mail is sent, a row is written. name says what, with its arguments, so that two that
// differ are two. It is counted, and a run that was killed must have the same ones as often. Pass the context of the tool on, by which it is
// known whose effect it is.
func (o *Outside) Effect(ctx context.Context, name string) error { return o.Once(ctx, "", name) }

// Once is Effect for an outside that keeps keys, as many APIs do: a second effect of a key and name does not happen, and is no error. Pass the
// key that the outside is given by the tool, which is [publisher.Invocation.IdempotencyKey] if the tool is right: the test of an idempotent tool
// that hands over no key, or another one each time, fails. An empty key is none.
func (o *Outside) Once(ctx context.Context, key, name string) error {
	inv := publisher.InvocationOf(ctx)
	o.mu.Lock()
	if o.life.dead() {
		o.mu.Unlock()
		return ErrKilled
	}
	if key != "" && slices.ContainsFunc(o.effects, func(e effect) bool { return e.key == key && e.name == name }) {
		o.mu.Unlock()
		return nil
	}
	o.effects = append(o.effects, effect{name: name, life: o.life.number, call: inv.Key, tool: inv.Name, key: key})
	n := len(o.effects)
	o.mu.Unlock()
	if o.life.dies(behindEffect, n) {
		o.life.end()
		return ErrKilled
	}
	return nil
}

// Keep returns a fake of the test's own, such as a mail server or a database. first makes it at the first call, and all lives of a run get
// the same one. first must not use the Outside.
func Keep[T any](o *Outside, name string, first func() *T) *T {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.kept == nil {
		o.kept = make(map[string]any)
	}
	if o.kept[name] == nil {
		o.kept[name] = first()
	}
	kept, ok := o.kept[name].(*T)
	if !ok {
		panic(fmt.Sprintf("waymarktest: Keep(%q) was a %T before", name, o.kept[name])) // a mistake of the test
	}
	return kept
}

// Transport is base, nil for http.DefaultTransport, with an effect for each request that may change something: all methods but GET, HEAD and
// OPTIONS. It is for the clients of tools, which make their requests with the context of the tool, and not for the client of a model. Those of one header Idempotency-Key count once, as by [Outside.Once]. A killed executor sends no request, and does not read the answer of the last one.
func (o *Outside) Transport(base http.RoundTripper) http.RoundTripper {
	if base == nil {
		base = http.DefaultTransport
	}
	return &transport{out: o, base: base}
}

type transport struct {
	out  *Outside
	base http.RoundTripper
}

// RoundTrip sends a request.
func (t *transport) RoundTrip(request *http.Request) (*http.Response, error) {
	ctx := request.Context()
	switch {
	case t.out.life.dead():
		return nil, ErrKilled
	case request.Method == http.MethodGet, request.Method == http.MethodHead, request.Method == http.MethodOptions:
		return t.base.RoundTrip(request) //nolint:wrapcheck // an http.RoundTripper
	}
	name, sent := request.Method+" "+request.URL.String(), request.Clone(ctx)
	if request.Body != nil {
		body, err := io.ReadAll(request.Body)
		if err = errors.Join(err, request.Body.Close()); err != nil {
			return nil, fmt.Errorf("body of %s: %w", name, err)
		}
		sent.Body = io.NopCloser(bytes.NewReader(body))
		name += " " + short(body)
	}
	// It is sent before the life may end behind it.
	response, err := t.base.RoundTrip(sent)
	if err != nil {
		return response, err //nolint:wrapcheck // an http.RoundTripper
	}
	if err := t.out.Once(ctx, request.Header.Get("Idempotency-Key"), name); err != nil {
		return nil, errors.Join(err, response.Body.Close())
	}
	return response, nil
}

// all are the effects so far.
func (o *outside) all() []effect {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.effects)
}

// made reports whether a call had an effect.
func (o *outside) made(key schema.CallKey) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	for i := range o.effects {
		if o.effects[i].call == key {
			return true
		}
	}
	return false
}
