package mcp_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/schema"
)

func TestCall_Held_IsSettledByAPersonAndFoundUnderAnotherID(t *testing.T) {
	t.Parallel()
	b := newBank(t)
	b.doubt("after", "--run", "r1")
	s := b.connect(b.command("--run", "r1"))
	r, err := call(t.Context(), s, "c2", "charge", "Ann") // as a model does that tries again
	require.Regexp(t, `(?s)waymark settle .* r1 1 c1 .*waymark plan r1.*\[call c1\]`, text(t, r, err))
	require.True(t, r.IsError)
	require.Eventually(t, func() bool { return len(b.w.State("r1").Head.Interrupts) == 1 }, time.Minute, time.Millisecond, "the inbox has it")
	r, err = call(t.Context(), s, "c3", "look", "Ann")
	require.Equal(t, "look Ann", text(t, r, err))
	b.decide("r1", "c1")
	r, err = call(t.Context(), s, "c4", "look", "Ann") // behind the settlement
	require.Equal(t, "look Ann", text(t, r, err))
	r, err = call(t.Context(), s, "c5", "charge", "Ann")
	require.Equal(t, "a person found it [recorded true] [call c1]", text(t, r, err))
	require.NoError(t, s.Close())
	require.Equal(t, schema.StatusCompleted, b.w.State("r1").Head.Status)
	require.Len(t, b.effects("charge"), 1)
}

// Arguments that the record keeps apart name the call as well.
func TestCall_LargeArguments_MadeAgainUnderAnotherID_IsTheSameCall(t *testing.T) {
	t.Parallel()
	b := newBank(t)
	to := strings.Repeat("x", 400<<10)
	b.doubtTo(to, "after", "--run", "r1")
	s := b.connect(b.command("--run", "r1"))
	r, err := call(t.Context(), s, "c2", "charge", to)
	require.Contains(t, text(t, r, err), "waymark settle")
	require.NoError(t, s.Close())
	require.Len(t, b.effects("charge"), 1)
}

// A person settles a call while no proxy runs: the client that makes it again gets the outcome, also after another kill.
func TestCall_SettledBetweenProcesses_IsTheSameCall(t *testing.T) {
	t.Parallel()
	b := newBank(t)
	b.doubt("after", "--run", "r1")
	s := b.connect(b.command("--run", "r1"))
	r, err := call(t.Context(), s, "c2", "charge", "Ann")
	require.Contains(t, text(t, r, err), "waymark settle")
	require.NoError(t, s.Close())
	b.decide("r1", "c1")
	for _, id := range []string{"c3", "c4"} {
		cmd := b.command("--run", "r1")
		s = b.connect(cmd)
		for range 2 {
			r, err = call(t.Context(), s, id, "charge", "Ann")
			require.Equal(t, "a person found it [recorded true] [call c1]", text(t, r, err))
		}
		require.NoError(t, cmd.Process.Kill())
		_ = s.Close()
	}
	s = b.connect(b.command("--run", "r1"))
	for _, want := range []string{"a person found it [recorded true] [call c1]", "charge Ann"} {
		r, err = call(t.Context(), s, want, "charge", "Ann")
		require.Equal(t, want, text(t, r, err))
	}
	require.NoError(t, s.Close())
	require.Len(t, b.effects("charge"), 2)
}

func TestCall_RerunBetweenProcesses_IsTheSameCall(t *testing.T) {
	t.Parallel()
	b := newBank(t)
	b.doubt("before", "--run", "r1")
	s := b.connect(b.command("--run", "r1"))
	r, err := call(t.Context(), s, "c2", "charge", "Ann")
	require.Contains(t, text(t, r, err), "waymark settle")
	require.NoError(t, s.Close())
	b.decide("r1", "c1")
	s = b.connect(b.command("--run", "r1"))
	r, err = call(t.Context(), s, "c3", "charge", "Ann")
	require.Equal(t, "charge Ann [call c1]", text(t, r, err))
	require.NoError(t, s.Close())
	require.Equal(t, schema.StatusCompleted, b.w.State("r1").Head.Status)
	require.Len(t, b.effects("charge"), 1)
}

// The client dies in its last calls, and the proxy records their results. The resumed client looks first.
func TestCall_ClientDiesInACall_ResumedUnderOtherIDs_HasOneEffect(t *testing.T) {
	t.Parallel()
	b := newBank(t)
	start := func() *mcp.ClientSession {
		cmd := b.command()
		cmd.Env = append(cmd.Env, "CLAUDE_CODE_SESSION_ID=0195c1f0-1111-4111-8111-111111111111")
		return b.connect(cmd)
	}
	arrived, goOn := b.waits("after")
	s := start()
	for _, id := range []string{"c1", "c2"} { // together, with the same arguments
		go func() { _, _ = call(context.WithoutCancel(t.Context()), s, id, "charge", "Ann") }()
	}
	arrived()
	require.Eventually(t, func() bool { return len(b.effects("charge")) == 2 }, time.Minute, time.Millisecond)
	closed := make(chan error, 1)
	go func() { closed <- s.Close() }()
	goOn()
	require.NoError(t, <-closed)
	for _, died := range []bool{true, false} {
		s = start()
		r, err := call(t.Context(), s, fmt.Sprint("look", died), "look", "Ann")
		require.Equal(t, "look Ann", text(t, r, err), "it is pure")
		for n := range 2 {
			r, err = call(t.Context(), s, fmt.Sprint(n, died), "charge", "Ann")
			require.Regexp(t, `^charge Ann \[recorded true\] \[call c[12]\]$`, text(t, r, err))
			require.Contains(t, r.Content[1].(*mcp.TextContent).Text, "did not run now") //nolint:errcheck // it is a text
		}
		require.Len(t, b.effects("charge"), 2)
		if !died {
			r, err = call(t.Context(), s, "c3", "charge", "Ann")
			require.Equal(t, "charge Ann", text(t, r, err), "the client means another one")
		}
		require.NoError(t, s.Close())
	}
	require.Len(t, b.effects("charge"), 3)
	require.Len(t, b.effects("look"), 2)
}

func TestCall_ClientWentOn_TheSameArgumentsAreAnotherCall(t *testing.T) {
	t.Parallel()
	b := newBank(t)
	for _, id := range []string{"c1", "c2"} {
		s := b.connect(b.command("--run", "r1"))
		for _, tool := range []string{"charge", "pay"} {
			want := tool + " Ann"
			if id+tool == "c2pay" { // no call followed it
				want += " [recorded true] [call c1pay]"
			}
			r, err := call(t.Context(), s, id+tool, tool, "Ann")
			require.Equal(t, want, text(t, r, err))
		}
		require.NoError(t, s.Close())
	}
	require.Len(t, b.effects("charge"), 2)
	require.Len(t, b.effects("pay"), 1)
}
