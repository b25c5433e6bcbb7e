package mutant_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/publisher/waymarktest"
	"github.com/waymarkio/waymark/schema"
)

// A run whose version has the rule ask is claimable while an executor of its build is alive, and after that one has
// left.
func TestDrift_Mistakes_AreFound(t *testing.T) {
	eachMistake(t, drifted, map[string]string{
		"build-ignored": "another build has the run",
		"drift-unasked": "no person was asked",
	})
}

// drifted returns what is wrong with the run.
func drifted(t *testing.T) (wrong []string) {
	t.Helper()
	w := waymarktest.Start(t)
	version := func(build, tool string) (*publisher.Fleet, publisher.ExecutorSpec) {
		return w.Fleet("exec-"+build, func(c *publisher.Config) { c.Build = build }), publisher.ExecutorSpec{Loops: map[string]publisher.Loop{"coder": {
			Drift: schema.DriftAsk,
			Tools: []publisher.Tool{publisher.NewTool(tool, "", publisher.Pure, func(context.Context, struct{}) (string, error) { return "", nil })},
			Model: func(context.Context, publisher.ModelRequest) (publisher.Answer, error) {
				return publisher.Answer{Message: schema.Message{Role: schema.RoleAssistant, Parts: []schema.Part{schema.Text("Done.")}}}, nil
			},
		}}}
	}
	old, spec := version("v1", "pay")
	_, err := old.NewExecutor(spec)
	require.NoError(t, err)
	run, err := old.Start(t.Context(), publisher.RunSpec{ID: "r1", Agent: "coder"})
	require.NoError(t, err)
	require.NoError(t, run.Interrupt(t.Context(), schema.InterruptedPreempted))
	_, err = old.Claim(t.Context(), publisher.ClaimSpec{Agents: []string{"coder"}, Labels: map[string]string{"other": "runs"}})
	require.ErrorIs(t, err, publisher.ErrNothing)
	require.Eventually(t, func() bool { // the daemon knows the run and has heard its build
		page, err := w.Reader().List(t.Context(), schema.ListRequest{Status: []schema.Status{schema.StatusInterrupted}})
		require.NoError(t, err)
		heard, err := w.Conn().Request(schema.ServiceSubject(schema.VerbExecutors, schema.DefaultFleet, ""), []byte(`{"versions_of":"coder"}`), time.Minute)
		return err == nil && strings.Contains(string(heard.Data), `"build":"v1"`) && slices.ContainsFunc(page.Runs, func(s schema.RunSummary) bool { return s.Run == "r1" })
	}, time.Minute, 10*time.Millisecond)
	w.Advance(time.Minute)

	deployed, spec := version("v2", "settle")
	taken, err := deployed.Claim(t.Context(), publisher.ClaimSpec{Agents: []string{"coder"}})
	if !errors.Is(err, publisher.ErrNothing) {
		require.NoError(t, err)
		require.NoError(t, taken.Interrupt(t.Context(), schema.InterruptedPreempted))
		wrong = append(wrong, "another build has the run")
	}
	require.NoError(t, old.Close(t.Context()))
	require.NoError(t, deployed.Close(t.Context()))
	w.Serve("exec-3", spec, func(c *publisher.Config) { c.Build = "v2" })
	if w.Await("r1", schema.StatusWaiting, schema.StatusCompleted) == schema.StatusCompleted {
		wrong = append(wrong, "no person was asked")
	}
	return wrong
}
