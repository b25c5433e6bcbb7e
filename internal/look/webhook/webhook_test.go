package webhook_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"
	standard "github.com/standard-webhooks/standard-webhooks/libraries/go"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/look/standstill"
	"github.com/waymarkio/waymark/internal/look/webhook"
	"github.com/waymarkio/waymark/schema"
)

const secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSwMfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"

// receiver accepts posts like a receiver that follows the specification, with the specification's own library.
type receiver struct {
	t  *testing.T
	mu sync.Mutex
	// ids of the received posts, and answers to the next ones; 200 if there is none left.
	ids     []string
	answers []int
	last    map[string]any
	// refuses begins the ids of posts that it never accepts.
	refuses string
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
	if r.refuses != "" && strings.HasPrefix(r.ids[len(r.ids)-1], r.refuses) {
		code = http.StatusBadRequest
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

// fleet is the state that the daemon knows.
type fleet struct {
	mu    sync.Mutex
	heads map[string]*schema.Head
	known bool
	// broken: a head is unreadable. reads counts the tries.
	broken bool
	reads  int
	// listed is the list regardless of the heads; nil to use them.
	listed []webhook.Candidate
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
	if f.listed != nil {
		return f.listed, f.known
	}
	var list []webhook.Candidate
	for run, h := range f.heads {
		if l := schema.LiveOf(h); l.Attention != "" || l.Quarantined(0) {
			list = append(list, webhook.Candidate{Run: run, Changed: fmt.Sprint(l.Attention, l.Quarantined(0), l.Epoch)})
		}
	}
	return list, f.known
}

func (f *fleet) reasons(_ context.Context, c webhook.Candidate) ([]standstill.Reason, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.reads++
	if f.broken {
		return nil, errors.New("no leader")
	}
	if f.heads[c.Run] == nil {
		return nil, nil
	}
	return standstill.Of(f.heads[c.Run], f.heads[c.Run].Quarantined(0), false, nil), nil
}

func (f *fleet) change(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
}

func waiting(run, question, event string) *schema.Head {
	return &schema.Head{
		Fleet: "default", Run: run, Agent: "coder", Status: schema.StatusWaiting, Epoch: 1, UpdatedAt: event,
		Interrupts: []schema.OpenInterrupt{{InterruptID: question, Reason: schema.WaitHumanInput, Message: "Which one?", Since: "2026-01-02T03:04:05Z", Position: schema.Position{ID: event}}},
	}
}

// start runs a watch against a receiver without a socket, in a bubble of synthetic time.
func start(t *testing.T, f *fleet, r *receiver, ends ...func(context.Context, int) (webhook.Page, error)) (*webhook.Watch, func()) {
	t.Helper()
	return startTo(t, f, func(request *http.Request) (*http.Response, error) {
		recorder := httptest.NewRecorder()
		r.ServeHTTP(recorder, request)
		return recorder.Result(), nil
	}, ends...)
}

func startTo(t *testing.T, f *fleet, to roundTrip, ends ...func(context.Context, int) (webhook.Page, error)) (*webhook.Watch, func()) {
	t.Helper()
	key, err := webhook.ParseSecret(secret)
	require.NoError(t, err)
	w, err := webhook.New(webhook.Config{URL: "https://example.com/hook", Secret: key, Fleet: "default", Name: "daemon-1"}, webhook.Deps{
		Candidates: f.candidates, Reasons: f.reasons, Detail: func(context.Context, []standstill.Reason) {}, Now: time.Now, Log: zerolog.Nop(),
		Shards: len(ends), Ends: func(ctx context.Context, shard int) (webhook.Page, error) { return ends[shard](ctx, shard) },
	})
	require.NoError(t, err)
	webhook.SetTransport(w, to)
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
		after(2500 * time.Millisecond)
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

		// The same question asked again, and an additional one, are new things.
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

// The daemon dies between a post and its end; the next one posts the things that still wait, with the same id.
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
		f.change(func() { f.known = true })
		after(3 * time.Second)
		require.Empty(t, r.got())
		f.change(func() { f.broken = false })
		after(6 * time.Second)
		require.Len(t, r.got(), 1)
		stop()
	})
}

// A receiver takes 9 s. 60 runs ask, and all are answered 2 s later; then another one asks.
func TestWatch_SlowReceiver_GetsNothingThatWasAnswered(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := &fleet{heads: map[string]*schema.Head{}, known: true}
		begin := time.Now()
		answered := begin.Add(3 * time.Second)
		var mu sync.Mutex
		var late, now, most int
		var urgent time.Duration
		w, stop := startTo(t, f, func(r *http.Request) (*http.Response, error) {
			mu.Lock()
			now++
			most = max(most, now)
			if strings.HasPrefix(r.Header.Get("Webhook-Id"), "urgent") {
				urgent = time.Since(begin)
			} else if time.Now().After(answered) {
				late++
			}
			mu.Unlock()
			<-time.After(9 * time.Second)
			mu.Lock()
			now--
			mu.Unlock()
			return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody}, nil
		})
		for i := range 60 {
			f.set(fmt.Sprint("r", i), waiting(fmt.Sprint("r", i), "q", "e"))
		}
		after(3 * time.Second)
		require.Equal(t, int64(60), w.Stats().Pending.Load(), "all of them are read in the meantime")
		for i := range 60 {
			f.set(fmt.Sprint("r", i), nil)
		}
		f.set("urgent", waiting("urgent", "q", "e"))
		after(3 * time.Second)
		require.Equal(t, int64(1), w.Stats().Pending.Load())
		after(5 * time.Minute)
		mu.Lock()
		require.Zero(t, late, "posts of what was answered")
		require.Less(t, urgent, 13*time.Second, "behind the posts under way, and no others")
		require.Equal(t, 16, most, "posts at once")
		mu.Unlock()
		stop()
		require.Equal(t, 1, webhook.Known(w), "the others are forgotten")
	})
}

// The receiver is dead, and a hundred things fail repeatedly: a new one does not wait for all of them.
func TestWatch_DeadReceiver_NewThingIsTriedFirst(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := &fleet{heads: map[string]*schema.Head{}, known: true}
		var mu sync.Mutex
		var urgent time.Time
		w, stop := startTo(t, f, func(r *http.Request) (*http.Response, error) {
			if strings.HasPrefix(r.Header.Get("Webhook-Id"), "urgent") {
				mu.Lock()
				if urgent.IsZero() {
					urgent = time.Now()
				}
				mu.Unlock()
			}
			<-r.Context().Done()
			return nil, r.Context().Err()
		})
		for i := range 100 {
			f.set(fmt.Sprint("r", i), waiting(fmt.Sprint("r", i), "q", "e"))
		}
		after(5 * time.Minute)
		require.NotNil(t, w.Stats().Failing.Load())
		require.Contains(t, w.Stats().Failing.Load().Why, "deadline")
		require.WithinDuration(t, time.Now(), w.Stats().Failing.Load().Since, 5*time.Minute)
		asked := time.Now()
		f.set("urgent", waiting("urgent", "q", "e"))
		after(time.Minute)
		mu.Lock()
		require.WithinDuration(t, asked, urgent, 13*time.Second)
		mu.Unlock()
		for i := range 100 {
			f.set(fmt.Sprint("r", i), nil)
		}
		f.set("urgent", nil)
		after(2 * time.Second)
		require.Nil(t, w.Stats().Failing.Load(), "nothing that is needed fails")
		stop()
	})
}

// Its watch of the live index broke, and the person has answered in the meantime.
func TestWatch_RunsAreNotKnownAnyMore_PostsNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f, r := &fleet{heads: map[string]*schema.Head{}, known: true}, &receiver{t: t, answers: slices.Repeat([]int{500}, 100)}
		f.set("r1", waiting("r1", "q1", "e1"))
		_, stop := start(t, f, r)
		after(2500 * time.Millisecond)
		n := len(r.got())
		require.NotZero(t, n)
		f.change(func() { f.known = false })
		after(10 * time.Minute)
		require.Len(t, r.got(), n)
		f.change(func() { f.known = true })
		after(2 * time.Second)
		require.Len(t, r.got(), n+1, "it still waits")
		stop()
	})
}

func TestWatch_OneOfTwoIsAnswered_PostsTheOtherOnly(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f, r := &fleet{heads: map[string]*schema.Head{}, known: true}, &receiver{t: t, answers: slices.Repeat([]int{500}, 1000)}
		both, left := waiting("r1", "q1", "e1"), waiting("r1", "q2", "e2")
		both.Interrupts = append(both.Interrupts, left.Interrupts...)
		f.set("r1", both)
		_, stop := start(t, f, r)
		after(2500 * time.Millisecond)
		require.Len(t, distinct(r.got()), 2)
		f.set("r1", left)
		n := len(r.got())
		after(10 * time.Minute)
		require.Len(t, distinct(r.got()[n:]), 1)
		stop()
	})
}

// The answer came after the look at the live runs: the run is read again before the post.
func TestWatch_AnsweredSinceTheLook_IsNotPosted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f, r := &fleet{heads: map[string]*schema.Head{}, known: true}, &receiver{t: t, answers: []int{500}}
		f.set("r1", waiting("r1", "q1", "e1"))
		w, stop := start(t, f, r)
		after(2500 * time.Millisecond)
		require.Len(t, r.got(), 1)
		list, _ := f.candidates()
		f.change(func() { f.listed = list })
		f.set("r1", nil)
		after(10 * time.Minute)
		require.Len(t, r.got(), 1)
		require.Zero(t, w.Stats().Pending.Load())
		stop()
	})
}

func TestWatch_RunCannotBeRead_IsReadEverMoreSeldom(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f, r := &fleet{heads: map[string]*schema.Head{"r1": waiting("r1", "q1", "e1")}, known: true, broken: true}, &receiver{t: t}
		w, stop := start(t, f, r)
		after(10 * time.Minute)
		f.change(func() { require.LessOrEqual(t, f.reads, 12) })
		require.Greater(t, w.Stats().Unread.Load(), int64(5))
		f.change(func() { f.broken = false })
		f.set("r1", waiting("r1", "q1", "e2"))
		after(3 * time.Second)
		require.Len(t, r.got(), 1, "at once when it changes")
		stop()
	})
}

// Every reason that only a person can resolve is posted, whatever the run's status.
func TestWatch_EachKindThatNeedsAPerson_IsPosted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		call := schema.OpenCall{CallKey: schema.CallKey{Turn: 1, ToolCallID: "c", Occurrence: 1}, Name: "pay", Replay: schema.ReplayHold, Since: "s"}
		held := call
		held.State = schema.CallHeld
		head := func(run string, status schema.Status, calls []schema.OpenCall, gaps int64) *schema.Head {
			return &schema.Head{Fleet: "default", Run: run, Status: status, Epoch: 1, OpenCalls: calls, Counts: schema.Counts{Gaps: gaps}}
		}
		f, r := &fleet{heads: map[string]*schema.Head{
			"asks":        waiting("asks", "q", "e"),
			"held":        head("held", schema.StatusInterrupted, []schema.OpenCall{held}, 0),
			"held-ended":  head("held-ended", schema.StatusFailed, []schema.OpenCall{call}, 0),
			"gapped":      head("gapped", schema.StatusRunning, nil, 1),
			"quarantined": {Fleet: "default", Run: "quarantined", Status: schema.StatusOrphaned, Stalled: 3},
			"runs":        head("runs", schema.StatusRunning, []schema.OpenCall{call}, 0),
		}, known: true}, &receiver{t: t}
		_, stop := start(t, f, r)
		after(3 * time.Second)
		var kinds []string
		for _, id := range r.got() {
			kinds = append(kinds, id[:strings.LastIndexByte(id, '.')])
		}
		require.ElementsMatch(t, []string{"asks.waiting", "held.held", "held-ended.held", "gapped.incomplete", "quarantined.quarantined"}, kinds)
		stop()
	})
}

func TestWatch_Connections_AreItsOwn(t *testing.T) {
	t.Parallel()
	key, err := webhook.ParseSecret(secret)
	require.NoError(t, err)
	w, err := webhook.New(webhook.Config{URL: "https://example.com", Secret: key}, webhook.Deps{})
	require.NoError(t, err)
	require.NotNil(t, webhook.Transport(w), "nil is that of the whole process, whose connections Run would close")
	require.NotSame(t, http.DefaultTransport, webhook.Transport(w))
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
		_, err := webhook.New(webhook.Config{URL: text}, webhook.Deps{})
		require.ErrorIs(t, err, webhook.ErrConfig, text)
	}
	_, err := webhook.New(webhook.Config{URL: "http://127.0.0.1:8080/x?y=1"}, webhook.Deps{})
	require.NoError(t, err)
}

func FuzzParseSecret(f *testing.F) {
	f.Add(secret)
	f.Fuzz(func(t *testing.T, text string) {
		encoded, ok := strings.CutPrefix(strings.TrimSpace(text), "whsec_")
		key, err := base64.StdEncoding.DecodeString(encoded)
		signs, failed := webhook.ParseSecret(text)
		if good := ok && err == nil && len(key) >= 24 && len(key) <= 64; good != (failed == nil) || good != (signs != nil) {
			t.Errorf("%q: %v", text, failed)
		}
	})
}
