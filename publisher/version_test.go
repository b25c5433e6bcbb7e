package publisher_test

import (
	"bytes"
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// release is a build of the agent coder, whose only tool asks for a colour.
func (w *world) release(t *testing.T, build, executor string, tools ...publisher.Tool) (*served, *publisher.Fleet) {
	t.Helper()
	m := &scripted{answers: map[int32]publisher.Answer{1: calls(call("c1", "ask", `{}`))}}
	f := w.fleet(named(executor), func(cfg *publisher.Config) { cfg.Build = build })
	return serveRuns(t, f, nil, func(spec *publisher.ExecutorSpec) {
		spec.Capacity, spec.WaitDetached = 1000, true
		spec.Loops = map[string]publisher.Loop{"coder": {Model: m.model, Tools: append(tools, asks(publisher.Pure))}}
	}), f
}

type paid struct {
	Amount int `json:"amount"`
}

type paidIn struct {
	Amount   int    `json:"amount"`
	Currency string `json:"currency"`
}

func does[In any](name string, policy schema.Replay) publisher.Tool {
	return publisher.NewTool(name, "", policy, func(context.Context, In) (string, error) { return "done", nil })
}

// A deploy while runs wait: the plan of each run names what is other, and the turn that goes on records it.
func TestVersion_DeployWhileRunsWait_PlansNameTheChanges(t *testing.T) {
	t.Parallel()
	runs := 100
	if testing.Short() {
		t.Log("short: 5 runs of 100")
		runs = 5
	}
	w := newWorldWith(t, kvstore.FleetConfig{Fleet: "default", QuotaBytes: 256 << 20, Silence: kvstore.MinSilence})
	w.daemon()
	old, left := w.release(t, "v1", "exec-1", does[paid]("pay", publisher.Idempotent), does[paid]("refund", publisher.Hold))
	for i := range runs {
		begin(t, old, fmt.Sprintf("r%d", i))
		require.Equal(t, publisher.OutcomeWaiting, (<-old.outcomes).outcome)
	}
	require.NoError(t, old.stop())
	require.NoError(t, left.Close(t.Context()))
	deployed, _ := w.release(t, "v2", "exec-2", does[paidIn]("pay", publisher.Hold))

	reader := w.fleet(named("ann"))
	want := []schema.PlanVersion{{Build: "v2", Changes: []string{
		"tool refund is gone", "tool pay: argument currency is new and required", "tool pay: its policy is hold, was idempotent", "build v2, was v1",
	}}}
	planned := func(run string) []schema.PlanVersion {
		plan, err := reader.Plan(t.Context(), run)
		require.NoError(t, err)
		return plan.Versions
	}
	require.Eventually(t, func() bool {
		versions := planned("r0")
		return len(versions) == 1 && versions[0].Build == "v2" // the old executor has left by then
	}, patience, 50*time.Millisecond)
	for i := range runs {
		require.Equal(t, want, planned(fmt.Sprintf("r%d", i)))
	}

	state := w.fold("r0")
	require.NoError(t, reader.Input(t.Context(), "r0", publisher.Input{InterruptID: "colour", EventID: state.Head.Interrupts[0].Position.ID, Payload: raw(`"red"`)}))
	require.Equal(t, publisher.OutcomeCompleted, deployed.outcome(t, "r0").outcome)
	state = w.fold("r0")
	recorded, since := state.Version()
	require.Equal(t, "v2", recorded.Build)
	require.EqualValues(t, 2, since, "the first turn of the new build")
	require.Equal(t, "v1", state.Started.Version.Build)
	require.Empty(t, planned("r0"))
}

// A turn says a version only when it is another one.
func TestVersion_SameBuild_IsRecordedOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.daemon()
	for _, executor := range []string{"exec-1", "exec-2"} {
		f := w.fleet(named(executor), func(cfg *publisher.Config) { cfg.Build = "v1" })
		run, err := f.Start(t.Context(), publisher.RunSpec{ID: "r1"})
		if executor != "exec-1" {
			run, err = f.Resume(t.Context(), "r1", publisher.ResumeSpec{})
		}
		require.NoError(t, err)
		turn, err := run.StartTurn(t.Context(), publisher.TurnSpec{})
		require.NoError(t, err)
		require.NoError(t, turn.AddMessage(t.Context(), assistant(schema.Text("So."))))
		require.NoError(t, turn.End(t.Context(), publisher.TurnEnd{}))
	}
	state := w.fold("r1")
	require.Equal(t, &schema.Version{Build: "v1"}, state.Started.Version)
	for _, turn := range state.Turns {
		require.Nil(t, turn.Version)
	}
}

func TestVersion_Invalid_IsRefused(t *testing.T) {
	t.Parallel()
	for _, build := range []string{"a\nb", string(make([]byte, schema.MaxBuild+1))} {
		require.ErrorIs(t, publisher.Config{Executor: "e", Build: build}.Validate(), publisher.ErrConfig)
	}
}

// Names of tools are content: with encryption they stand nowhere in plain text, in no heartbeat either.
func TestVersion_Encrypted_SaysOnlyTheBuild(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.daemon()
	beats, err := w.nc.SubscribeSync(schema.HeartbeatSubject("default", "*"))
	require.NoError(t, err)
	m := &scripted{}
	s := serveRuns(t, w.fleet(encrypted(secretKeys("k1")), func(cfg *publisher.Config) { cfg.Build = "v1" }), nil, func(spec *publisher.ExecutorSpec) {
		spec.Capacity = 1
		spec.Loops = map[string]publisher.Loop{"coder": {Model: m.model, System: "confidential", Tools: []publisher.Tool{does[paid]("paysecretly", publisher.Pure)}}}
	})
	begin(t, s, "r1")
	require.Equal(t, publisher.OutcomeCompleted, s.outcome(t, "r1").outcome)
	require.Equal(t, &schema.Version{Build: "v1"}, w.fold("r1").Started.Version)
	require.Empty(t, w.found("paysecretly"))
	for said := false; !said; {
		beat, err := beats.NextMsg(patience)
		require.NoError(t, err)
		require.NotContains(t, string(beat.Data), "paysecretly")
		said = bytes.Contains(beat.Data, []byte(`"versions":{"coder":{"build":"v1"}}`))
	}
}

// The program that submits a run does not do its work, and a fork goes on from the version of its base.
func TestVersion_SubmittedOrForked_IsTheExecutors(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.daemon()
	web := w.fleet(named("web"), func(cfg *publisher.Config) { cfg.Build = "web" })
	_, err := web.Submit(t.Context(), publisher.RunSpec{ID: "r1", Agent: "coder"})
	require.NoError(t, err)
	require.Nil(t, w.fold("r1").Started.Version)
	_, err = w.fleet(named("exec-1"), func(cfg *publisher.Config) { cfg.Build = "v1" }).Start(t.Context(), publisher.RunSpec{ID: "r2"})
	require.NoError(t, err)
	_, err = web.Fork(t.Context(), publisher.ForkSpec{ID: "r3", Base: "r2"})
	require.NoError(t, err)
	require.Equal(t, "v1", w.fold("r3").Started.Version.Build)
}
