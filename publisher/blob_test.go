package publisher_test

import (
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

const big = 300 << 10

func TestBlob_LargeFields_RoundTrip(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve()
	f := w.fleet()
	text := func(c string) string { return strings.Repeat(c, big) }
	value := func(c string) []byte { return raw(`"` + text(c) + `"`) }
	run, err := f.Start(t.Context(), publisher.RunSpec{ID: "r1", Task: text("t")})
	require.NoError(t, err)
	turn, err := run.StartTurn(t.Context(), publisher.TurnSpec{Messages: []schema.Message{user("small"), user(text("\"m"))}})
	require.NoError(t, err)
	keys, err := turn.Answer(t.Context(), publisher.Answer{Message: assistant(schema.Text("small"), schema.Reasoning(text("é"))), Calls: []publisher.ToolCall{{ID: "c1", Name: "x", Arguments: value("a")}}})
	require.NoError(t, err)
	require.NoError(t, turn.Return(t.Context(), keys[0], publisher.ToolResult{Result: value("r")}))
	require.NoError(t, turn.End(t.Context(), publisher.TurnEnd{Messages: []schema.Message{assistant(schema.Text(text("e")))}}))
	require.NoError(t, run.Publish(t.Context(), &schema.PhaseStartedData{Phase: "p", Index: 1}, 0))
	require.NoError(t, run.Publish(t.Context(), &schema.PhaseCompletedData{Phase: "p", Index: 1, Output: value("p")}, 0))
	require.NoError(t, run.Compact(t.Context(), schema.ContextCompactedData{Summary: text("s"), ThroughTurn: 1}))
	require.NoError(t, run.Artifact(t.Context(), schema.ArtifactAddedData{ArtifactID: "a1", Content: value("c")}))
	require.NoError(t, run.Wait(t.Context(), schema.RunWaitingData{InterruptID: "i", Reason: "auth", ResponseSchema: value("w")}))
	require.NoError(t, run.End(t.Context(), publisher.RunEnd{Output: value("o")}))
	for _, rec := range w.log("r1") {
		require.Less(t, rec.Size(), 8<<10, "no event carries a large field itself")
	}
	w.requireSameFold(run)

	s, err := f.Get(t.Context(), "r1")
	require.NoError(t, err)
	require.NoError(t, f.Hydrate(t.Context(), s))
	require.Equal(t, text("t"), s.Started.Task)
	require.Equal(t, text("\"m"), *s.Messages[1].Parts[0].Content)
	require.Equal(t, text("é"), *s.Messages[2].Parts[1].Content)
	require.Equal(t, text("e"), *s.Messages[3].Parts[0].Content)
	require.Equal(t, string(value("a")), string(s.Calls[0].Arguments))
	require.Equal(t, string(value("r")), string(s.Calls[0].Result))
	require.Equal(t, string(value("p")), string(s.Phases[0].Output))
	require.Equal(t, text("s"), s.Compactions[0].Summary)
	require.Equal(t, string(value("c")), string(s.Artifacts[0].Content))
	require.Equal(t, string(value("w")), string(s.Waits[0].ResponseSchema))
	require.Equal(t, string(value("o")), string(s.Ended.Output))
	require.Empty(t, s.Calls[0].Refs)
	require.Empty(t, s.Messages[1].Refs)
	again := run.State()
	require.Len(t, again.Calls[0].Refs, 2, "hydrating one snapshot leaves others alone")
}

func TestBlob_ManyMediumFields_Fit(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve()
	f := w.fleet()
	run := start(t, f, "r1")
	var parts []schema.Part
	for _, c := range "abcdefgh" {
		parts = append(parts, schema.Text(strings.Repeat(string(c), 200<<10)))
	}
	require.NoError(t, run.AddMessage(t.Context(), assistant(parts...)))
	s := w.requireSameFold(run)
	require.Len(t, s.Messages[0].Refs, 6, "as many as must go, and no more")
	require.NoError(t, f.Hydrate(t.Context(), s))
	for i, c := range "abcdefgh" {
		require.Equal(t, strings.Repeat(string(c), 200<<10), *s.Messages[0].Parts[i].Content)
	}
}

func TestBlob_Damaged_Detected(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	f := w.fleet()
	run := start(t, f, "r1")
	require.NoError(t, run.AddMessage(t.Context(), user(strings.Repeat("x", big))))
	ref := run.State().Messages[0].Refs[0].DataRef
	content, err := f.Blob(t.Context(), ref)
	require.NoError(t, err)
	require.Len(t, content, big+2)
	reader, err := publisher.NewReader(t.Context(), publisher.Config{Conn: w.nc}) // it keeps nothing in memory
	require.NoError(t, err)

	small := w.fleet(func(c *publisher.Config) { c.MaxBlob = 1000 })
	_, err = small.Blob(t.Context(), ref)
	require.ErrorIs(t, err, publisher.ErrBlob)
	require.ErrorContains(t, err, "MaxBlob")

	store, err := w.js.ObjectStore(t.Context(), schema.BlobBucket("default"))
	require.NoError(t, err)
	name := strings.TrimPrefix(ref, "waymark-blob:")
	_, err = store.PutBytes(t.Context(), name, []byte(`"swapped"`))
	require.NoError(t, err)
	_, err = reader.Blob(t.Context(), ref)
	require.ErrorIs(t, err, publisher.ErrBlob)
	require.ErrorIs(t, reader.Hydrate(t.Context(), run.State()), publisher.ErrBlob)
	require.NoError(t, store.Delete(t.Context(), name))
	_, err = reader.Blob(t.Context(), ref)
	require.ErrorIs(t, err, publisher.ErrBlob)
	for _, foreign := range []string{"http://127.0.0.1/x", "file:///etc/passwd", "waymark-blob:r1.sha256-00"} {
		_, err = f.Blob(t.Context(), foreign)
		require.ErrorIs(t, err, publisher.ErrBlob)
	}
}

func TestConnect_BufferingConnection_Refused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	tests := map[string]struct {
		opts []nats.Option
		ok   bool
	}{
		"with the default buffer":  {},
		"with a buffer of its own": {opts: []nats.Option{nats.ReconnectBufSize(1 << 20)}},
		"without a buffer":         {opts: []nats.Option{nats.ReconnectBufSize(-1)}, ok: true},
		"that does not reconnect":  {opts: []nats.Option{nats.NoReconnect()}, ok: true},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			nc := w.server.Conn(t, test.opts...)
			_, err := publisher.Connect(t.Context(), publisher.Config{Conn: nc, Executor: "exec-1"})
			if test.ok {
				require.NoError(t, err)
				return
			}
			require.ErrorIs(t, err, publisher.ErrConfig)
			require.ErrorContains(t, err, "nats.ReconnectBufSize(-1)")
		})
	}
}

func TestConfig_Invalid_NamesField(t *testing.T) {
	t.Parallel()
	tests := map[string]publisher.Config{
		"Executor":   {URL: "nats://127.0.0.1"},
		"Fleet":      {URL: "x", Executor: "e", Fleet: "a.b"},
		"Agent":      {URL: "x", Executor: "e", Agent: "a b"},
		"TryTimeout": {URL: "x", Executor: "e", TryTimeout: -1},
	}
	for field, cfg := range tests {
		t.Run(field, func(t *testing.T) {
			err := cfg.Validate()
			require.ErrorIs(t, err, publisher.ErrConfig)
			require.ErrorContains(t, err, field)
		})
	}
	_, err := publisher.Connect(t.Context(), publisher.Config{URL: "nats://127.0.0.1:1", Executor: "e"})
	require.ErrorIs(t, err, publisher.ErrUnavailable)
	w := newWorld(t)
	_, err = publisher.Connect(t.Context(), publisher.Config{Conn: w.nc, Executor: "e", Fleet: "missing"})
	require.ErrorIs(t, err, publisher.ErrNotProvisioned)
}

// What a provider's message was before it was translated may be large, too, and each of the three sources of a turn is its own.
func TestSources_AreLarge_ComeBackEachInItsPlace(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve()
	f := w.fleet()
	large := func(what string) []byte { return raw(`{"` + what + `":"` + strings.Repeat("x", 300<<10) + `"}`) }
	run := start(t, f, "r1")
	turn, err := run.StartTurn(t.Context(), publisher.TurnSpec{})
	require.NoError(t, err)
	keys, err := turn.Answer(t.Context(), publisher.Answer{
		Message: assistant(schema.Text("look")), Source: large("answer"),
		Calls: []publisher.ToolCall{{ID: "c1", Name: "look", Replay: schema.ReplayPure, Source: large("call")}},
	})
	require.NoError(t, err)
	require.NoError(t, turn.Return(t.Context(), keys[0], publisher.ToolResult{Result: raw(`1`), Source: large("result")}))
	state, err := f.Get(t.Context(), "r1")
	require.NoError(t, err)
	require.NoError(t, f.Hydrate(t.Context(), state))
	require.JSONEq(t, string(large("answer")), string(state.Turns[0].Answer.Source))
	require.JSONEq(t, string(large("call")), string(state.Calls[0].Source))
	require.JSONEq(t, string(large("result")), string(state.Calls[0].ResultSource))
	require.Empty(t, state.Calls[0].Refs)
}
