package webhook_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"
	standard "github.com/standard-webhooks/standard-webhooks/libraries/go"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/webhook"
	"github.com/waymarkio/waymark/schema"
)

const secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSwMfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"

// receiver takes posts as a receiver that follows the specification does, with the specification's own library.
type receiver struct {
	t  *testing.T
	mu sync.Mutex
	// ids of the posts that came, and answers to the next ones; 200 when there is none left.
	ids     []string
	answers []int
	last    map[string]any
}

func (r *receiver) ServeHTTP(w http.ResponseWriter, request *http.Request) {
	body, err := io.ReadAll(request.Body)
	if err != nil {
		r.t.Error(err)
	}
	wh, err := standard.NewWebhook(secret)
	if err == nil {
		err = wh.Verify(body, request.Header)
	}
	if err != nil {
		r.t.Error(err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ids = append(r.ids, request.Header.Get("webhook-id"))
	r.last = nil
	if err := json.Unmarshal(body, &r.last); err != nil {
		r.t.Error(err)
	}
	code := http.StatusOK
	if len(r.answers) > 0 {
		code, r.answers = r.answers[0], r.answers[1:]
	}
	if code == http.StatusFound {
		w.Header().Set("Location", "/elsewhere")
	}
	w.WriteHeader(code)
}

func (r *receiver) latest() map[string]any {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.last
}

func (r *receiver) got() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]string(nil), r.ids...)
}

// fleet is what the daemon knows.
type fleet struct {
	mu    sync.Mutex
	heads map[string]*schema.Head
	known bool
	// broken: a head cannot be read.
	broken bool
}

func (f *fleet) set(run string, h *schema.Head) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if h == nil {
		delete(f.heads, run)
		return
	}
	f.heads[run] = h
}

func (f *fleet) candidates() ([]webhook.Candidate, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var list []webhook.Candidate
	for run, h := range f.heads {
		list = append(list, webhook.Candidate{Run: run, Changed: h.UpdatedAt, Quarantined: h.Stalled > 2})
	}
	return list, f.known
}

func (f *fleet) head(_ context.Context, c webhook.Candidate) (*schema.Head, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.broken {
		return nil, errors.New("no leader")
	}
	return f.heads[c.Run], nil
}

func waiting(run, question, event string) *schema.Head {
	return &schema.Head{
		Fleet: "default", Run: run, Agent: "coder", Status: schema.StatusWaiting, Epoch: 1, UpdatedAt: event,
		Interrupts: []schema.OpenInterrupt{{InterruptID: question, Reason: schema.WaitHumanInput, Message: "Which one?", Since: "2026-01-02T03:04:05Z", Position: schema.Position{ID: event}}},
	}
}

// start runs a watch against a receiver without a socket, in a bubble of synthetic time.
func start(t *testing.T, f *fleet, r *receiver) (*webhook.Watch, func()) {
	t.Helper()
	key, err := webhook.ParseSecret(secret)
	require.NoError(t, err)
	w, err := webhook.New(webhook.Config{URL: "https://example.com/hook", Secret: key, Fleet: "default", Name: "daemon-1"}, webhook.Deps{
		Candidates: f.candidates, Head: f.head, Now: time.Now, Log: zerolog.Nop(),
	})
	require.NoError(t, err)
	webhook.SetTransport(w, roundTrip(func(request *http.Request) (*http.Response, error) {
		recorder := httptest.NewRecorder()
		r.ServeHTTP(recorder, request)
		return recorder.Result(), nil
	}))
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	return w, func() {
		stop()
		require.NoError(t, <-done)
	}
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func after(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

func TestWatch_PersonIsNeeded_IsPostedOnceUntilTaken(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f, r := &fleet{heads: map[string]*schema.Head{}, known: true}, &receiver{t: t, answers: []int{500, 302, 410}}
		w, stop := start(t, f, r)
		f.set("r1", waiting("r1", "q1", "e1"))
		after(1500 * time.Millisecond)
		require.Len(t, r.got(), 1)
		require.Equal(t, int64(1), w.Stats().Pending.Load())
		last := r.latest()
		require.Equal(t, "io.waymark.run.attention.v1", last["type"])
		require.Equal(t, "r1", last["subject"])
		require.Equal(t, r.got()[0], last["id"])
		require.Subset(t, last["data"], map[string]any{"why": "waits for an answer: Which one?", "kind": "waiting", "fleet": "default"})
		after(20 * time.Second) // pauses of 1, 2 and 4 seconds
		require.Len(t, r.got(), 4)
		require.Len(t, distinct(r.got()), 1, "always the same id")
		require.Equal(t, int64(1), w.Stats().Taken.Load())
		require.Equal(t, int64(3), w.Stats().Failed.Load())
		require.Zero(t, w.Stats().Pending.Load())
		after(time.Hour)
		require.Len(t, r.got(), 4, "what was taken is not posted again")

		// The same question asked again, and one thing more, are other ones.
		h := waiting("r1", "q1", "e2")
		h.Interrupts = append(h.Interrupts, schema.OpenInterrupt{InterruptID: "q2", Reason: schema.WaitExternalSystem, Position: schema.Position{ID: "e3"}})
		f.set("r1", h)
		after(3 * time.Second)
		require.Len(t, distinct(r.got()), 2, "another system is no person")
		f.set("r1", nil)
		f.set("r2", &schema.Head{Fleet: "default", Run: "r2", Status: schema.StatusOrphaned, Epoch: 4, Stalled: 3, UpdatedAt: "x"})
		after(3 * time.Second)
		require.Len(t, distinct(r.got()), 3)
		stop()
	})
}

func TestWatch_Answered_IsPostedNoMore(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f, r := &fleet{heads: map[string]*schema.Head{}, known: true}, &receiver{t: t, answers: []int{503, 503, 503, 503, 503, 503, 503, 503}}
		w, stop := start(t, f, r)
		f.set("r1", waiting("r1", "q1", "e1"))
		after(5 * time.Second)
		require.NotEmpty(t, r.got())
		f.set("r1", nil)
		n := len(r.got())
		after(time.Hour)
		require.Len(t, r.got(), n)
		require.Zero(t, w.Stats().Pending.Load())
		stop()
	})
}

// The daemon dies between a post and its end; the next one posts what still waits, with the same id.
func TestWatch_AnotherDaemon_PostsWithTheSameID(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f, r := &fleet{heads: map[string]*schema.Head{"r1": waiting("r1", "q1", "e1")}, known: true}, &receiver{t: t}
		for range 2 {
			_, stop := start(t, f, r)
			after(2 * time.Second)
			stop()
		}
		require.Len(t, r.got(), 2)
		require.Len(t, distinct(r.got()), 1)
	})
}

func TestWatch_NothingIsKnown_WaitsForIt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f, r := &fleet{heads: map[string]*schema.Head{"r1": waiting("r1", "q1", "e1")}, broken: true}, &receiver{t: t}
		_, stop := start(t, f, r)
		after(3 * time.Second)
		f.mu.Lock()
		f.known = true
		f.mu.Unlock()
		after(3 * time.Second)
		require.Empty(t, r.got())
		f.mu.Lock()
		f.broken = false
		f.mu.Unlock()
		after(2 * time.Second)
		require.Len(t, r.got(), 1)
		stop()
	})
}

func distinct(ids []string) map[string]bool {
	set := make(map[string]bool)
	for _, id := range ids {
		set[id] = true
	}
	return set
}

func TestConfig_WhatCannotBeUsed_IsSaid(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"", "secret", "whsec_", "whsec_c2hvcnQ=", "whsec_not base64", "whsec_" + string(make([]byte, 200))} {
		_, err := webhook.ParseSecret(text)
		require.ErrorIs(t, err, webhook.ErrConfig, text)
	}
	for _, text := range []string{"", "example.com", "ftp://example.com", "https://", "://"} {
		require.ErrorIs(t, webhook.CheckURL(text), webhook.ErrConfig, text)
	}
	require.NoError(t, webhook.CheckURL("http://127.0.0.1:8080/x?y=1"))
}

func FuzzParseSecret(f *testing.F) {
	f.Add(secret)
	f.Fuzz(func(t *testing.T, text string) {
		if b, err := webhook.ParseSecret(text); err == nil && (len(b) < 24 || len(b) > 64) {
			t.Error(len(b))
		}
	})
}
