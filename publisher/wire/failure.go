package wire

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/waymarkio/waymark/internal/base/form"
	"github.com/waymarkio/waymark/publisher"
)

const (
	// maxFailureBody bounds the part of a body in which a text and a time are looked for, in bytes.
	maxFailureBody = 4 << 10
	// mostDelay bounds a number of seconds; larger numbers are times of the Unix epoch.
	mostDelay = 1e9
)

// Error is the error of a response that is no success, for clients without a Post method as for [Model]:
//
//   - 401 and 403 are [publisher.ErrUnauthorized];
//   - 400 and other refusals of the request itself are [publisher.Permanent];
//   - all others are temporary. If the response names a time, they have it by [publisher.RetryAt]: in Retry-After,
//     Retry-After-Ms, in a header of a used-up rate limit (x-ratelimit-reset-tokens,
//     anthropic-ratelimit-requests-reset and the like), or in the text of a usage limit, whatever its status.
func Error(status int, header http.Header, body []byte) error {
	return failed(status, header, body, nil)
}

// failure is a response that is no success.
type failure struct {
	text   string
	causes []error
}

func (f *failure) Error() string   { return f.text }
func (f *failure) Unwrap() []error { return f.causes }

// failed is Error. cause is the client's error.
func failed(status int, header http.Header, body []byte, cause error) error {
	body = body[:min(len(body), maxFailureBody)]
	f := &failure{text: strings.TrimSpace(fmt.Sprintf("%d %s", status, http.StatusText(status)))}
	if said := message(body); said != "" {
		f.text += ": " + said
	}
	if cause != nil {
		f.causes = append(f.causes, cause)
	}
	at, permanent := due(status, header, body, time.Now())
	switch {
	case !at.IsZero():
		return publisher.RetryAt(f, at)
	case status == http.StatusUnauthorized || status == http.StatusForbidden:
		f.causes = append(f.causes, publisher.ErrUnauthorized)
	case !permanent:
		return f
	}
	return publisher.Permanent(f)
}

// due is when the next try is due, zero if the response does not say, or whether no try can succeed.
func due(status int, header http.Header, body []byte, now time.Time) (at time.Time, permanent bool) {
	permanent = slices.Contains([]int{400, 401, 403, 404, 405, 413, 414, 415, 422}, status)
	if !permanent {
		at = headerTime(header, now)
	}
	if at.IsZero() && (!permanent || bytes.Contains(bytes.ToLower(body), []byte("limit"))) {
		at = textTime(string(body), now)
	}
	if !at.After(now) {
		return time.Time{}, permanent
	}
	return at, false
}

// ofClient is the error of a provider's client, by the response that it keeps.
func ofClient(err error) error {
	kept, ok := errors.AsType[interface {
		error
		DumpResponse(body bool) []byte
	}](err)
	if !ok {
		return err
	}
	response, broken := http.ReadResponse(bufio.NewReader(bytes.NewReader(kept.DumpResponse(true))), nil)
	if broken != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()                         // it is in memory
	body, _ := io.ReadAll(io.LimitReader(response.Body, maxFailureBody)) // as much as there is
	return failed(response.StatusCode, response.Header, body, err)
}

// message is the text of a body for people.
func message(body []byte) string {
	o, ok := form.ParseObject(body)
	if form.CheckJSON(body) != nil || !ok {
		return strings.Join(strings.Fields(strings.ToValidUTF8(string(body), "\uFFFD")), " ")
	}
	if inner, ok := o.TakeObject("error"); ok {
		o = inner
	}
	if text, ok := o.Str("message"); ok {
		return text
	}
	typ, _ := o.Str("type")
	return typ
}

// headerTime is when a response allows the next request by its headers; zero if it does not say.
func headerTime(header http.Header, now time.Time) time.Time {
	if ms, err := strconv.ParseFloat(header.Get("Retry-After-Ms"), 64); err == nil && ms >= 0 && ms < mostDelay {
		return now.Add(time.Duration(ms * float64(time.Millisecond)))
	}
	if at := moment(header.Get("Retry-After"), now); !at.IsZero() {
		return at
	}
	var latest time.Time
	for name := range header {
		lower := strings.ToLower(name)
		if !strings.Contains(lower, "ratelimit") || !strings.Contains(lower, "reset") {
			continue
		}
		left, state := header.Get(strings.Replace(lower, "reset", "remaining", 1)), header.Get(strings.Replace(lower, "reset", "status", 1))
		if n, err := strconv.ParseFloat(left, 64); err == nil && n > 0 || state != "" && state != "rejected" {
			continue // another limit is used up
		}
		if at := moment(header.Get(name), now); at.After(latest) {
			latest = at
		}
	}
	return latest
}

// moment reads a time, or a delay: seconds, a time of the Unix epoch in seconds or milliseconds, a duration such as
// 6m0s, an HTTP date, or RFC 3339. It is zero for another text.
func moment(text string, now time.Time) time.Time {
	text = strings.TrimSpace(text)
	switch n, err := strconv.ParseFloat(text, 64); {
	case err != nil:
	case n >= 0 && n < mostDelay:
		return now.Add(time.Duration(n * float64(time.Second)))
	case n >= mostDelay && n < 1e11:
		return time.Unix(int64(n), 0)
	case n >= 1e12 && n < 1e14:
		return time.UnixMilli(int64(n))
	default:
		return time.Time{}
	}
	if d, err := time.ParseDuration(text); err == nil && d >= 0 {
		return now.Add(d)
	}
	if at, err := http.ParseTime(text); err == nil {
		return at
	}
	at, _ := time.Parse(time.RFC3339, text) // zero if it is none
	return at
}

// Forms of a time in the text of a body, such as: "resets_at":1772180859 · try again in 6m0s · retry after 26 seconds ·
// regain access on 2026-09-01 at 00:00 UTC.
var (
	inMember   = regexp.MustCompile(`"(?:resets?_at|resets?_in_seconds|retry_after(?:_seconds)?|retryDelay)"\s*:\s*"?([^",}\s]+)`)
	inDuration = regexp.MustCompile(`(?i)(?:again|retry) (?:in|after) ((?:\d+(?:\.\d+)?(?:ms|[hms])?)+)(?: ?(second|minute|hour|day))?`)
	atDate     = regexp.MustCompile(`(?i)(?:resets?|again|access) (?:at |on )?(\d{4}-\d\d-\d\d)(?:T| at | )(\d\d:\d\d)(:\d\d)?(?:\.\d+)?(?: ?UTC|Z)`)
)

// textTime is when a response allows the next request by its text; zero if it does not say.
func textTime(text string, now time.Time) time.Time {
	if m := inMember.FindStringSubmatch(text); m != nil {
		return moment(m[1], now)
	}
	if m := inDuration.FindStringSubmatch(text); m != nil {
		unit := map[string]float64{"second": 1, "minute": 60, "hour": 3600, "day": 86400}[strings.ToLower(m[2])]
		if n, err := strconv.ParseFloat(m[1], 64); err == nil && unit > 0 {
			return moment(strconv.FormatFloat(n*unit, 'f', -1, 64), now)
		}
		return moment(m[1], now)
	}
	m := atDate.FindStringSubmatch(text)
	if m == nil {
		return time.Time{}
	}
	at, _ := time.Parse(time.DateTime, m[1]+" "+m[2]+cmp.Or(m[3], ":00")) // zero if it is none
	return at
}
