package cli

import (
	"bytes"
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/look/failure"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

func TestServe_WebhookFlagsThatCannotBeUsed_AreNamed(t *testing.T) {
	t.Parallel()
	where, _, _ := provisioned(t)
	file := filepath.Join(t.TempDir(), "secret")
	require.NoError(t, os.WriteFile(file, []byte("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSwMfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\n"), 0o600))
	const receiver = "http://127.0.0.1:9"
	for _, args := range [][]string{
		{"--webhook", receiver},
		{"--webhook-ends"},
		{"--webhook", receiver, "--webhook-secret", file, "--no-fold"},
		{"--webhook", "nowhere", "--webhook-secret", file},
		{"--webhook", receiver, "--webhook-secret", filepath.Join(t.TempDir(), "none")},
		{"--webhook", receiver, "--webhook-secret", os.Args[0]},
	} {
		var complaints bytes.Buffer
		code := Run(t.Context(), append(append([]string{"serve", "--http", "off"}, args...), where...), func(string) string { return "" }, nil, io.Discard, &complaints)
		require.Contains(t, []int{int(failure.Usage), int(failure.NotFound)}, code, complaints.String())
		require.Contains(t, complaints.String(), "--webhook")
		require.Contains(t, complaints.String(), "hint: ")
	}
}

// The receiver is away, and the daemon is restarted meanwhile.
func TestServe_WebhookEnds_ReceiverIsAway_EachEndIsPostedLater(t *testing.T) {
	t.Parallel()
	where, js, fleet := provisioned(t)
	end := func(id string) {
		run, err := fleet.Start(t.Context(), publisher.RunSpec{ID: id})
		require.NoError(t, err)
		require.NoError(t, run.End(t.Context(), publisher.RunEnd{}))
	}
	var mu sync.Mutex
	var refused int
	var taken []string
	away := true
	receiver := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var event struct {
			ID, Type string
			Data     schema.RunSummary
		}
		if err := json.NewDecoder(r.Body).Decode(&event); err != nil || event.Type != "io.waymark.run.finished.v1" || event.Data.Status != schema.StatusCompleted {
			t.Errorf("%+v: %v", event, err)
		}
		mu.Lock()
		defer mu.Unlock()
		if away {
			refused++
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		taken = append(taken, event.ID)
	}))
	t.Cleanup(receiver.Close)
	file := filepath.Join(t.TempDir(), "secret")
	require.NoError(t, os.WriteFile(file, []byte("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSwMfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\n"), 0o600))
	serve := func() func() (int, string) {
		_, stop, err := startDaemonTo(new(lockedBuffer), append([]string{"--http", "off", "--webhook", receiver.URL, "--webhook-secret", file, "--webhook-ends"}, where...), func(string) string { return "" })
		require.NoError(t, err)
		return stop
	}
	stop := serve()
	kv, err := js.KeyValue(t.Context(), schema.NamesOf(schema.DefaultFleet, 0).CheckpointBucket())
	require.NoError(t, err)
	eventually := func(is func() bool) {
		require.Eventually(t, func() bool {
			mu.Lock()
			defer mu.Unlock()
			return is()
		}, time.Minute, 20*time.Millisecond)
	}
	eventually(func() bool { _, err := kv.Get(t.Context(), schema.PostedKey); return err == nil })
	end("r1")
	end("r2")
	eventually(func() bool { return refused > 1 })
	require.Eventually(t, func() bool {
		var out bytes.Buffer
		code := Run(t.Context(), append([]string{"doctor", "--json"}, where...), func(string) string { return "" }, nil, &out, io.Discard)
		return code == 0 && strings.Contains(out.String(), "ends of runs are not taken from daemon")
	}, time.Minute, 50*time.Millisecond)
	_, _ = stop()
	end("r3")
	mu.Lock()
	away = false
	mu.Unlock()
	stop = serve()
	eventually(func() bool { return len(taken) == 3 })
	_, _ = stop()
	stop = serve()
	end("r4")
	eventually(func() bool { return len(taken) > 3 })
	_, _ = stop()
	require.ElementsMatch(t, []string{"r1.finished.1", "r2.finished.1", "r3.finished.1", "r4.finished.1"}, taken, "accepted ends are not posted again")
}

// gapped is a run of which events are missing: its last event comes once more, as if others had come before it.
func gapped(t *testing.T, js jetstream.JetStream, fleet *publisher.Fleet, id string) {
	t.Helper()
	run, err := fleet.Start(t.Context(), publisher.RunSpec{ID: id})
	require.NoError(t, err)
	require.NoError(t, run.AddMessage(t.Context(), schema.Message{Role: schema.RoleUser, Parts: []schema.Part{schema.Text("x")}}))
	stream, err := js.Stream(t.Context(), schema.NamesOf(schema.DefaultFleet, 0).EventStream())
	require.NoError(t, err)
	m, err := stream.GetMsg(t.Context(), uint64(run.Head().Position.Stream))
	require.NoError(t, err)
	e, err := schema.Decode(m.Header, m.Data)
	require.NoError(t, err)
	e.Sequence += 3
	e.ID = schema.EventID(id, e.Epoch, e.Sequence, e.ContentHash())
	header, body := e.Encode()
	_, err = js.PublishMsg(t.Context(), &nats.Msg{Subject: m.Subject, Header: header, Data: body})
	require.NoError(t, err)
}

// attention is what a person decides on: an entry of the inbox, or the data of a post.
type attention struct {
	ID, Run, Kind string
	SideEffect    string `json:"side_effect"`
	Arguments     json.RawMessage
}

func (a attention) text() string {
	text := a.Run + " " + a.Kind
	if a.SideEffect != "" {
		var arguments bytes.Buffer
		_ = json.Compact(&arguments, a.Arguments)
		text += ": " + a.SideEffect + " " + arguments.String()
	}
	return text
}

// What the inbox lists is what is posted, and is posted no more once a person has answered.
func TestServe_Webhook_PostsTheWholeInbox(t *testing.T) {
	t.Parallel()
	where, js, fleet := provisioned(t)
	ctx := t.Context()
	gapped(t, js, fleet, "gapped")
	run, err := fleet.Start(ctx, publisher.RunSpec{ID: "ended"})
	require.NoError(t, err)
	turn, err := run.StartTurn(ctx, publisher.TurnSpec{})
	require.NoError(t, err)
	_, err = turn.Call(ctx, publisher.ToolCall{ID: "c1", Name: "pay", Replay: publisher.Hold})
	require.NoError(t, err)
	require.NoError(t, run.End(ctx, publisher.RunEnd{Status: schema.StatusFailed, Error: &schema.Error{Type: "x", Message: "y"}}))
	run, err = fleet.Start(ctx, publisher.RunSpec{ID: "asks"})
	require.NoError(t, err)
	require.NoError(t, run.Wait(ctx, schema.RunWaitingData{InterruptID: "q1", Reason: schema.WaitHumanInput, Message: "Which one?"}))
	run, err = fleet.Start(ctx, publisher.RunSpec{ID: "pays"})
	require.NoError(t, err)
	turn, err = run.StartTurn(ctx, publisher.TurnSpec{})
	require.NoError(t, err)
	_, err = turn.Answer(ctx, publisher.Answer{Message: textMessage(schema.RoleAssistant, "I pay"), Calls: []publisher.ToolCall{{
		ID: "c1", Name: "pay", Replay: publisher.Hold, SideEffect: "moves money", Arguments: []byte(`{"to":"archive","cents":500}`),
	}}})
	require.NoError(t, err)
	require.NoError(t, run.Wait(ctx, schema.RunWaitingData{InterruptID: "a1", Reason: schema.WaitToolApproval, ToolCallID: "c1", Occurrence: 1, Message: "May it?"}))

	var mu sync.Mutex
	posted := map[string]string{}
	refuse := true
	receiver := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var event struct {
			Data attention
		}
		if err := json.NewDecoder(r.Body).Decode(&event); err != nil {
			t.Error(err)
		}
		mu.Lock()
		defer mu.Unlock()
		posted[event.Data.ID] = event.Data.text()
		if refuse {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	t.Cleanup(receiver.Close)
	file := filepath.Join(t.TempDir(), "secret")
	require.NoError(t, os.WriteFile(file, []byte("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSwMfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\n"), 0o600))
	require.NoError(t, os.Chmod(file, 0o644))
	getenv := func(string) string { return "" }
	log := new(lockedBuffer)
	_, stop, err := startDaemonTo(log, append([]string{"--http", "off", "--webhook", receiver.URL, "--webhook-secret", file}, where...), getenv)
	require.NoError(t, err)
	t.Cleanup(func() { _, _ = stop() })
	require.Contains(t, log.String(), "every user of this machine can read the secret of the webhook")
	ask := func(args ...string) string {
		var out, complaints bytes.Buffer
		require.Zero(t, Run(ctx, append(args, where...), getenv, strings.NewReader(""), &out, &complaints), complaints.String())
		return out.String()
	}
	is := func() map[string]string {
		var list struct {
			Inbox []attention
		}
		require.NoError(t, json.Unmarshal([]byte(ask("inbox", "--json")), &list))
		got := map[string]string{}
		for _, e := range list.Inbox {
			got[e.ID] = e.text()
		}
		return got
	}
	require.Eventually(t, func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(posted) == 4
	}, time.Minute, 20*time.Millisecond)
	mu.Lock()
	require.Equal(t, is(), posted)
	require.ElementsMatch(t, []string{"gapped incomplete", "ended held", "asks waiting", `pays waiting: moves money {"to":"archive","cents":500}`}, slices.Collect(maps.Values(posted)))
	mu.Unlock()
	require.Eventually(t, func() bool { return strings.Contains(ask("doctor"), "posts fail since") }, time.Minute, 50*time.Millisecond)
	require.Regexp(t, `4 entries of the inbox are not taken from daemon \S+, and posts fail since \S+: .*503`, strings.Join(strings.Fields(ask("doctor", "--json")), " "))

	// The answers are given while the receiver is away: it never hears of them again.
	ask("input", "asks", "q1", "--text", "this one")
	ask("settle", "ended", "1", "c1", "--how", "abandoned")
	require.Regexp(t, `pays.*, \d+s ago: waits for approval of pay: May it\?\n    side effect: moves money\n    arguments: \{"to":"archive","cents":500\}\n    waymark .*input pays a1 .*--allow\n`, ask("inbox"))
	ask("input", "pays", "--deny")
	require.Eventually(t, func() bool { return len(is()) == 1 }, time.Minute, 50*time.Millisecond)
	mu.Lock()
	refuse = false
	clear(posted)
	mu.Unlock()
	require.Eventually(t, func() bool {
		return strings.Contains(ask("doctor"), "no post of the answering daemon fails")
	}, time.Minute, 50*time.Millisecond)
	mu.Lock()
	require.ElementsMatch(t, []string{"gapped incomplete"}, slices.Collect(maps.Values(posted)))
	mu.Unlock()
}
