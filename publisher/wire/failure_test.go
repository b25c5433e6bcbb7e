package wire_test

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/publisher/wire"
)

// now is when the responses of these tests arrive: a Thursday, 14:00 UTC, 10:00 in New York.
var now = time.Date(2026, 9, 3, 14, 0, 0, 0, time.UTC)

func header(text string) http.Header {
	h := http.Header{}
	for line := range strings.SplitSeq(text, "\n") {
		if name, value, ok := strings.Cut(line, ": "); ok {
			h.Set(name, value)
		}
	}
	return h
}

func TestError_Response_SaysWhenToTryAgain(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		status       int
		header, body string
		after        time.Duration // 0: it does not say
	}{
		"seconds":            {429, "Retry-After: 600", "", 10 * time.Minute},
		"part of a second":   {503, "Retry-After: 1.5", "", 1500 * time.Millisecond},
		"date":               {529, "Retry-After: Thu, 03 Sep 2026 14:10:00 GMT", "", 10 * time.Minute},
		"date in the past":   {503, "Retry-After: Thu, 03 Sep 2026 13:10:00 GMT", "", 0},
		"unreadable":         {503, "Retry-After: soon", "", 0},
		"negative":           {503, "Retry-After: -5", "", 0},
		"milliseconds first": {429, "Retry-After: 600\nRetry-After-Ms: 2500", "", 2500 * time.Millisecond},
		"not a number":       {429, "Retry-After: NaN\nRetry-After-Ms: Inf", "", 0},
		"openai, requests":   {429, "x-ratelimit-remaining-requests: 0\nx-ratelimit-reset-requests: 6m0s\nx-ratelimit-remaining-tokens: 149984\nx-ratelimit-reset-tokens: 1h", "", 6 * time.Minute},
		"openai, both":       {429, "x-ratelimit-remaining-requests: 0\nx-ratelimit-reset-requests: 12ms\nx-ratelimit-remaining-tokens: 0\nx-ratelimit-reset-tokens: 1m30.951s", "", 90*time.Second + 951*time.Millisecond},
		"anthropic":          {429, "anthropic-ratelimit-input-tokens-remaining: 0\nanthropic-ratelimit-input-tokens-reset: 2026-09-03T14:00:30Z\nanthropic-ratelimit-requests-remaining: 5\nanthropic-ratelimit-requests-reset: 2026-09-03T15:00:00Z", "", 30 * time.Second},
		"anthropic, unified": {429, "anthropic-ratelimit-unified-status: rejected\nanthropic-ratelimit-unified-reset: 1788451200\nanthropic-ratelimit-unified-7d-status: allowed\nanthropic-ratelimit-unified-7d-reset: 1788900000", "", time.Unix(1788451200, 0).Sub(now)},
		"epoch in ms":        {429, "X-RateLimit-Reset: 1788451200000", "", time.Unix(1788451200, 0).Sub(now)},
		"overflow":           {429, "X-RateLimit-Reset: 1e300", "", 0},
		"codex":              {429, "", `{"error":{"type":"usage_limit_reached","message":"The usage limit has been reached","resets_at":1788451200,"resets_in_seconds":529498}}`, time.Unix(1788451200, 0).Sub(now)},
		"gemini":             {429, "", `{"error":{"code":429,"details":[{"@type":"RetryInfo","retryDelay":"34.5s"}]}}`, 34500 * time.Millisecond},
		"openai, text":       {429, "", `{"error":{"message":"Rate limit reached for m. Please try again in 6m0s. Visit our page."}}`, 6 * time.Minute},
		"azure, text":        {429, "", `{"error":{"code":"429","message":"Please retry after 26 seconds."}}`, 26 * time.Second},
		"one day":            {429, "", "Try again in 1 day.", 24 * time.Hour},
		"a refusal's limit":  {400, "", `{"error":{"type":"invalid_request_error","message":"You have reached your specified API usage limits. You will regain access on 2026-10-01 at 00:00 UTC."}}`, 27*24*time.Hour + 10*time.Hour},
		"a refusal's header": {400, "Retry-After: 600", "", 0},
		"nothing":            {500, "", "<html>", 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			at, permanent := wire.Due(test.status, header(test.header), []byte(test.body), now)
			require.Equal(t, test.status == 400 && test.after == 0, permanent)
			if test.after == 0 {
				require.True(t, at.IsZero(), "%s", at)
				return
			}
			require.Equal(t, now.Add(test.after).UTC(), at.UTC())
		})
	}
}

func TestError_Status_SaysWhetherTryingAgainHelps(t *testing.T) {
	t.Parallel()
	for status, stays := range map[int]bool{
		400: true, 401: true, 403: true, 404: true, 413: true, 422: true,
		402: false, 408: false, 409: false, 425: false, 429: false, 500: false, 502: false, 503: false, 504: false, 529: false,
	} {
		err := wire.Error(status, nil, []byte(`{"type":"error","error":{"type":"an_error"}}`))
		require.Equal(t, stays, fmt.Sprintf("%T", err) == fmt.Sprintf("%T", publisher.Permanent(err)), status)
		require.Equal(t, status == 401 || status == 403, errors.Is(err, publisher.ErrUnauthorized), status)
		require.ErrorContains(t, err, "an_error")
	}
}

// Arbitrary responses: nothing panics, a time is in the future, and a text is valid.
func FuzzError(f *testing.F) {
	f.Add(429, "600", "6m0s", `{"error":{"message":"Please try again in 6m0s."}}`)
	f.Add(400, "Thu, 03 Sep 2026 14:10:00 GMT", "1788451200000", `"resets_at":1762952400`)
	f.Add(529, "1e300", "2026-09-03T14:00:30Z", "resets 12:60pm (Europe/Paris)")
	f.Fuzz(func(t *testing.T, status int, after, reset, body string) {
		h := http.Header{"Retry-After": {after}, "X-Ratelimit-Reset": {reset}}
		if at, _ := wire.Due(status, h, []byte(body), now); !at.IsZero() && !at.After(now) {
			t.Fatalf("%s is not in the future", at)
		}
		if err := wire.Error(status, h, []byte(body)); err == nil || !utf8.ValidString(err.Error()) {
			t.Fatalf("%q", err)
		}
	})
}
