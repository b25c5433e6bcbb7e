package webhook

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// ErrConfig is returned for an address or a secret that cannot be used. The message says what to write instead.
var ErrConfig = errors.New("webhook cannot be used")

// Sizes of secrets, as the specification asks, in bytes.
const minSecret, maxSecret = 24, 64

// secretPrefix begins a secret in text form.
const secretPrefix = "whsec_"

// ParseSecret reads a secret as the specification writes it: whsec_ and base64. It returns [ErrConfig] for other text.
func ParseSecret(text string) ([]byte, error) {
	text = strings.TrimSpace(text)
	encoded, ok := strings.CutPrefix(text, secretPrefix)
	secret, err := base64.StdEncoding.DecodeString(encoded)
	switch {
	case !ok || err != nil:
		return nil, fmt.Errorf("%w: the secret is not %s and base64: make one with: echo %s$(head -c 32 /dev/urandom | base64)", ErrConfig, secretPrefix, secretPrefix)
	case len(secret) < minSecret || len(secret) > maxSecret:
		return nil, fmt.Errorf("%w: the secret has %d bytes, use %d to %d", ErrConfig, len(secret), minSecret, maxSecret)
	}
	return secret, nil
}

// CheckURL accepts HTTP and HTTPS URLs. It returns [ErrConfig] for others.
func CheckURL(text string) error {
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return fmt.Errorf("%w: %.100q is no address: use one such as https://example.com/waymark", ErrConfig, text)
	}
	return nil
}

// postTimeout bounds one post, its answer included.
const postTimeout = 10 * time.Second

// maxAnswer is what is read of an answer, in bytes.
const maxAnswer = 64 << 10

// newClient returns a client that follows no redirect: posts go to the configured URL and to no other.
func newClient() *http.Client {
	return &http.Client{Timeout: postTimeout, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

// sign is the signature of a post: HMAC-SHA256 of id, time and body (Standard Webhooks 1.0, "Signature scheme").
func sign(secret []byte, id string, at time.Time, body []byte) string {
	mac := hmac.New(sha256.New, secret)
	_, _ = fmt.Fprintf(mac, "%s.%d.", id, at.Unix()) // a hash takes all
	_, _ = mac.Write(body)
	return "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil))
}

// post sends one event. Only an answer of 2xx takes it.
func (w *Watch) post(ctx context.Context, id string, body []byte) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, w.cfg.URL, bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("webhook: %w", err)
	}
	at := w.deps.Now()
	request.Header.Set("Content-Type", "application/cloudevents+json; charset=utf-8")
	request.Header.Set("User-Agent", "waymark")
	request.Header.Set("Webhook-Id", id)
	request.Header.Set("Webhook-Timestamp", strconv.FormatInt(at.Unix(), 10))
	request.Header.Set("Webhook-Signature", sign(w.cfg.Secret, id, at, body))
	response, err := w.client.Do(request)
	if err != nil {
		// The address may have a password in it.
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
