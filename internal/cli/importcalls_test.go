package cli

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/access"
	"github.com/waymarkio/waymark/internal/cli/failure"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// mailed is a conversation that asks for a mail, and more of it.
func mailed(more ...string) string {
	messages := append([]string{
		`{"role":"user","content":"Tell Bob."}`,
		`{"role":"assistant","content":null,"tool_calls":[{"id":"c1","type":"function","function":{"name":"send_email","arguments":"{\"to\":\"bob\"}"}}]}`,
	}, more...)
	return fmt.Sprintf(`{"id":"mail","messages":[%s]}`, strings.Join(messages, ","))
}

// mailAgain imports a conversation whose call has no result, lets an executor of the agent go on with it, and imports it once the conversation
// has the result.
func mailAgain(t *testing.T, command func(want failure.Code, args ...string) string, bob *publisher.Fleet, file func(text string) string) {
	t.Helper()
	path := file(mailed())
	requireHas(t, command(failure.OK, "import", path), "1 imported")
	requireHas(t, command(failure.OK, "import", path), "1 already there")
	requireHas(t, command(failure.OK, "runs", "get", "mail"), "no outcome")
	requireHas(t, command(failure.OK, "runs", "ls", "--status", "held"), "no runs")
	require.NotContains(t, command(failure.OK, "export", "mail"), `"role":"tool"`, "no result is invented")

	var sent atomic.Int32
	work := func(ctx context.Context, run *publisher.Run) error {
		state := run.State()
		turn := run.OpenTurn()
		if turn == nil {
			return fmt.Errorf("no turn is open: %+v", state.Head)
		}
		call := &state.Calls[0]
		_, err := turn.Tool(ctx, publisher.ToolCall{
			ID: call.ToolCallID, Name: call.Name, Arguments: []byte(call.Arguments), Replay: call.Replay, VerifySubject: call.VerifySubject,
		}, func(context.Context, publisher.Invocation) (publisher.ToolResult, error) {
			sent.Add(1)
			return publisher.Result("sent again")
		})
		return err
	}
	executor, err := bob.NewExecutor(publisher.ExecutorSpec{
		Agents: map[string]func(context.Context, *publisher.Run) (publisher.Work, error){
			"openai-chat": func(context.Context, *publisher.Run) (publisher.Work, error) { return work, nil },
		},
	})
	require.NoError(t, err)
	ctx, stop := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- executor.Serve(ctx) }()
	run, err := bob.Resume(t.Context(), "mail", publisher.ResumeSpec{Reason: schema.TakeoverReopen})
	require.NoError(t, err)
	head := run.Head()
	require.Len(t, head.InDoubt(), 1)
	require.NoError(t, executor.Adopt(run))
	require.Eventually(t, func() bool {
		head, err := bob.Head(t.Context(), "mail")
		return err == nil && head.Status == schema.StatusWaiting && head.Unattended != ""
	}, 30*time.Second, 20*time.Millisecond)
	stop()
	require.NoError(t, <-served)
	require.Zero(t, sent.Load(), "whether the mail was sent is not known")
	require.Eventually(t, func() bool { // the list is folded
		return strings.Contains(command(failure.OK, "runs", "ls", "--status", "held"), "mail")
	}, 30*time.Second, 20*time.Millisecond)
	requireHas(t, command(failure.OK, "plan", "mail"), "settle")

	path = file(mailed(`{"role":"tool","tool_call_id":"c1","content":"sent"}`, `{"role":"assistant","content":"Bob knows."}`))
	requireHas(t, command(failure.OK, "import", path), "1 continued")
	requireHas(t, command(failure.OK, "import", path), "1 already there")
	requireHas(t, command(failure.OK, "runs", "get", "mail"), "completed")
	requireHas(t, command(failure.OK, "runs", "ls", "--status", "held"), "no runs")
	requireHas(t, command(failure.OK, "export", "mail"), `"content":"sent"`)
	state, err := bob.Get(t.Context(), "mail")
	require.NoError(t, err)
	require.Equal(t, []schema.Settlement{schema.SettledVerified}, state.Calls[0].Settlements)
	require.Equal(t, schema.OutcomeReturned, state.Calls[0].Outcome)
	require.Zero(t, state.Head.Counts.DeadLetters)
	require.Zero(t, sent.Load())
}

func TestImport_CallWithoutResult_IsNotRunAgain(t *testing.T) {
	t.Parallel()
	w := newImportWorld(t)
	bob, err := publisher.Connect(t.Context(), publisher.Config{Conn: w.nats.Conn(t, nats.ReconnectBufSize(-1)), Executor: "bob"})
	require.NoError(t, err)
	defer func() { require.NoError(t, bob.Close(context.WithoutCancel(t.Context()))) }()
	mailAgain(t, w.run, bob, func(text string) string { return w.file("mail.json", text) })
}

// An executor's key may settle the call by what the transcript says.
func TestImport_CallWithoutResult_SecuredFleet_IsNotRunAgain(t *testing.T) {
	if testing.Short() {
		t.Skip("short: a cluster of three servers")
	}
	const fleet = "payments"
	s := startSecured(t, fleet)
	s.daemon(t, fleet)
	w := &importWorld{t: t, dir: t.TempDir()}
	command := func(want failure.Code, args ...string) string {
		t.Helper()
		role := access.Executor
		if args[0] != "import" {
			role = access.Operator
		}
		return s.as(t, fleet, role, int(want), args...)
	}
	bob, err := publisher.Connect(t.Context(), publisher.Config{URL: s.url(), Options: s.options(t, fleet, access.Executor), Fleet: fleet, Executor: "bob"})
	require.NoError(t, err)
	defer func() { require.NoError(t, bob.Close(context.WithoutCancel(t.Context()))) }()
	mailAgain(t, command, bob, func(text string) string { return w.file("mail.json", text) })
}
