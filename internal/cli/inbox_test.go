package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/publisher/waymarktest"
	"github.com/waymarkio/waymark/schema"
)

// asker is an executor whose runs ask.
func (w *world) asker(name string) *publisher.Fleet {
	w.t.Helper()
	return w.Fleet(name, func(c *publisher.Config) { c.Agent = "asker" })
}

// asking are runs that ask a question each, in this order, under the interrupt id q.
func (w *world) asking(fleet *publisher.Fleet, runs ...string) map[string]*publisher.Run {
	w.t.Helper()
	asked := make(map[string]*publisher.Run, len(runs))
	for _, id := range runs {
		r, err := fleet.Start(w.t.Context(), publisher.RunSpec{ID: id})
		require.NoError(w.t, err)
		require.NoError(w.t, r.Wait(w.t.Context(), schema.RunWaitingData{
			InterruptID: "q", Reason: schema.WaitHumanInput, Message: "Which colour for " + id + "?", ResponseSchema: jsontext.Value(`{"enum":["red","blue"]}`),
		}))
		asked[id] = r
	}
	w.listed(len(runs))
	return asked
}

// listed waits until so many things need a person.
func (w *world) listed(n int) {
	w.t.Helper()
	w.until(func() bool {
		code, out, _ := w.ask("", "", "inbox", "--json")
		var list struct{ Inbox []struct{ Run string } }
		return code == 0 && json.Unmarshal([]byte(out), &list) == nil && len(list.Inbox) == n
	})
}

// Ann sees a held payment. Bob has it run again: it pays, and is held again. Ann's command is of the first attempt.
func TestInbox_AnotherAttemptIsHeld_CommandSettlesNothing(t *testing.T) {
	t.Parallel()
	w := &world{waymarktest.Start(t), t}
	var paid atomic.Int64
	pay := publisher.NewTool("pay", "Pays.", publisher.Hold, func(ctx context.Context, _ struct{}) (string, error) {
		paid.Add(1)
		<-ctx.Done()
		return "", ctx.Err()
	})
	pay.Timeout = 50 * time.Millisecond
	loop := publisher.Loop{Tools: []publisher.Tool{pay}, Model: func(_ context.Context, q publisher.ModelRequest) (publisher.Answer, error) {
		if q.Turn == 1 {
			return publisher.Answer{Calls: []publisher.ToolCall{{ID: "a", Name: "pay", Arguments: []byte(`{}`)}}}, nil
		}
		return publisher.Answer{Message: schema.Message{Role: schema.RoleAssistant, Parts: []schema.Part{schema.Text("done")}}}, nil
	}}
	e := w.Serve("ex", publisher.ExecutorSpec{Loops: map[string]publisher.Loop{"agent": loop}}, nil)
	_, err := e.Fleet().Submit(t.Context(), publisher.RunSpec{ID: "r", Agent: "agent", Task: "Pay."})
	require.NoError(t, err)
	held := func() []schema.OpenCall { s := w.State("r"); return s.Head.HeldCalls() }
	w.until(func() bool { return len(held()) == 1 })
	w.listed(1)
	_, pasted, _ := w.ask("", "", "inbox")
	_, err = e.Fleet().Settle(t.Context(), "r", schema.SettleRequest{CallKey: held()[0].CallKey, CallEpoch: held()[0].Epoch, How: schema.SettledRerun, By: "bob"})
	require.NoError(t, err)
	w.until(func() bool { return paid.Load() == 2 && len(held()) == 1 })
	// The command that was printed for the first attempt settles no other one.
	var command string
	for line := range strings.Lines(pasted) {
		if strings.HasSuffix(line, "--how rerun\n") {
			command = strings.TrimPrefix(strings.TrimSpace(line), "waymark ")
		}
	}
	code, _, complaints := w.ask("", "", strings.Fields(command)...)
	require.Equal(t, 5, code, complaints)
	require.Contains(t, complaints, "was begun or settled again in epoch")
	require.EqualValues(t, 2, paid.Load())

	code, out, complaints := w.ask("", "", "settle", "r", "1", "a", "--how", "abandoned", "-q")
	require.Zero(t, code)
	require.Empty(t, out+complaints)
	w.Ended("r")
	require.EqualValues(t, 2, paid.Load())
}

func TestInbox_RunAsksAnotherQuestion_CommandAnswersNothing(t *testing.T) {
	t.Parallel()
	w := &world{waymarktest.Start(t), t}
	fleet := w.asker("e")
	r, err := fleet.Start(t.Context(), publisher.RunSpec{ID: "asks"})
	require.NoError(t, err)
	ask := func(message string) {
		require.NoError(t, r.Wait(t.Context(), schema.RunWaitingData{InterruptID: "confirm", Reason: schema.WaitHumanInput, Message: message}))
	}
	ask("Delete the old logs?")
	w.listed(1)
	_, pasted, _ := w.ask("", "", "inbox")
	require.Contains(t, pasted, "old logs")
	require.NoError(t, fleet.Input(t.Context(), "asks", publisher.Input{InterruptID: "confirm", EventID: questionOf(t, fleet, "asks", "confirm"), Payload: []byte(`"yes"`), By: "bob"}))
	_, err = r.AwaitInput(t.Context(), "confirm")
	require.NoError(t, err)
	ask("Delete production?")

	pastedCommands := 0
	for line := range strings.Lines(pasted) {
		if command, ok := strings.CutSuffix(strings.TrimSpace(line), " --text TEXT"); ok {
			pastedCommands++
			code, _, complaints := w.ask("", "", append(strings.Fields(command)[1:], "--text", "yes")...)
			require.Equal(t, 5, code, complaints)
			require.Contains(t, complaints, "Delete production?")
		}
	}
	require.Equal(t, 1, pastedCommands)
	require.Len(t, w.State("asks").Head.Interrupts, 1, "nothing was answered")
	code, _, complaints := w.ask("", "", "input", "asks", "--text", "no", "--by", "ann")
	require.Zero(t, code, complaints)
	require.JSONEq(t, `"no"`, string(w.State("asks").Waits[1].Input.Payload))
}

// A question whose schema is gone can be cancelled, and the inbox lists the others.
func TestInbox_SchemaIsGone_EachCanBeAnswered(t *testing.T) {
	t.Parallel()
	w := &world{waymarktest.Start(t), t}
	fleet := w.asker("e")
	r, err := fleet.Start(t.Context(), publisher.RunSpec{ID: "large"})
	require.NoError(t, err)
	require.NoError(t, r.Wait(t.Context(), schema.RunWaitingData{
		InterruptID: "q", Reason: schema.WaitHumanInput, Message: "Which size?",
		ResponseSchema: jsontext.Value(`{"type":"string","description":"` + strings.Repeat("x", 300<<10) + `"}`),
	}))
	w.listed(1)
	js, err := jetstream.New(w.Conn())
	require.NoError(t, err)
	blobs, err := js.ObjectStore(t.Context(), schema.BlobBucket(schema.DefaultFleet))
	require.NoError(t, err)
	list, err := blobs.List(t.Context())
	require.NoError(t, err)
	require.Len(t, list, 1)
	require.NoError(t, blobs.Delete(t.Context(), list[0].Name))
	s, err := fleet.Start(t.Context(), publisher.RunSpec{ID: "small"})
	require.NoError(t, err)
	require.NoError(t, s.Wait(t.Context(), schema.RunWaitingData{InterruptID: "q", Reason: schema.WaitHumanInput, Message: "Which colour?"}))
	w.listed(2)
	code, out, complaints := w.ask("", "", "inbox")
	require.Zero(t, code, complaints)
	require.Contains(t, out, "Which size?")
	require.Contains(t, out, "Which colour?")
	code, _, complaints = w.ask("", "", "input", "large", "--status", "cancelled")
	require.Zero(t, code, complaints)
	code, _, complaints = w.ask("", "", "input", "small", "--text", "red")
	require.Zero(t, code, complaints)
	require.Equal(t, schema.InputCancelled, w.State("large").Waits[0].Input.Status)
	require.JSONEq(t, `"red"`, string(w.State("small").Waits[0].Input.Payload))
}

// An approval whose arguments cannot be read is listed, and the list is complete.
func TestInbox_ArgumentsAreGone_EntrySaysSo(t *testing.T) {
	t.Parallel()
	w := &world{waymarktest.Start(t), t}
	r, err := w.asker("e").Start(t.Context(), publisher.RunSpec{ID: "pays"})
	require.NoError(t, err)
	turn, err := r.StartTurn(t.Context(), publisher.TurnSpec{})
	require.NoError(t, err)
	_, err = turn.Answer(t.Context(), publisher.Answer{Message: textMessage(schema.RoleAssistant, "I pay"), Calls: []publisher.ToolCall{{
		ID: "c1", Name: "pay", Replay: publisher.Hold, SideEffect: "moves money", Arguments: []byte(`{"to":"` + strings.Repeat("x", 300<<10) + `"}`),
	}}})
	require.NoError(t, err)
	require.NoError(t, r.Wait(t.Context(), schema.RunWaitingData{InterruptID: "a1", Reason: schema.WaitToolApproval, ToolCallID: "c1", Occurrence: 1, Message: "May it?"}))
	w.listed(1)
	code, out, complaints := w.ask("200", "", "inbox")
	require.Zero(t, code, complaints)
	require.Regexp(t, `arguments are not shown: they have 300\.\S+ KiB; see: waymark .*runs get pays --full`, out)
	js, err := jetstream.New(w.Conn())
	require.NoError(t, err)
	require.NoError(t, js.DeleteObjectStore(t.Context(), schema.BlobBucket(schema.DefaultFleet)))
	code, out, complaints = w.ask("200", "", "inbox")
	require.Zero(t, code, complaints)
	require.Regexp(t, `side effect: moves money\n +arguments are not shown: .*; see: waymark .*runs get pays --full\n +waymark .*input pays a1 .*--allow\n`, out)
	code, out, _ = w.ask("", "", "inbox", "--json")
	require.Zero(t, code)
	require.Contains(t, out, `"no_arguments": "`)
	require.NotContains(t, out, `"unread"`)
}

func TestInbox_RunCannotBeRead_TheOthersAreListed(t *testing.T) {
	t.Parallel()
	w := &world{waymarktest.Start(t), t}
	w.asking(w.asker("e"), "broken", "door-a")
	js, err := jetstream.New(w.Conn())
	require.NoError(t, err)
	names := schema.NamesOf(schema.DefaultFleet, 0)
	stream, err := js.Stream(t.Context(), names.EventStream())
	require.NoError(t, err)
	require.NoError(t, stream.Purge(t.Context(), jetstream.WithPurgeSubject(names.EventSubject("broken"))))
	for _, args := range [][]string{{"inbox"}, {"runs", "ls", "--stuck"}} {
		code, out, complaints := w.ask("", "", args...)
		require.Equal(t, 6, code, complaints)
		require.Contains(t, out, "Which colour for door-a?")
		require.Contains(t, complaints, "broken: all events of run broken are gone")
		require.Contains(t, complaints, "waymark verify broken")
		code, out, _ = w.ask("", "", append(args, "--json")...)
		require.Equal(t, 6, code)
		require.Contains(t, out, `"unread": [`)
		require.Contains(t, out, `"run": "broken"`)
		require.Contains(t, out, "Which colour for door-a?")
	}
}

// A fleet may have thousands of runs that wait for an executor.
func TestInbox_RunsWaitForAnExecutor_TheyAreNotRead(t *testing.T) {
	t.Parallel()
	w := &world{waymarktest.Start(t), t}
	fleet := w.asker("e")
	for i := range 5 {
		_, err := fleet.Submit(t.Context(), publisher.RunSpec{ID: fmt.Sprintf("submitted-%d", i), Agent: "unheard-of"})
		require.NoError(t, err)
	}
	w.asking(fleet, "door-a")
	w.until(func() bool { return len(w.stuck()) == 6 })
	read := make(chan string, 100)
	sub, err := w.Conn().Subscribe(schema.ServiceSubject(schema.VerbGet, schema.DefaultFleet, "*"), func(m *nats.Msg) { read <- m.Subject })
	require.NoError(t, err)
	require.NoError(t, w.Conn().Flush())
	t.Cleanup(func() { _ = sub.Unsubscribe() })
	code, out, _ := w.ask("", "", "inbox", "--json")
	require.Zero(t, code)
	require.Contains(t, out, "door-a")
	w.ask("", "", "runs", "get", "door-a") // a read behind all of the inbox
	require.Equal(t, schema.ServiceSubject(schema.VerbGet, schema.DefaultFleet, "door-a"), <-read)
	require.Equal(t, schema.ServiceSubject(schema.VerbGet, schema.DefaultFleet, "door-a"), <-read)
}

func TestInput_LongSchema_BreaksNoLineOfTheJSON(t *testing.T) {
	t.Parallel()
	w := &world{waymarktest.Start(t), t}
	r, err := w.asker("e").Start(t.Context(), publisher.RunSpec{ID: "asks"})
	require.NoError(t, err)
	long := jsontext.Value(`{"const":"` + strings.Repeat("word ", 60) + `"}`)
	require.NoError(t, r.Wait(t.Context(), schema.RunWaitingData{InterruptID: "q", Reason: schema.WaitHumanInput, Message: "Go on?", ResponseSchema: long}))
	w.listed(1)
	for _, columns := range []string{"", "80"} {
		_, out, _ := w.ask(columns, "", "input", "asks")
		_, shown, _ := strings.Cut(out, "an answer must match:\n")
		got := new(jsontext.Value)
		require.NoError(t, json.NewDecoder(strings.NewReader(shown)).Decode(got), out)
		require.JSONEq(t, string(long), string(*got))
	}
}

func TestInbox_Terminal_NamesOfRunsAreInColour(t *testing.T) {
	t.Parallel()
	w := &world{waymarktest.Start(t), t}
	w.asking(w.asker("e"), "door-a")
	require.Contains(t, w.coloured(80, "inbox"), "1. \x1b[33mdoor-a\x1b[0m (asker), ")
	_, out, _ := w.ask("80", "", "inbox")
	require.NotContains(t, out, "\x1b")
}

func TestInput_Quiet_PrintsNothing(t *testing.T) {
	t.Parallel()
	w := &world{waymarktest.Start(t), t}
	w.asking(w.asker("e"), "door-a")
	code, out, complaints := w.ask("", "", "input", "door-a", "--text", "red", "-q")
	require.Zero(t, code)
	require.Empty(t, out+complaints)
}

// To claim is what executors do with runs.
func TestInput_NameIsNotProven_IsSaidWithoutTheWordClaim(t *testing.T) {
	t.Parallel()
	w := &world{waymarktest.Start(t), t}
	w.asking(w.asker("e"), "door-a")
	_, out, _ := w.ask("", "", "input", "door-a", "--text", "red", "--by", "tess")
	require.Regexp(t, `(?m)^by \(unproven\) +tess$`, out)
}

// Thirty entries with their commands are more than anyone reads.
func TestInbox_ManyEntries_AreATable(t *testing.T) {
	t.Parallel()
	w := &world{waymarktest.Start(t), t}
	fleet := w.asker("e")
	begin := func(n int) {
		r, err := fleet.Start(t.Context(), publisher.RunSpec{ID: fmt.Sprintf("q-%02d", n)})
		require.NoError(t, err)
		require.NoError(t, r.Wait(t.Context(), schema.RunWaitingData{InterruptID: "q", Reason: schema.WaitHumanInput, Message: "Which colour?"}))
	}
	for n := range 10 {
		begin(n)
	}
	w.listed(10)
	_, out, _ := w.ask("100", "", "inbox")
	require.Equal(t, 10, strings.Count(out, "--text TEXT"), out)
	begin(10)
	w.listed(11)
	code, out, complaints := w.ask("100", "", "inbox")
	require.Zero(t, code, complaints)
	require.Equal(t, 12, strings.Count(out, "\n"), out)
	require.Contains(t, complaints, "waymark inbox --limit 10")
	_, out, complaints = w.ask("100", "", "inbox", "--limit", "10")
	require.Equal(t, 10, strings.Count(out, "--text TEXT"), out)
	require.Contains(t, complaints, "there are 1 more")
}
