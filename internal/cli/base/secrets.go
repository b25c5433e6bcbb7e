package base

import (
	"context"
	"strings"

	"github.com/waymarkio/waymark/internal/encryption"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// readKeys reads the keys of encrypted content, if a file of them is named.
func (a *App) readKeys() (*publisher.Encryption, error) {
	if a.KeyFile == "" {
		return nil, nil
	}
	keys, err := publisher.KeyFile(a.KeyFile)
	if err != nil {
		return nil, err
	}
	a.Secrets = &encryption.Keys{Current: keys.Current, Key: keys.Key}
	return keys, nil
}

// Open decrypts the content of an event's data as far as there are keys. A value that its key does not open stays as it is, and is shown as
// encrypted.
func (a *App) Open(ctx context.Context) func(*schema.Event, schema.Data) {
	if a.Secrets == nil {
		return nil
	}
	return func(e *schema.Event, data schema.Data) { _ = a.Secrets.Open(ctx, e, data) }
}

// OpenVerdict decrypts the content of the data of an event that was folded, as Open does.
func (a *App) OpenVerdict(ctx context.Context, v *schema.Verdict) {
	if open := a.Open(ctx); open != nil && v.Data != nil {
		open(v.Event, v.Data)
	}
}

// Opened returns an event with its content decrypted as far as there are keys, and the event itself without.
func (a *App) Opened(ctx context.Context, e *schema.Event) *schema.Event {
	if a.Secrets == nil {
		return e
	}
	data, err := schema.ParseData(e)
	if err != nil || data == nil {
		return e
	}
	a.Open(ctx)(e, data)
	body, err := schema.MarshalData(data)
	if err != nil {
		return e
	}
	opened := *e
	opened.Data = body
	return &opened
}

// SayReadable says that something was written readable into a run that is encrypted.
func (a *App) SayReadable(h *schema.Head, what string) error {
	if len(h.KeyIDs) == 0 || a.Secrets != nil {
		return nil
	}
	return a.Say(a.Stderr, "%s was stored readable, and run %s is encrypted with key %s: to encrypt it, give the key with --key-file", what, h.Run,
		strings.Join(h.KeyIDs, ", "))
}
