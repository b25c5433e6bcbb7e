package showcase

import (
	"context"
	"fmt"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// Orphans are the numbers of orphaned runs that [Stage.Night] leaves, by agent.
var Orphans = map[string]int{"coder": 14, "billing": 11, "generator": 6}

// Night makes the runs that an operator on call finds: 31 orphaned runs of three agents whose executors are gone, failed
// runs, and twelve that ask the same question. The one living executor, of the agent support, waits for work.
func (s *Stage) Night() {
	s.tb.Helper()
	ctx := s.tb.Context()
	for agent, runs := range Orphans {
		nc := s.Conn()
		f, err := publisher.Connect(ctx, publisher.Config{Conn: nc, Fleet: schema.DefaultFleet, Executor: agent + "-1", Agent: agent, Now: s.now})
		require.NoError(s.tb, err)
		_, err = f.Claim(ctx, publisher.ClaimSpec{})
		require.ErrorAs(s.tb, err, new(*publisher.NothingError))
		for i := range runs {
			run, err := f.Start(ctx, publisher.RunSpec{ID: fmt.Sprintf("%s-%d", agent, i+1), Agent: agent, Task: "Work through the night."})
			require.NoError(s.tb, err)
			_, err = run.StartTurn(ctx, publisher.TurnSpec{})
			require.NoError(s.tb, err)
		}
		nc.Close()
	}
	box := s.connect("support-1", "support", policy)
	for i, end := range []schema.Error{
		{Type: "rate_limit", Message: "the model refused: 429, quota of project harbour used up"}, {Type: "tool", Message: "git push: permission denied"},
	} {
		run, err := box.Start(ctx, publisher.RunSpec{ID: fmt.Sprintf("import-%d", i+1), Agent: "importer"})
		require.NoError(s.tb, err)
		require.NoError(s.tb, run.End(ctx, publisher.RunEnd{Status: schema.StatusFailed, Error: &end}))
	}
	for i := range 12 {
		run, err := box.Start(ctx, publisher.RunSpec{ID: fmt.Sprintf("refund-%d", i+1), Agent: "support"})
		require.NoError(s.tb, err)
		require.NoError(s.tb, run.Wait(ctx, schema.RunWaitingData{
			InterruptID: "refund", Reason: schema.WaitHumanInput, Message: fmt.Sprintf("Customer %d wants the money back. How much?", i+1),
			ResponseSchema: []byte(`{"type":"object","properties":{"percent":{"type":"integer","title":"Percent","minimum":0,"maximum":100}},"required":["percent"]}`),
		}))
	}
	claim, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	_, err := box.Claim(claim, publisher.ClaimSpec{})
	require.ErrorAs(s.tb, err, new(*publisher.NothingError))
	s.After(20 * time.Minute)
	s.meet()
}
