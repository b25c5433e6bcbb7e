package publisher_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// Whatever acknowledgements are lost, each log is dense and what the handle takes it for.
func TestManyRuns_AcknowledgementsAreLost_EachLogIsWhatItsHandleSays(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := newProxy(t, w.server.URL())
	f := w.fleet(func(cfg *publisher.Config) {
		cfg.Conn, cfg.URL, cfg.Options = nil, p.url(), w.server.Options()
		cfg.TryTimeout, cfg.PublishTimeout = 100*time.Millisecond, 30*time.Second
	})
	const runs = 24
	var list [runs]*publisher.Run
	var errs [runs]error
	for i := range list {
		list[i] = start(t, f, fmt.Sprint("r", i))
	}
	var group sync.WaitGroup
	ctx, cancel := context.WithCancel(t.Context())
	trouble := make(chan struct{})
	go func() {
		defer close(trouble)
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				p.dropAcks(0)
				return
			case <-tick.C:
				p.dropAcks(rand.IntN(3)) //nolint:gosec // chance is what is wanted
			}
		}
	}()
	for i, run := range list {
		group.Go(func() {
			chance := rand.New(rand.NewPCG(uint64(i), 7)) //nolint:gosec // chance is what is wanted
			for n := int32(1); n <= 12 && errs[i] == nil; n++ {
				if chance.IntN(6) == 0 {
					w.control(run.ID(), 1, &schema.RunOrphanedData{Executor: "exec-1"})
				}
				var turn *publisher.Turn
				if turn, errs[i] = run.StartTurn(t.Context(), publisher.TurnSpec{}); errs[i] != nil {
					return
				}
				var keys []schema.CallKey
				if keys, errs[i] = turn.Answer(t.Context(), publisher.Answer{Message: assistant(schema.CallPart("a", "x")), Calls: []publisher.ToolCall{{ID: "a", Name: "x"}}}); errs[i] != nil {
					return
				}
				errs[i] = turn.Return(t.Context(), keys[0], publisher.ToolResult{Result: raw(`1`)})
			}
		})
	}
	group.Wait()
	cancel()
	<-trouble
	require.Positive(t, p.dropped())
	for i, run := range list {
		require.NoError(t, errs[i])
		s := w.requireSameFold(run)
		require.Equal(t, schema.Sequence(1+12*2), s.Head.Sequence)
		require.Zero(t, s.Head.Counts.Gaps)
		require.Zero(t, s.Head.Counts.Duplicates)
	}
}
