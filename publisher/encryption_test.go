package publisher_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/klauspost/compress/zstd"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/nats/eventlog"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// secretKeys is an encryption with keys by id, each of which is its id repeated.
func secretKeys(current string, others ...string) *publisher.Encryption {
	ids := append([]string{current}, others...)
	return &publisher.Encryption{Current: current, Key: func(_ context.Context, id string) ([]byte, error) {
		if slices.Contains(ids, id) {
			return bytes.Repeat([]byte(id), 32)[:32], nil
		}
		return nil, publisher.ErrNoKey
	}}
}

func encrypted(e *publisher.Encryption) func(*publisher.Config) {
	return func(c *publisher.Config) { c.Encryption = e }
}

// found returns where a text is in what the server stores: in messages of any stream, as it is, in base64 or packed.
func (w *world) found(texts ...string) (at []string) {
	w.tb.Helper()
	dec, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1))
	require.NoError(w.tb, err)
	defer dec.Close()
	streams := w.js.StreamNames(w.tb.Context())
	for name := range streams.Name() {
		stream, err := w.js.Stream(w.tb.Context(), name)
		require.NoError(w.tb, err)
		state := stream.CachedInfo().State
		for seq := state.FirstSeq; seq <= state.LastSeq; seq++ {
			m, err := stream.GetMsg(w.tb.Context(), seq)
			if err != nil {
				continue // purged
			}
			body := m.Data
			if i := bytes.Index(body, []byte{0x28, 0xb5, 0x2f, 0xfd}); i >= 0 {
				if plain, err := dec.DecodeAll(body[i:], nil); err == nil {
					body = append(bytes.Clone(body), plain...)
				}
			}
			body = append([]byte(fmt.Sprintln(m.Subject, m.Header)), body...)
			for _, text := range texts {
				forms := []string{text}
				for shift := range 3 {
					coded := base64.RawStdEncoding.EncodeToString(append(make([]byte, shift), text...))
					forms = append(forms, coded[(8*shift+5)/6:8*(shift+len(text))/6]) // without what depends on its neighbours
				}
				for _, form := range forms {
					if bytes.Contains(body, []byte(form)) {
						at = append(at, fmt.Sprintf("%s in stream %s: %s %.300s", text, name, m.Subject, body))
						break
					}
				}
			}
		}
	}
	require.NoError(w.tb, streams.Err())
	return at
}

// canaries stand in every place of content in the test below; each is long enough to be found in base64.
var canaries = []string{
	"canaryTask", "canaryLabel", "canaryInitial", "canaryStart", "canarySystem", "canarySignal", "canaryParticipant", "canarySource", "canaryThought", "canaryAnswer",
	"canaryArgument", "canaryTool", "canaryPayee", "canaryUsage", "canaryState", "canaryResult", "canaryBlob", "canaryError", "canaryCode", "canaryReceipt", "canaryReason",
	"canaryQuestion", "canaryAllowed", "canaryArtifact", "canaryPath", "canaryDigest", "canaryContent", "canaryRaised", "canaryExtra", "canaryPhase", "canaryFile", "canaryNotes",
	"canaryRemaining", "canaryDecision",
}

// An agent of a Loop with content in every field that can have some: the server stores none in the clear, and the key decrypts all.
func TestEncryption_RunIsKilledAskedForkedAndRewound_ServerHasNoContent(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.daemon()
	keys := secretKeys("k1")
	policy := func(_ context.Context, _ *publisher.Run, c publisher.ToolCall) (publisher.Decision, error) {
		if c.Name == "pay" {
			return publisher.Decision{Decision: schema.DecisionAsk, Policy: "money", Reason: "canaryReason", Message: "canaryQuestion"}, nil
		}
		return publisher.Decision{Decision: schema.DecisionAllow}, nil
	}
	f := w.fleet(encrypted(keys), func(c *publisher.Config) { c.Policy = policy })
	m := &scripted{answers: map[int32]publisher.Answer{
		1: {
			Message: schema.Message{Role: schema.RoleAssistant, Name: "canaryParticipant", Source: raw(`{"signature":"canarySource"}`), Parts: []schema.Part{schema.Reasoning("canaryThought"), schema.Text("canaryAnswer")}},
			Calls: []publisher.ToolCall{
				call("a", "look", `{"at":"canaryArgument"}`), call("b", "fail", `{}`), call("c", "canaryTool", `{}`), call("d", "pay", `{"to":"canaryPayee"}`),
			},
			Usage: &schema.Usage{InputTokens: 3, Extra: raw(`{"more":"canaryUsage"}`)},
		},
		2: {Message: assistant(schema.Text("canaryEnd " + strings.Repeat("canaryLarge ", 40_000)))},
	}}
	large := strings.Repeat("canaryBlob ", 30_000)
	tools := []publisher.Tool{
		{Name: "look", Replay: publisher.Pure, Run: func(ctx context.Context, inv publisher.Invocation) (publisher.ToolResult, error) {
			require.JSONEq(t, `{"at":"canaryArgument"}`, string(inv.Arguments))
			if err := inv.Run().SetState(ctx, "plan", map[string]string{"step": "canaryState"}); err != nil {
				return publisher.ToolResult{}, err
			}
			return publisher.Result("canaryResult " + large)
		}},
		{Name: "fail", Replay: publisher.Pure, Run: func(context.Context, publisher.Invocation) (publisher.ToolResult, error) {
			return publisher.ToolResult{}, &publisher.ToolError{Failure: schema.Error{Type: "io", Message: "canaryError"}}
		}},
		{Name: "pay", Replay: publisher.Hold, Run: func(context.Context, publisher.Invocation) (publisher.ToolResult, error) {
			return publisher.Result("canaryReceipt")
		}},
	}
	loop := publisher.Loop{Model: m.model, System: "canarySystem", Tools: tools}

	run, err := f.Start(t.Context(), publisher.RunSpec{
		ID: "r1", Task: "canaryTask", Labels: map[string]string{"tenant": "canaryLabel"}, State: map[string]any{"begin": "canaryInitial"}, Source: raw(`"canaryStart"`),
	})
	require.NoError(t, err)
	require.NoError(t, f.Signal(t.Context(), "r1", publisher.SignalSpec{ID: "s1", Name: "news", Payload: raw(`"canarySignal"`)}))
	require.NoError(t, f.Signal(t.Context(), "r1", publisher.SignalSpec{ID: "s1", Name: "news", Payload: raw(`"canarySignal"`)}), "the same signal is the same cipher text")
	ctx, die := context.WithCancel(t.Context())
	died := make(chan error, 1)
	go func() { died <- loop.Work(ctx, run) }()
	require.Eventually(t, func() bool { head := run.Head(); return len(head.Interrupts) == 1 }, time.Minute, 10*time.Millisecond)
	die()
	require.Error(t, <-died)

	// Another executor takes the run over; a person answers.
	run = resume(t, w.fleet(encrypted(keys), func(c *publisher.Config) { c.Policy = policy }), "r1")
	require.NoError(t, f.Input(t.Context(), "r1", publisher.Input{InterruptID: run.Head().Interrupts[0].InterruptID, EventID: run.Head().Interrupts[0].Position.ID, Payload: raw(`{"decision":"allow","reason":"canaryAllowed"}`)}))
	require.NoError(t, loop.Work(t.Context(), run))
	require.NoError(t, run.Sync(t.Context()))
	require.Equal(t, schema.StatusCompleted, run.Head().Status)
	require.Equal(t, []string{"k1"}, run.Head().KeyIDs)

	// Behind the end: a rewind, with what has no place in a loop, a fork, a hand-off.
	run, err = f.Resume(t.Context(), "r1", publisher.ResumeSpec{At: schema.Point{Kind: schema.PointTurn, Number: 1}})
	require.NoError(t, err)
	require.NoError(t, run.Publish(t.Context(), &schema.ArtifactAddedData{ArtifactID: "a1", Name: "canaryArtifact", URI: "file:canaryPath", Digest: "sha256-canaryDigest", Content: raw(`"canaryContent"`)}, 0))
	require.NoError(t, run.Publish(t.Context(), &schema.ErrorRaisedData{Error: schema.Error{Type: "io", Message: "canaryRaised", Code: "canaryCode", Extra: raw(`{"detail":"canaryExtra"}`)}}, 0))
	_, err = run.Phase(t.Context(), "plan", func(context.Context) (any, error) { return "canaryPhase", nil })
	require.NoError(t, err)
	fork, err := f.Fork(t.Context(), publisher.ForkSpec{ID: "f1", Base: "r1"})
	require.NoError(t, err)
	offer, err := run.Handoff(schema.HandoffOfferedData{
		Reason:    "task_complete",
		Completed: []schema.HandoffCompleted{{File: "canaryFile", Status: "done", Notes: "canaryNotes"}},
		Remaining: []schema.HandoffRemaining{{Description: "canaryRemaining"}},
		Context:   &schema.HandoffContext{Decisions: []string{"canaryDecision"}},
	}).Offer(t.Context())
	require.NoError(t, err)
	require.False(t, run.Head().SizeWarning)
	offers, err := f.Offers(t.Context(), "r1")
	require.NoError(t, err)
	require.Equal(t, "canaryNotes", offers[0].Data.Completed[0].Notes)
	require.Equal(t, offer.Hash, offers[0].Hash)
	child, err := f.AcceptHandoff(t.Context(), offers[0], publisher.RunSpec{ID: "c1"})
	require.NoError(t, err)
	require.NoError(t, f.CloseHandoff(t.Context(), offers[0], "", "canaryClosed"))
	require.NoError(t, f.Cancel(t.Context(), "f1", "", "canaryCancelled"))

	require.Empty(t, w.found(append([]string{"canaryLarge", "canaryEnd", "canaryClosed", "canaryCancelled"}, canaries...)...))
	require.NotEmpty(t, w.found("(encrypted)"), "the checkpoints are there")
	require.NotEmpty(t, w.found("in_doubt.none", "tool.called", "r1.1.a.1", "look\""), "names of tools stay readable")

	var begin, plan any
	for _, r := range []*publisher.Run{fork, child} {
		found, err := r.GetState(t.Context(), "begin", &begin)
		require.NoError(t, err)
		require.True(t, found)
		require.Equal(t, "canaryInitial", begin)
		_, err = r.GetState(t.Context(), "plan", &plan)
		require.NoError(t, err)
		require.Equal(t, map[string]any{"step": "canaryState"}, plan)
	}
	output, err := run.Phase(t.Context(), "plan", nil)
	require.NoError(t, err)
	require.JSONEq(t, `"canaryPhase"`, string(output))

	state, err := f.Get(t.Context(), "r1")
	require.NoError(t, err)
	require.NoError(t, f.Hydrate(t.Context(), state))
	text, err := json.Marshal(state)
	require.NoError(t, err)
	for _, want := range canaries {
		require.Contains(t, string(text), want)
	}
	require.NotContains(t, string(text), `"key_id"`, "nothing is left encrypted")
	require.Equal(t, "(encrypted)", state.Head.Task)
	require.Equal(t, map[string]string{"tenant": "(encrypted)"}, state.Head.Labels)
}

// Without the key, with another one of the id, and with one that was not given, an executor is told before anything is changed.
func TestResume_KeyIsNotThere_FailsBeforeAnythingIsChanged(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve()
	run := start(t, w.fleet(encrypted(secretKeys("k1"))), "r1")
	require.NoError(t, run.Interrupt(t.Context(), schema.InterruptedShutdown))
	before := len(w.log("r1"))
	for _, c := range []struct {
		name string
		keys *publisher.Encryption
		is   error
		want string
	}{
		{"no keys at all", nil, publisher.ErrEncrypted, "run r1: the content is encrypted with key k1, which is missing"},
		{"other keys", secretKeys("k2"), publisher.ErrEncrypted, "run r1: the content is encrypted with key k1, which is missing"},
		{"another key of the id", &publisher.Encryption{Current: "k1", Key: func(context.Context, string) ([]byte, error) { return make([]byte, 32), nil }}, publisher.ErrNotDecrypted, "key k1"},
		{"a key that cannot be had", &publisher.Encryption{Current: "k2", Key: func(_ context.Context, id string) ([]byte, error) {
			if id == "k2" {
				return make([]byte, 32), nil
			}
			return nil, errors.New("the vault is sealed")
		}}, publisher.ErrUnavailable, "the vault is sealed"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := w.fleet(encrypted(c.keys), func(c *publisher.Config) { c.Executor = "exec-2" }).Resume(t.Context(), "r1", publisher.ResumeSpec{})
			require.ErrorContains(t, err, c.want)
			require.ErrorContains(t, err, "nothing was changed")
			require.ErrorIs(t, err, c.is)
			require.Len(t, w.log("r1"), before)
		})
	}
	_, err := publisher.Connect(t.Context(), publisher.Config{Conn: w.nc, Executor: "e", Encryption: &publisher.Encryption{Current: "k1", Key: secretKeys("k2").Key}})
	require.ErrorIs(t, err, publisher.ErrNoKey)
	require.ErrorIs(t, err, publisher.ErrConfig)
}

// A claim is the daemon's takeover: who cannot read the run gives it back.
func TestClaim_KeyIsNotThere_RunIsGivenBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.daemon()
	_, err := w.fleet(encrypted(secretKeys("k1"))).Submit(t.Context(), publisher.RunSpec{ID: "r1", Task: "canaryTask"})
	require.NoError(t, err)
	f := w.fleet(func(c *publisher.Config) { c.Executor = "exec-2" })
	var claimed *publisher.ClaimedRunError
	require.Eventually(t, func() bool {
		_, err = f.Claim(t.Context(), publisher.ClaimSpec{})
		return errors.As(err, &claimed)
	}, time.Minute, 10*time.Millisecond)
	require.ErrorIs(t, err, publisher.ErrEncrypted)
	require.True(t, claimed.GivenBack)
	head, err := f.Head(t.Context(), "r1")
	require.NoError(t, err)
	require.Equal(t, schema.StatusInterrupted, head.Status)
}

// An executor without the key says nothing about the run: others are given it, however often it was given back.
func TestClaim_ExecutorsWithoutTheKey_RunIsNotQuarantined(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.daemon()
	_, err := w.fleet(encrypted(secretKeys("k1"))).Submit(t.Context(), publisher.RunSpec{ID: "r1", Task: "canaryTask"})
	require.NoError(t, err)
	vault := &publisher.Encryption{Current: "k2", Key: func(_ context.Context, id string) ([]byte, error) {
		if id == "k2" {
			return make([]byte, 32), nil
		}
		return nil, errors.New("the vault is sealed")
	}}
	short := &publisher.Encryption{Current: "k2", Key: func(_ context.Context, id string) ([]byte, error) {
		return make([]byte, map[string]int{"k1": 16, "k2": 32}[id]), nil
	}}
	for i, keys := range []*publisher.Encryption{nil, secretKeys("k2"), vault, short} {
		f := w.fleet(encrypted(keys), func(c *publisher.Config) { c.Executor = fmt.Sprint("without-", i) })
		var claimed *publisher.ClaimedRunError
		require.Eventually(t, func() bool {
			_, err = f.Claim(t.Context(), publisher.ClaimSpec{})
			return errors.As(err, &claimed)
		}, time.Minute, 10*time.Millisecond, "%d", i)
		require.True(t, claimed.GivenBack, "%d: %v", i, claimed.Err)
		last := w.log("r1")
		require.Contains(t, string(last[len(last)-1].Body), `"unavailable"`)
		for range 3 {
			_, err = f.Claim(t.Context(), publisher.ClaimSpec{})
			require.ErrorIs(t, err, publisher.ErrNothing, "it is not given the run again")
		}
	}
	f := w.fleet(encrypted(secretKeys("k1")), func(c *publisher.Config) { c.Executor = "with" })
	require.Eventually(t, func() bool {
		run, err := f.Claim(t.Context(), publisher.ClaimSpec{})
		return err == nil && run.ID() == "r1"
	}, time.Minute, 10*time.Millisecond)
}

// A request is encrypted with a key of the run, not with the first key of the sender: the same executors can resume the run as before.
func TestRequest_SenderHasOtherKeys_RunNeedsNoOtherKey(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve()
	send := func(run string, keys *publisher.Encryption) error {
		f := w.fleet(encrypted(keys), func(c *publisher.Config) { c.Executor = "sender" })
		return errors.Join(f.Signal(t.Context(), run, publisher.SignalSpec{ID: "s-" + keys.Current, Name: "news", Payload: raw(`"canary"`)}), f.Cancel(t.Context(), run, "", "canary"))
	}
	start(t, w.fleet(), "plain")
	require.NoError(t, send("plain", secretKeys("k2")))
	signals, err := resume(t, w.fleet(), "plain").Signals(t.Context())
	require.NoError(t, err)
	require.Len(t, signals, 1)

	start(t, w.fleet(encrypted(secretKeys("k1"))), "r1")
	require.NoError(t, send("r1", secretKeys("k2", "k1")))
	require.Equal(t, []string{"k1"}, w.fold("r1").Head.KeyIDs)
	require.ErrorIs(t, send("r1", secretKeys("k2")), publisher.ErrNoKey)
	signals, err = resume(t, w.fleet(encrypted(secretKeys("k1"))), "r1").Signals(t.Context())
	require.NoError(t, err)
	require.Len(t, signals, 1)
	require.JSONEq(t, `"canary"`, string(signals[0].Payload))

	// Not even a signed event in the log makes it need another.
	head := w.fold("r1").Head
	e, err := schema.NewControl(head.Fleet, "d", "r1", head.Epoch, "once", &schema.SignalSentData{
		SignalID: "s9", Name: "news", Payload: raw(`"c2VjcmV0"`), By: "x", Refs: []schema.Ref{{Path: "/payload", KeyID: "k9", Codec: "c"}},
	}, time.Now())
	require.NoError(t, err)
	rec := func() schema.Record { header, body := e.Encode(); return schema.NewRecord(0, header, body) }()
	require.Equal(t, schema.Applied, head.Apply(schema.NoKeys, &rec).Kind)
	require.Len(t, head.Signals, 2)
	require.Equal(t, []string{"k1"}, head.KeyIDs)
}

// Without the key an executor gets an error, and no cipher text as content.
func TestReads_KeyIsNotThere_AreErrors(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve()
	f := w.fleet(encrypted(secretKeys("k1")))
	run := start(t, f, "r1")
	require.NoError(t, run.Wait(t.Context(), schema.RunWaitingData{InterruptID: "q", Reason: schema.WaitHumanInput}))
	require.NoError(t, f.Input(t.Context(), "r1", publisher.Input{InterruptID: "q", EventID: questionOf(t, f, "r1", "q"), Payload: raw(`"canary"`)}))
	offer, err := run.Handoff(schema.HandoffOfferedData{Reason: "task_complete", Context: &schema.HandoffContext{Decisions: []string{"canary"}}}).Offer(t.Context())
	require.NoError(t, err)
	input, err := run.AwaitInput(t.Context(), "q")
	require.NoError(t, err)
	require.JSONEq(t, `"canary"`, string(input.Payload))

	other := w.fleet(encrypted(secretKeys("k2")), func(c *publisher.Config) { c.Executor = "exec-2" })
	offers, err := other.Offers(t.Context(), "r1")
	require.ErrorIs(t, err, publisher.ErrEncrypted)
	require.ErrorContains(t, err, "hand-off "+offer.HandoffID+" of run r1: the content is encrypted with key k1")
	require.Empty(t, offers)
	offer.Data = *w.fold("r1").Handoffs[0].Offered
	_, err = other.AcceptHandoff(t.Context(), offer, publisher.RunSpec{ID: "c1"})
	require.ErrorIs(t, err, publisher.ErrEncrypted)
	require.NoError(t, run.Interrupt(t.Context(), schema.InterruptedShutdown))
	keyless := w.fleet(func(c *publisher.Config) { c.Executor = "exec-3" })
	_, err = keyless.Resume(t.Context(), "r1", publisher.ResumeSpec{})
	require.ErrorIs(t, err, publisher.ErrEncrypted)
	head, err := keyless.Release(t.Context(), "r1", publisher.ResumeSpec{})
	require.NoError(t, err, "a release needs no key")
	require.Equal(t, schema.StatusInterrupted, head.Status)
	require.Equal(t, w.fold("r1").Head, head)
}

// A name that the model made up is content, whatever else is wrong with the call.
func TestLoop_NamesThatTheModelMadeUp_AreEncrypted(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve()
	f := w.fleet(encrypted(secretKeys("k1")))
	deep := strings.Repeat("[", 300) + strings.Repeat("]", 300)
	m := &scripted{answers: map[int32]publisher.Answer{
		1: {
			Message: schema.Message{Role: schema.RoleAssistant, Parts: []schema.Part{
				schema.CallPart("a", "canaryDeep"), schema.CallPart("b", "canaryControl\x01"), schema.CallPart("c", "canaryBroken"), schema.CallPart("d", "look"),
			}},
			Calls: []publisher.ToolCall{
				call("a", "canaryDeep", deep), call("b", "canaryControl\x01", `{`), call("c", "canaryBroken", `{}`), call("d", "look", `{}`),
			},
		},
		2: {
			Message: schema.Message{Role: schema.RoleAssistant, Parts: []schema.Part{schema.CallPart("a", "canaryCut")}},
			Calls:   []publisher.ToolCall{call("a", "canaryCut", `{}`)}, FinishReasons: []string{"length"},
		},
		3: {Message: assistant(schema.Text("done"))},
	}}
	m.answers[1].Calls[2].Error = &schema.Error{Type: "adapter", Message: "it is broken"}
	look := publisher.Tool{Name: "look", Replay: publisher.Pure, Run: func(context.Context, publisher.Invocation) (publisher.ToolResult, error) {
		return publisher.Result("seen")
	}}
	run := start(t, f, "r1")
	require.NoError(t, (&publisher.Loop{Model: m.model, Tools: []publisher.Tool{look}}).Work(t.Context(), run))
	require.NoError(t, run.Sync(t.Context()))
	require.Empty(t, w.found("canaryDeep", "canaryControl", "canaryBroken", "canaryCut"))
	state, err := f.Get(t.Context(), "r1")
	require.NoError(t, err)
	require.Equal(t, "canaryDeep", state.Calls[0].Name)
	require.Contains(t, state.Calls[2].Error.Message, "it is broken")
}

// The daemon finds no run by a label that it cannot read.
func TestClaim_LabelThatIsEncrypted_IsRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	keys := secretKeys("k1")
	keys.ReadableLabels = []string{"team"}
	f := w.fleet(encrypted(keys))
	for label, refused := range map[string]bool{"team": false, "tenant": true} {
		work := func(context.Context, *publisher.Run) (publisher.Work, error) { return nil, nil }
		_, err := f.NewExecutor(publisher.ExecutorSpec{Agents: map[string]func(context.Context, *publisher.Run) (publisher.Work, error){"clerk": work}, Labels: map[string]string{label: "blue"}})
		_, claimErr := f.Claim(t.Context(), publisher.ClaimSpec{Labels: map[string]string{label: "blue"}})
		if !refused {
			require.NoError(t, err)
			require.NotErrorIs(t, claimErr, publisher.ErrConfig)
			continue
		}
		for _, err := range []error{err, claimErr} {
			require.ErrorIs(t, err, publisher.ErrConfig)
			require.ErrorContains(t, err, "ReadableLabels")
		}
	}
}

// New values have the current key, and those of the earlier one are still read.
func TestEncryption_KeyIsRotated_EarlierValuesAreRead(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve()
	require.NoError(t, start(t, w.fleet(encrypted(secretKeys("k1"))), "r1").SetState(t.Context(), "a", "old"))
	run := resume(t, w.fleet(encrypted(secretKeys("k2", "k1"))), "r1")
	require.NoError(t, run.SetState(t.Context(), "b", "new"))
	require.Equal(t, []string{"k1", "k2"}, run.Head().KeyIDs)
	for key, want := range map[string]string{"a": "old", "b": "new"} {
		var got string
		_, err := run.GetState(t.Context(), key, &got)
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
	task, err := run.Task(t.Context())
	require.NoError(t, err)
	require.Equal(t, "write it", task)
	// An executor with only the new key gets an error that names the other one.
	s, err := w.fleet(encrypted(secretKeys("k2"))).Get(t.Context(), "r1")
	require.NoError(t, err, "what can be read is read")
	require.JSONEq(t, `"new"`, string(s.Value("b").Value))
	require.Equal(t, "k1", s.Value("a").Refs[0].KeyID)
}

// A value counts at its place alone: not in another fleet, run, turn, event, field, or under another id.
func TestEncryption_ValueIsMovedOrChanged_IsNotDecrypted(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve()
	f := w.fleet(encrypted(secretKeys("k1")))
	set := func(run *publisher.Run, key string) *schema.StateSetData {
		require.NoError(t, run.SetState(t.Context(), key, "canary"))
		for _, v := range w.fold(run.ID()).Values {
			if v.Key == key {
				return &schema.StateSetData{Key: v.Key, Value: v.Value, Refs: v.Refs}
			}
		}
		t.Fatal("no value")
		return nil
	}
	value := set(start(t, f, "r1"), "plan")
	flipped := bytes.Clone(value.Value)
	flipped[len(flipped)-10] ^= 1
	require.NoError(t, kvstore.Provision(t.Context(), w.js, kvstore.FleetConfig{Fleet: "staging", QuotaBytes: 256 << 20}))
	other := start(t, w.fleet(encrypted(secretKeys("k1")), func(c *publisher.Config) { c.Fleet = "staging" }), "r-another-fleet")
	require.NoError(t, other.SetState(t.Context(), "plan", "canary"))
	staged := new(schema.StateSetData)
	require.NoError(t, eventlog.Read(t.Context(), w.js, schema.NamesOf("staging", 0), "r-another-fleet", 2, func(rec schema.Record) error {
		return json.Unmarshal(rec.Body, staged)
	}))
	for name, put := range map[string]schema.Data{
		"changed":     &schema.StateSetData{Key: "plan", Value: flipped, Refs: value.Refs},
		"no base64":   &schema.StateSetData{Key: "plan", Value: raw(`"?"`), Refs: value.Refs},
		"no string":   &schema.StateSetData{Key: "plan", Value: raw(`{"a":1}`), Refs: value.Refs},
		"another key": &schema.StateSetData{Key: "other", Value: value.Value, Refs: value.Refs},
		"another run": value, "another fleet": staged,
		"another event": &schema.ToolReturnedData{
			ToolCallID: "a", Result: value.Value, Refs: []schema.Ref{{Path: "/result", KeyID: "k1", Codec: value.Refs[0].Codec}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			id := "r-" + strings.ReplaceAll(name, " ", "-")
			run := start(t, w.fleet(), id)
			require.NoError(t, run.Publish(t.Context(), &schema.TurnAnsweredData{
				Turn: 1, Message: assistant(), Calls: []schema.RequestedCall{{ToolCallID: "a", Name: "look", Replay: schema.ReplayPure}},
			}, 1))
			turn := int32(0)
			if name == "another event" {
				turn = 1
			}
			require.NoError(t, run.Publish(t.Context(), put, turn))
			_, err := f.Get(t.Context(), id)
			require.ErrorIs(t, err, publisher.ErrNotDecrypted)
			require.ErrorContains(t, err, "run "+id)
			require.ErrorContains(t, err, "key k1")
		})
	}
	run := start(t, w.fleet(), "r-codec")
	require.NoError(t, run.Publish(t.Context(), &schema.StateSetData{Key: "plan", Value: raw(`"x"`), Refs: []schema.Ref{{Path: "/value", KeyID: "k1", Codec: "rot13"}}}, 0))
	_, err := f.Get(t.Context(), "r-codec")
	require.ErrorContains(t, err, `codec "rot13"`)
}

// What cannot be encrypted does not leave the process readable.
func TestPublish_ContentThatCannotBeEncrypted_IsRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	run := start(t, w.fleet(encrypted(secretKeys("k1"))), "r1")
	err := run.Publish(t.Context(), &schema.PhaseStartedData{Phase: "plan", Extra: raw(`{"why":"canary"}`)}, 0)
	require.ErrorIs(t, err, publisher.ErrNotEncryptable)
	require.ErrorContains(t, err, "/why of phase.started")
	require.Len(t, w.log("r1"), 1)
	require.NoError(t, run.Publish(t.Context(), &schema.PhaseStartedData{Phase: "plan"}, 0))
}

// An event whose answer was lost is published again as the same event.
func TestEncryption_SameEventTwice_IsTheSameText(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	run := start(t, w.fleet(encrypted(secretKeys("k1"))), "r1")
	for range 2 {
		require.NoError(t, run.SetState(t.Context(), "plan", "same"))
	}
	require.NoError(t, run.SetState(t.Context(), "plan", "other"))
	var values []string
	require.NoError(t, eventlog.Read(t.Context(), w.js, w.names, "r1", 2, func(rec schema.Record) error {
		var d schema.StateSetData
		values = append(values, string(rec.Body))
		return json.Unmarshal(rec.Body, &d)
	}))
	require.Equal(t, values[0], values[1])
	require.NotEqual(t, values[0], values[2])
}

func TestKeyFile_Lines_AreKeysOrNamedErrors(t *testing.T) {
	t.Parallel()
	key := base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{7}, 32))
	file := func(text string) string {
		path := filepath.Join(t.TempDir(), "keys")
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	e, err := publisher.KeyFile(file("# keys\n\nk2 " + key + "\nk1  " + key + "\n"))
	require.NoError(t, err)
	require.Equal(t, "k2", e.Current)
	got, err := e.Key(t.Context(), "k1")
	require.NoError(t, err)
	require.Equal(t, bytes.Repeat([]byte{7}, 32), got)
	_, err = e.Key(t.Context(), "k3")
	require.ErrorIs(t, err, publisher.ErrNoKey)
	for text, want := range map[string]string{
		"":                             "has no key",
		"k1 c2hvcnQ=":                  "line 1 has no key of 32 bytes",
		"\nk1":                         "line 2 has 1 words",
		"k1 " + key + "\nk1 " + key:    "line 2 has an id that stands there already",
		"k1 " + strings.ToLower("!!!"): "line 1 has no key of 32 bytes",
	} {
		_, err := publisher.KeyFile(file(text))
		require.ErrorIs(t, err, publisher.ErrConfig)
		require.ErrorContains(t, err, want)
		require.NotContains(t, err.Error(), key, "no line is shown")
	}
	_, err = publisher.KeyFile(filepath.Join(t.TempDir(), "none"))
	require.ErrorIs(t, err, os.ErrNotExist)
}
