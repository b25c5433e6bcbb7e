package inspector

import (
	"bytes"
	"context"
	"html"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/publisher/waymarktest"
	"github.com/waymarkio/waymark/schema"
)

// With the key the pages show what is encrypted, and encrypt what a person writes; without it they show nothing of it, and say that an answer is
// stored readable.
func TestPages_EncryptedRun_OnlyTheKeyReadsAndWrites(t *testing.T) {
	t.Parallel()
	w := waymarktest.Start(t)
	keys := func() *publisher.Encryption {
		return &publisher.Encryption{Current: "k1", Key: func(_ context.Context, id string) ([]byte, error) {
			if id != "k1" {
				return nil, publisher.ErrNoKey
			}
			return bytes.Repeat([]byte{7}, 32), nil
		}}
	}
	f, err := publisher.Connect(t.Context(), publisher.Config{Conn: w.Conn(), Executor: "worker", Agent: "clerk", Encryption: keys()})
	require.NoError(t, err)
	t.Cleanup(func() { _ = f.Close(context.WithoutCancel(t.Context())) })
	run, err := f.Start(t.Context(), publisher.RunSpec{ID: "r1", Task: "canaryTask"})
	require.NoError(t, err)
	require.NoError(t, run.AddMessage(t.Context(), schema.Message{Role: schema.RoleUser, Parts: []schema.Part{schema.Text("canaryMessage")}}))
	turn, err := run.StartTurn(t.Context(), publisher.TurnSpec{})
	require.NoError(t, err)
	answer := publisher.Answer{
		Message: schema.Message{Role: schema.RoleAssistant, Parts: []schema.Part{schema.Text("canaryAnswer")}},
		Calls: []publisher.ToolCall{{
			ID: "a", Name: "pay", Replay: publisher.Hold, SideEffect: "canaryEffect", Arguments: []byte(`{"to":"canaryPayee","why":"` + strings.Repeat("canaryBlob ", 40_000) + `"}`),
		}},
	}
	_, err = turn.Answer(t.Context(), answer)
	require.NoError(t, err)
	for id, most := range map[string]string{"q1": "20", "q2": "30"} {
		require.NoError(t, run.Wait(t.Context(), schema.RunWaitingData{
			InterruptID: id, Reason: schema.WaitHumanInput, Message: "canaryQuestion", ToolCallID: "a",
			ResponseSchema: []byte(`{"type":"object","properties":{"percent":{"type":"integer","maximum":` + most + `,"title":"canaryTitle"}},"required":["percent"]}`),
		}))
	}
	require.NoError(t, run.Sync(t.Context()))

	with, without := deskOf(t, w, keys(), nil), deskOf(t, w, nil, nil)
	form := with.formOf("r1")
	without.formOf("r1")
	pages := []string{"/", "/needs-you", "/run/r1", "/run/r1/conversation", "/run/r1/recovery"}
	var shown, hidden strings.Builder
	for _, path := range pages {
		shown.WriteString(with.page(path))
		hidden.WriteString(without.page(path))
	}
	for _, canary := range []string{"canaryTask", "canaryMessage", "canaryAnswer", "canaryEffect", "canaryPayee", "canaryBlob", "canaryQuestion", "canaryTitle"} {
		require.Contains(t, shown.String(), canary)
	}
	require.NotContains(t, hidden.String(), "canary")
	require.NotContains(t, hidden.String(), `class="group"`, "whether one answer suits both is not known")
	require.Contains(t, hidden.String(), "(encrypted with key k1)")
	require.Contains(t, hidden.String(), "stored readable, and the run is encrypted with key k1")
	require.NotContains(t, shown.String(), "stored readable")

	answerWith := func(d *desk, id string, more url.Values) (int, string) {
		for _, article := range strings.Split(d.page("/needs-you"), "<article")[1:] {
			if strings.Contains(article, "interrupt="+id) {
				for _, m := range hiddenField.FindAllStringSubmatch(article, -1) {
					form.Set(m[1], html.UnescapeString(m[2]))
				}
			}
		}
		maps.Copy(form, more)
		return d.ask(http.MethodPost, "/needs-you/answer", form, nil)
	}
	code, text := answerWith(with, "q1", url.Values{"as": {"fields"}, "do": {"answer"}, "f.0": {"4242"}})
	require.Equal(t, http.StatusBadRequest, code, text)
	require.Contains(t, text, "/percent", "the daemon cannot check it, and the pages can")
	code, text = answerWith(with, "q1", url.Values{"f.0": {"13"}})
	require.Equal(t, http.StatusOK, code, text)
	code, text = answerWith(without, "q2", url.Values{"as": {"json"}, "do": {"answer"}, "text": {`{"percent":14}`}})
	require.Equal(t, http.StatusOK, code, text)
	payload := func(id string) string {
		waits := w.State("r1").Waits
		i := slices.IndexFunc(waits, func(w schema.StateWait) bool { return w.InterruptID == id })
		require.NotNil(t, waits[i].Input, id)
		return string(waits[i].Input.Payload)
	}
	require.NotContains(t, payload("q1"), "percent", "it is encrypted")
	require.JSONEq(t, `{"percent":14}`, payload("q2"), "as the form said")
	input, err := run.AwaitInput(t.Context(), "q1")
	require.NoError(t, err)
	require.JSONEq(t, `{"percent":13}`, string(input.Payload))
}
