package cli

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/look/failure"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// Two keys of 32 bytes in base64.
const (
	firstKey  = "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY="
	secondKey = "ZmVkY2JhOTg3NjU0MzIxMGZlZGNiYTk4NzY1NDMyMTA="
)

// sealedCanaries stand in each place of content of the run below.
var sealedCanaries = []string{
	"canaryTask", "canaryLabel", "canaryInitial", "canarySystem", "canaryThought", "canaryAnswer", "canaryArgument", "canaryTool", "canaryPayee", "canaryState", "canaryResult",
	"canaryBlob", "canaryFailure", "canaryQuestion", "canaryReason", "canaryAllowed", "canarySignal", "canaryReceipt", "canaryArtifact", "canaryList", "canaryFile", "canaryNotes", "canaryDecision", "canaryDeclined", "canaryEnd", "canaryMany",
}

// sealedAgent is a loop with a canary in each place, and the policy that asks a person.
func sealedAgent() (publisher.Loop, publisher.Policy) {
	model := func(_ context.Context, request publisher.ModelRequest) (publisher.Answer, error) {
		if request.Turn > 1 {
			return publisher.Answer{Message: textMessage(schema.RoleAssistant, "canaryEnd")}, nil
		}
		return publisher.Answer{
			Message: schema.Message{Role: schema.RoleAssistant, Parts: []schema.Part{schema.Reasoning("canaryThought"), schema.Text("canaryAnswer")}},
			Calls: []publisher.ToolCall{
				{ID: "a", Name: "look", Arguments: []byte(`{"at":"canaryArgument"}`)},
				{ID: "b", Name: "fall", Arguments: []byte(`{}`)},
				{ID: "c", Name: "canaryTool", Arguments: []byte(`{}`)},
				{ID: "d", Name: "pay", Arguments: []byte(`{"to":"canaryPayee"}`)},
			},
		}, nil
	}
	loop := publisher.Loop{Model: model, System: "canarySystem", Tools: []publisher.Tool{
		{Name: "look", Replay: publisher.Pure, Run: func(ctx context.Context, inv publisher.Invocation) (publisher.ToolResult, error) {
			if err := inv.Run().SetState(ctx, "plan", "canaryState"); err != nil {
				return publisher.ToolResult{}, err
			}
			return publisher.Result("canaryResult " + strings.Repeat("canaryBlob ", 30_000))
		}},
		{Name: "fall", Replay: publisher.Pure, Run: func(context.Context, publisher.Invocation) (publisher.ToolResult, error) {
			return publisher.ToolResult{}, fmt.Errorf("canaryFailure")
		}},
		{Name: "pay", Replay: publisher.Hold, Run: func(ctx context.Context, inv publisher.Invocation) (publisher.ToolResult, error) {
			err := inv.Run().Publish(ctx, &schema.ArtifactAddedData{ArtifactID: "a1", Name: "canaryArtifact", Content: []byte(`"canaryReceipt"`)}, 0)
			if err == nil {
				err = inv.Run().Publish(ctx, &schema.ArtifactAddedData{ArtifactID: "a2", Name: "canaryList", Content: []byte(`"` + strings.Repeat("canaryListed ", 30_000) + `"`)}, 0)
			}
			if err != nil {
				return publisher.ToolResult{}, err
			}
			return publisher.Result("canaryReceipt")
		}},
	}}
	policy := func(_ context.Context, _ *publisher.Run, c publisher.ToolCall) (publisher.Decision, error) {
		if c.Name == "pay" {
			return publisher.Decision{Decision: schema.DecisionAsk, Policy: "money", Reason: "canaryReason", Message: "canaryQuestion"}, nil
		}
		return publisher.Decision{Decision: schema.DecisionAllow}, nil
	}
	return loop, policy
}

// TestEncryptedRun_KilledAskedForkedResumedAndSaved_OnlyTheKeyReadsIt runs an encrypted agent through all that the
// program does to a run, and looks for its content in every byte that came out.
func TestEncryptedRun_KilledAskedForkedResumedAndSaved_OnlyTheKeyReadsIt(t *testing.T) {
	if testing.Short() {
		t.Skip("short: every command on an encrypted run")
	}
	h := &haystack{parts: make(map[string][]byte)}
	dir, out := t.TempDir(), t.TempDir()
	keys := filepath.Join(t.TempDir(), "keys")
	require.NoError(t, os.WriteFile(keys, []byte("k1 "+firstKey+"\n"), 0o600))
	env := func(more map[string]string) func(string) string {
		return func(name string) string {
			if v, ok := more[name]; ok {
				return v
			}
			return map[string]string{"WAYMARK_STATE_DIR": dir, "HOME": dir, "XDG_CONFIG_HOME": dir, "WAYMARK_LOG_LEVEL": "debug"}[name]
		}
	}
	none, with := env(nil), env(map[string]string{"WAYMARK_KEY_FILE": keys})
	posts := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		var body strings.Builder
		_ = r.Write(&body)
		h.add("webhook", []byte(body.String()))
	}))
	defer posts.Close()
	secret := filepath.Join(t.TempDir(), "webhook")
	require.NoError(t, os.WriteFile(secret, []byte("whsec_"+firstKey), 0o600))
	log := new(lockedBuffer)
	serve := []string{"--quota", "64MiB", "--http", "127.0.0.1:0", "--silence", "10m", "--shards", "1", "--webhook", posts.URL, "--webhook-secret", secret}
	line, stop, err := startDaemonTo(log, serve, none)
	require.NoError(t, err)
	t.Cleanup(func() { _, _ = stop() })
	url := regexp.MustCompile(` url=(\S+)`).FindStringSubmatch(line)
	require.NotNil(t, url)

	t.Setenv("WAYMARK_STATE_DIR", dir)
	connect := func(executor string) *publisher.Fleet {
		encryption, err := publisher.KeyFile(keys)
		require.NoError(t, err)
		encryption.ReadableLabels = []string{"team"}
		_, policy := sealedAgent()
		f, err := publisher.Connect(t.Context(), publisher.Config{Executor: executor, Agent: "clerk", Encryption: encryption, Policy: policy})
		require.NoError(t, err)
		t.Cleanup(func() { _ = f.Close(context.WithoutCancel(t.Context())) })
		return f
	}
	loop, _ := sealedAgent()
	fleet := connect("first")
	run, err := fleet.Start(t.Context(), publisher.RunSpec{
		ID: "r1", Task: "canaryTask", Labels: map[string]string{"tenant": "canaryLabel", "team": "blue"}, State: map[string]any{"begin": "canaryInitial"},
	})
	require.NoError(t, err)
	h.waymarkAs(t, "used with the key", with, 0, "signal", "r1", "note", "--payload", `"canarySignal"`)
	require.NoError(t, run.Sync(t.Context()))
	ctx, die := context.WithCancel(t.Context())
	died := make(chan error, 1)
	go func() { died <- loop.Work(ctx, run) }()
	require.Eventually(t, func() bool { head := run.Head(); return len(head.Interrupts) == 1 }, time.Minute, 10*time.Millisecond)
	require.Eventually(t, func() bool { return slices.Contains(h.where("(encrypted)"), "webhook") }, time.Minute, 10*time.Millisecond, "the question is posted")
	die()
	require.Error(t, <-died)

	commands := func(where string, getenv func(string) string) {
		for _, args := range []string{
			"runs ls", "runs ls --json", "runs ls --label team=blue", "runs ls --stuck", "runs show r1", "runs show r1 --json", "inbox", "inbox --json", "runs get r1", "runs get r1 --json",
			"runs get r1 --view state", "runs get r1 --full", "runs history r1", "artifacts r1", "events r1 --all --no-follow",
			"events r1 --all --no-follow --json", "plan r1", "verify r1", "fleet show",
		} {
			h.waymarkAs(t, where, getenv, 0, strings.Fields(args)...)
		}
		// What is encrypted is named by its key, and no cipher text is shown as content.
		for _, args := range []string{"runs show r1", "inbox", "artifacts r1", "plan r1"} {
			_, text := runWith(t, getenv, strings.Fields(args)...)
			for _, word := range regexp.MustCompile(`[A-Za-z0-9+/]{32,}`).FindAllString(regexp.MustCompile(`ed25519-\S+`).ReplaceAllString(text, ""), -1) {
				require.True(t, regexp.MustCompile(`^[0-9a-f]+$`).MatchString(word), "%s, %s: %s in %s", args, where, word, text)
			}
		}
	}
	commands("asked without the key", none)
	commands("asked with the key", with)

	h.waymarkAs(t, "asked without the key", none, 0, "input", "r1")
	h.waymarkAs(t, "asked with the key", with, 0, "input", "r1")

	// An answer that the run did not ask for is refused by the program, which has the key; the right one is encrypted.
	code, text := runWith(t, with, "input", "r1", "--payload", `{"decision":"perhaps"}`)
	require.Equal(t, int(failure.Usage), code, text)
	requireHas(t, text, "does not match the schema of run r1")
	h.waymarkAs(t, "used with the key", with, 0, "input", "r1", "--allow", "--reason", "canaryAllowed")
	run, err = connect("second").Resume(t.Context(), "r1", publisher.ResumeSpec{})
	require.NoError(t, err)
	require.NoError(t, loop.Work(t.Context(), run))
	require.Equal(t, schema.StatusCompleted, run.Head().Status)
	long, err := fleet.Start(t.Context(), publisher.RunSpec{ID: "r2", Task: "canaryTask"})
	require.NoError(t, err)
	for i := range 400 {
		require.NoError(t, long.AddMessage(t.Context(), textMessage(schema.RoleUser, fmt.Sprintf("canaryMany %d", i))))
	}
	h.waymarkAs(t, "used with the key", with, 0, "runs", "get", "r2", "--full")
	h.waymarkAs(t, "used with the key", with, 0, "fork", "r1", "--at", "turn:1", "--as", "f1")
	h.waymarkAs(t, "used with the key", with, 0, "diff", "r1", "f1")
	rewound, err := fleet.Resume(t.Context(), "r1", publisher.ResumeSpec{At: schema.Point{Kind: schema.PointTurn, Number: 2}})
	require.NoError(t, err)
	offer, err := rewound.Handoff(schema.HandoffOfferedData{Reason: "task_complete", Completed: []schema.HandoffCompleted{{File: "canaryFile", Status: "done", Notes: "canaryNotes"}}, Context: &schema.HandoffContext{Decisions: []string{"canaryDecision"}}}).Offer(t.Context())
	require.NoError(t, err)
	h.waymarkAs(t, "used with the key", with, 0, "handoff", "answer", "r1", offer.HandoffID, "--decline", "canaryDeclined")
	require.NoError(t, rewound.End(t.Context(), publisher.RunEnd{Summary: "canaryEnd"}))
	commands("ended without the key", none)
	commands("ended with the key", with)
	// What is in the object store is decrypted, too; without the key it is said.
	code, text = runWith(t, with, "artifacts", "r1", "a2")
	require.Zero(t, code)
	require.Equal(t, strings.Repeat("canaryListed ", 30_000), text)
	code, text = runWith(t, none, "artifacts", "r1", "a2")
	require.NotZero(t, code)
	requireHas(t, text, "the content is encrypted with key k1")
	h.add("artifacts fetched without the key", []byte(text))
	require.NoError(t, os.Chmod(keys, 0o644))
	code, text = runWith(t, with, "runs", "ls")
	require.Zero(t, code, text)
	if runtime.GOOS != "windows" {
		requireHas(t, text, "every user of this machine can read the file of --key-file (mode -rw-r--r--)")
	}
	require.NoError(t, os.Chmod(keys, 0o600))

	// What is written without the key is said.
	code, text = runWith(t, none, "signal", "f1", "note", "--payload", `"plain"`)
	require.Zero(t, code, text)
	requireHas(t, text, "was stored in plain text, although run f1 is encrypted with key k1")

	// What is sent under another key is refused, and a run without keys stays so: no key file makes a run need its key.
	others := filepath.Join(t.TempDir(), "others")
	require.NoError(t, os.WriteFile(others, []byte("k9 "+secondKey+"\n"), 0o600))
	foreign := env(map[string]string{"WAYMARK_KEY_FILE": others})
	code, text = runWith(t, foreign, "cancel", "f1", "--reason", "canaryForeign")
	require.Equal(t, int(failure.Usage), code, text)
	requireHas(t, text, "run f1 is encrypted with key k1, which the key file does not have")
	h.waymark(t, none, 0, "start", "clerk", "--id", "plain")
	code, text = runWith(t, foreign, "signal", "plain", "note", "--payload", `"seen"`)
	require.Zero(t, code, text)
	requireHas(t, text, "the message was stored in plain text: run plain is not encrypted")
	code, text = runWith(t, none, "runs", "get", "plain", "--json")
	require.Zero(t, code, text)
	require.NotContains(t, text, "key_ids")

	saved := filepath.Join(out, "saved")
	h.waymark(t, none, 0, "backup", saved)
	h.waymark(t, none, 0, "backup", "verify", "--runs", saved)
	h.waymark(t, none, 0, "verify", "--all")
	base := regexp.MustCompile(` http=(\S+)`).FindStringSubmatch(line)
	for _, path := range []string{"/metrics", "/healthz", "/readyz"} {
		_, body := ask(t, base[1]+path)
		h.add("page "+path, []byte(body))
	}
	js, err := jetstream.New(fleet.Conn())
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		stream, err := js.Stream(t.Context(), "KV_"+schema.NamesOf(schema.DefaultFleet, 0).SegmentBucket())
		return err == nil && stream.CachedInfo().State.Msgs > 0
	}, time.Minute, 20*time.Millisecond, "no segment is sealed")
	h.streams(t, js)
	require.NoError(t, fleet.Close(t.Context()))
	exit, text := stop()
	require.Zero(t, exit, text)
	h.add("daemon's log", []byte(text))
	h.files(t, "store", dir)
	h.files(t, "backup", out)

	for _, canary := range sealedCanaries {
		for _, where := range h.where(canary) {
			require.True(t, strings.HasSuffix(where, "with the key"), "%s is in %s", canary, where)
		}
		seen := slices.ContainsFunc(h.where(canary), func(where string) bool { return strings.HasSuffix(where, "with the key") })
		require.True(t, seen, "%s is in no output with the key: %v", canary, h.where(canary))
	}
	for _, secret := range []string{firstKey, secondKey} {
		require.Empty(t, h.where(secret))
	}
	require.Contains(t, h.where("(encrypted"), "runs show without the key")
	require.Contains(t, h.where("clerk"), "runs ls without the key")

	// The backup in a new store: the run is read with the key.
	restored := t.TempDir()
	fresh := func(getenv func(string) string) func(string) string {
		return func(name string) string {
			if name == "WAYMARK_STATE_DIR" {
				return restored
			}
			return getenv(name)
		}
	}
	code, text = runWith(t, fresh(none), "restore", saved)
	require.Zero(t, code, text)
	_, stop, err = startDaemonTo(new(lockedBuffer), []string{"--http", "off"}, fresh(none))
	require.NoError(t, err)
	defer func() { _, _ = stop() }()
	code, text = runWith(t, fresh(with), "runs", "get", "r1", "--full")
	require.Zero(t, code, text)
	for _, canary := range []string{"canaryTask", "canaryBlob", "canaryEnd"} {
		require.Contains(t, text, canary)
	}
	code, text = runWith(t, fresh(none), "verify", "--all")
	require.Zero(t, code, text)
	code, text = runWith(t, fresh(env(map[string]string{"WAYMARK_KEY_FILE": others})), "runs", "get", "r1", "--full")
	require.Zero(t, code, text)
	require.NotContains(t, text, "canary", "another key reads nothing")
	require.NoError(t, os.WriteFile(keys, []byte("k1 "+secondKey+"\n"), 0o600))
	code, text = runWith(t, fresh(with), "runs", "get", "r1", "--full")
	require.Equal(t, int(failure.Damaged), code, text)
	requireHas(t, text, "the key does not open the value")
}

// runWith runs a command and returns its exit code and all that it prints.
func runWith(t *testing.T, getenv func(string) string, args ...string) (int, string) {
	t.Helper()
	var out lockedBuffer
	ctx, cancel := context.WithTimeout(t.Context(), securedWait)
	defer cancel()
	code := Run(ctx, args, getenv, strings.NewReader(""), &out, &out)
	return code, out.String()
}

// waymarkAs runs a command, and adds what it printed under its name and where.
func (h *haystack) waymarkAs(t *testing.T, where string, getenv func(string) string, code int, args ...string) {
	t.Helper()
	got, text := runWith(t, getenv, args...)
	require.Equal(t, code, got, "waymark %v, %s: %.3000s", args, where, text)
	name := args[0]
	if args[0] == "runs" {
		name += " " + args[1]
	}
	_, with, _ := strings.Cut(where, " ")
	h.add(name+" "+with, []byte(text))
}
