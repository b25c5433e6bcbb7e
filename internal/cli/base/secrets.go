package base

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/waymarkio/waymark/internal/base/encryption"
	"github.com/waymarkio/waymark/internal/look/failure"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// readKeys reads the keys of encrypted content, if a key file is named.
func (a *App) readKeys() (*publisher.Encryption, error) {
	if a.KeyFile == "" {
		return nil, nil
	}
	keys, err := publisher.KeyFile(a.KeyFile)
	if err != nil {
		return nil, err
	}
	if mode, exposed := encryption.Exposed(a.KeyFile); exposed {
		if err := a.Say(a.Stderr, "every user of this machine can read the file of --key-file (mode %s), and read the encrypted content: restrict it with: %s",
			mode, schema.Command("chmod 600", "", a.KeyFile)); err != nil {
			return nil, err
		}
	}
	a.Secrets = &encryption.Keys{Fleet: a.Fleet, Current: keys.Current, Key: keys.Key}
	return keys, nil
}

// Opened returns an event with its content decrypted as far as keys are available; without keys, the event itself.
func (a *App) Opened(ctx context.Context, e *schema.Event) *schema.Event {
	if a.Secrets == nil {
		return e
	}
	data, err := schema.ParseData(e)
	if err != nil || data == nil {
		return e
	}
	_ = a.Secrets.Open(ctx, e, data) // a value that its key does not open is shown as encrypted
	body, err := schema.MarshalData(data)
	if err != nil {
		return e
	}
	opened := *e
	opened.Data = body
	return &opened
}

// sealed returns the request as it is sent: encrypted if it has content, the run has keys and one of them is available.
// readable is a note about content that is unexpectedly stored in plain text; empty for none.
func (c *Client) sealed(ctx context.Context, run string, request any) (out any, readable string, err error) {
	has, err := encryption.HasContent(request)
	if err != nil || !has {
		return request, "", err
	}
	reply, err := c.Get(ctx, run)
	switch {
	case err != nil && c.secrets == nil:
		return request, "", nil // the request itself returns the error
	case err != nil:
		return nil, "", err
	}
	ids := reply.Head.KeyIDs
	out, err = c.secrets.Request(ctx, run, request, func(context.Context) ([]string, error) { return ids, nil })
	switch {
	case errors.Is(err, encryption.ErrNoKey):
		return nil, "", &failure.Error{
			Code: failure.Usage, What: fmt.Sprintf("run %s is encrypted with key %s, which the key file does not have", run, strings.Join(ids, ", ")), Err: err,
			Hint: "provide that key with --key-file; without a key file the content is stored in plain text", Own: true,
		}
	case err != nil:
		return nil, "", fmt.Errorf("encrypting the request to run %s: %w", run, err)
	case len(ids) == 0 && c.secrets != nil:
		return out, contentOf(request) + " was stored in plain text: run " + run + " is not encrypted", nil
	case len(ids) > 0 && c.secrets == nil:
		return out, fmt.Sprintf("%s was stored in plain text, although run %s is encrypted with key %s: to encrypt it, provide the key with --key-file",
			contentOf(request), run, strings.Join(ids, ", ")), nil
	}
	return out, "", nil
}

// contentOf names the content of a request.
func contentOf(request any) string {
	switch request.(type) {
	case *schema.InputRequest:
		return "the answer"
	case *schema.SignalRequest:
		return "the message"
	case *schema.SettleRequest:
		return "the result"
	}
	return "the reason"
}
