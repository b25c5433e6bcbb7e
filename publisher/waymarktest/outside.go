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

// ErrKilled is returned by [Outside.Effect] in a killed life: the effect did not happen. Return this error.
var ErrKilled = errors.New("the executor was killed")

// Outside stands for the systems that an agent changes; it survives its executors. Each run of a test has one, shared
// by all lives of the run. It is safe for concurrent use.
type Outside struct {
	*outside
	life *life
}

type outside struct {
	mu      sync.Mutex
	effects []effect
	kept    map[string]any
}

// effect is one effect outside.
type effect struct {
	name string
	life int
	// call in which it was made; the zero key outside of a tool.
	call schema.CallKey
	tool string
	// key by which the outside knows it; empty for none.
	key string
}

// Effect records an effect that happens now: a mail is sent, a row is written. name describes it, with its arguments,
// so that different effects have different names. Effects are counted, and a killed run must have the same ones equally
// often. Pass on the tool's context, which identifies the call of the effect.
func (o *Outside) Effect(ctx context.Context, name string) error { return o.Once(ctx, "", name) }

// Once is Effect for a system that keeps idempotency keys, as many APIs do: a second effect with the same key and name
// does not happen, and is not an error. Pass the key that the tool sends to the system, which should be
// [publisher.Invocation.IdempotencyKey]. The test of an idempotent tool fails if the tool sends no key, or another key
// each time. An empty key means none.
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

// Keep returns a fake of the test's own, such as a mail server or a database. The first call creates it with first, and
// all lives of a run get the same one. first must not use the Outside.
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
		panic(fmt.Sprintf("waymarktest: Keep(%q) was a %T before", name, o.kept[name])) // an error in the test
	}
	return kept
}

// Transport wraps base (nil means http.DefaultTransport) and records an effect for each request that may change
// something: all methods but GET, HEAD and OPTIONS. Use it for the clients of tools, which must send their requests
// with the tool's context, not for a model's client. Requests with the same Idempotency-Key header count once, as in
// [Outside.Once]. A killed executor sends no request, and does not read the answer to its last one.
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
	// Send it before the life may end after it.
	response, err := t.base.RoundTrip(sent)
	if err != nil {
		return response, err //nolint:wrapcheck // an http.RoundTripper
	}
	if err := t.out.Once(ctx, request.Header.Get("Idempotency-Key"), name); err != nil {
		return nil, errors.Join(err, response.Body.Close())
	}
	return response, nil
}

// all returns the effects so far.
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
