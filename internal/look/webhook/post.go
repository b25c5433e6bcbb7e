package webhook

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	ce "github.com/cloudevents/sdk-go/v2/event"
	standard "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/waymarkio/waymark/internal/look/standstill"
	"github.com/waymarkio/waymark/schema"
)

// ErrConfig is returned for an invalid address or secret. The message says what to write instead.
var ErrConfig = errors.New("webhook cannot be used")

// Sizes of secrets under the specification, in bytes.
const minSecret, maxSecret = 24, 64

// secretPrefix begins a secret in text form.
const secretPrefix = "whsec_"

// ParseSecret reads a secret in the form of the specification, whsec_ and base64, and returns a signer with it. It
// returns [ErrConfig] for other text.
func ParseSecret(text string) (*standard.Webhook, error) {
	text = strings.TrimSpace(text)
	encoded, ok := strings.CutPrefix(text, secretPrefix)
	secret, err := base64.StdEncoding.DecodeString(encoded)
	switch {
	case !ok || err != nil:
		return nil, fmt.Errorf("%w: the secret is not %s and base64: make one with: echo %s$(head -c 32 /dev/urandom | base64)", ErrConfig, secretPrefix, secretPrefix)
	case len(secret) < minSecret || len(secret) > maxSecret:
		return nil, fmt.Errorf("%w: the secret has %d bytes, use %d to %d", ErrConfig, len(secret), minSecret, maxSecret)
	}
	return standard.NewWebhookRaw(secret)
}

// checkURL accepts HTTP and HTTPS URLs. It returns [ErrConfig] for others.
func checkURL(text string) error {
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return fmt.Errorf("%w: %.100q is no address: use one such as https://example.com/waymark", ErrConfig, text)
	}
	return nil
}

// postTimeout bounds one post, its answer included.
const postTimeout = 10 * time.Second

// maxAnswer is how much of an answer is read, in bytes.
const maxAnswer = 64 << 10

// newClient returns a client that follows no redirect: posts only go to the configured URL. It has its own
// connections.
func newClient() *http.Client {
	return &http.Client{
		Timeout:       postTimeout,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Transport: &http.Transport{
			Proxy: http.ProxyFromEnvironment, ForceAttemptHTTP2: true,
			MaxIdleConnsPerHost: postsAtOnce, IdleConnTimeout: mostPause,
		},
	}
}

// data of a posted event.
type data struct {
	Fleet string `json:"fleet"`
	standstill.Reason
}

// eventType is the type of posts about reasons.
const eventType = "run.attention"

// event is a CloudEvent about a run, in structured form.
func (w *Watch) event(id, kind, run, since string, about any) ([]byte, error) {
	e := ce.New()
	e.SetID(id)
	e.SetSource(schema.Source(w.cfg.Fleet, w.cfg.Name))
	e.SetType(schema.TypeOf(kind))
	e.SetSubject(run)
	if at, err := time.Parse(time.RFC3339Nano, since); err == nil {
		e.SetTime(at)
	}
	if err := e.SetData(ce.ApplicationJSON, about); err != nil {
		return nil, fmt.Errorf("data: %w", err)
	}
	b, err := json.Marshal(e)
	if err != nil {
		return nil, fmt.Errorf("event: %w", err)
	}
	return b, nil
}

// postReason posts a reason.
func (w *Watch) postReason(ctx context.Context, r *standstill.Reason) error {
	body, err := w.event(r.ID, eventType, r.Run, r.Since, data{w.cfg.Fleet, *r})
	if err != nil {
		return fmt.Errorf("webhook: %w", err)
	}
	return w.post(ctx, r.ID, body)
}

// post posts an event. Only an answer of 2xx counts as accepted.
func (w *Watch) post(ctx context.Context, id string, body []byte) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, w.cfg.URL, bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("webhook: %w", err)
	}
	at := w.deps.Now()
	signature, err := w.cfg.Secret.Sign(id, at, body)
	if err != nil {
		return fmt.Errorf("webhook: %w", err)
	}
	request.Header.Set("Content-Type", "application/cloudevents+json; charset=utf-8")
	request.Header.Set("User-Agent", "waymark")
	request.Header.Set(standard.HeaderWebhookID, id)
	request.Header.Set(standard.HeaderWebhookTimestamp, strconv.FormatInt(at.Unix(), 10))
	request.Header.Set(standard.HeaderWebhookSignature, signature)
	response, err := w.client.Do(request)
	if err != nil {
		// The address may contain a password.
		if broken, ok := errors.AsType[*url.Error](err); ok {
			err = broken.Err
		}
		return fmt.Errorf("webhook: %w", err)
	}
	defer func() { _ = response.Body.Close() }() // it was only read
	_, _ = io.Copy(io.Discard, io.LimitReader(response.Body, maxAnswer))
	if response.StatusCode/100 != 2 {
		return fmt.Errorf("webhook: %w %s", errRefused, response.Status)
	}
	return nil
}

var errRefused = errors.New("the receiver answered")
