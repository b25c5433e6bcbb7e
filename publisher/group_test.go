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

// crowd are runs of one process that publish over a connection whose acknowledgements can be held up.
type crowd struct {
	*world
	proxy *proxy
	fleet *publisher.Fleet
	// van goes before: while its batch is not answered, all others wait.
	van  *publisher.Turn
	runs []*publisher.Run
	errs []error
	wait sync.WaitGroup
}

func newCrowd(t *testing.T, n int, changes ...func(*publisher.Config)) *crowd {
	t.Helper()
	c := &crowd{world: newWorld(t), runs: make([]*publisher.Run, n), errs: make([]error, n)}
	c.proxy = newProxy(t, c.server.URL())
	c.fleet = c.world.fleet(append([]func(*publisher.Config){func(cfg *publisher.Config) {
		cfg.Conn, cfg.URL, cfg.Options, cfg.GroupFrom = nil, c.proxy.url(), c.server.Options(), 2
		cfg.TryTimeout, cfg.PublishTimeout, cfg.BatchFrom = 20*time.Second, 30*time.Second, 2
	}}, changes...)...)
	for i := range c.runs {
		c.runs[i] = start(t, c.fleet, fmt.Sprint("r", i))
	}
	van, err := start(t, c.fleet, "van").StartTurn(t.Context(), publisher.TurnSpec{Messages: []schema.Message{user("go")}})
	require.NoError(t, err)
	c.van = van
	return c
}

// crowdedIn lets all runs publish at once while nothing is answered, until they wait behind a batch that is on its way.
// It returns how many wait.
func (c *crowd) crowdedIn(t *testing.T, publish func(ctx context.Context, i int) error) (waiting int) {
	t.Helper()
	c.proxy.hold()
	c.wait.Go(func() {
		// How it ends is not what is looked at: its deadline may pass, too.
		_, _ = c.van.Call(t.Context(), publisher.ToolCall{ID: "a", Name: "x", Replay: schema.ReplayPure}, publisher.ToolCall{ID: "b", Name: "x", Replay: schema.ReplayPure})
	})
	require.Eventually(t, func() bool {
		waiting, others := publisher.GroupWaiting(c.fleet)
		return waiting == 0 && others == 1
	}, time.Minute, time.Millisecond)
	for i := range c.runs {
		c.wait.Go(func() { c.errs[i] = publish(t.Context(), i) })
	}
	// Some may look at their run because of a notice, and not come at all.
	before, same := -1, 0
	require.Eventually(t, func() bool {
		waiting, _ = publisher.GroupWaiting(c.fleet)
		if same++; waiting != before {
			before, same = waiting, 0
		}
		return same >= 10 && waiting >= len(c.runs)/2
	}, time.Minute, 10*time.Millisecond)
	return waiting
}

// batches returns the sizes of the batches behind that stream sequence, in order, and how many events came singly.
func (c *crowd) batches(after uint64) (sizes []int, singles int) {
	c.tb.Helper()
	s, err := c.js.Stream(c.tb.Context(), c.names.EventStream())
	require.NoError(c.tb, err)
	last := ""
	for seq := after + 1; seq <= s.CachedInfo().State.LastSeq; seq++ {
		msg, err := s.GetMsg(c.tb.Context(), seq)
		require.NoError(c.tb, err)
		switch id := msg.Header.Get("Nats-Batch-Id"); id {
		case "":
			singles++
		case last:
			sizes[len(sizes)-1]++
		default:
			sizes, last = append(sizes, 1), id
		}
	}
	return sizes, singles
}

func (c *crowd) end() uint64 {
	c.tb.Helper()
	s, err := c.js.Stream(c.tb.Context(), c.names.EventStream())
	require.NoError(c.tb, err)
	return s.CachedInfo().State.LastSeq
}

func (c *crowd) requireAll(t *testing.T, events int64, but ...int) {
	t.Helper()
	skip := map[int]bool{}
	for _, i := range but {
		skip[i] = true
	}
	for i, run := range c.runs {
		if skip[i] {
			continue
		}
		require.NoError(t, c.errs[i], "run %d", i)
		s := c.requireSameFold(run)
		require.Zero(t, s.Head.Counts.Duplicates)
		require.Equal(t, events, s.Head.Counts.Events)
	}
}

func (c *crowd) mark(ctx context.Context, i int) error { return c.runs[i].Mark(ctx, "x") }

func TestAllWhoWaitGoWithTheNextBatch(t *testing.T) {
	t.Parallel()
	c := newCrowd(t, 300)
	before := c.end()
	require.Equal(t, 300, c.crowdedIn(t, c.mark))
	c.proxy.release()
	c.wait.Wait()
	c.requireAll(t, 2)
	sizes, singles := c.batches(before)
	require.Equal(t, []int{2, 300}, sizes)
	require.Zero(t, singles)
}

func TestNobodyIsPassedOverByABatchThatIsFull(t *testing.T) {
	t.Parallel()
	c := newCrowd(t, 700)
	before := c.end()
	require.Equal(t, 700, c.crowdedIn(t, c.mark))
	c.proxy.release()
	c.wait.Wait()
	c.requireAll(t, 2)
	sizes, singles := c.batches(before)
	require.Equal(t, []int{2, 512, 188}, sizes)
	require.Zero(t, singles)
}

func TestFencedMemberSpoilsNoBatchOfMany(t *testing.T) {
	t.Parallel()
	c := newCrowd(t, 64)
	c.serve()
	other := c.world.fleet(func(cfg *publisher.Config) { cfg.Executor = "exec-2" })
	taken := resume(t, other, "r60")
	c.control("r61", 1, &schema.RunOrphanedData{Executor: "exec-1"}) // goes before, and is no reason to refuse
	before := c.end()
	waiting := c.crowdedIn(t, c.mark)
	c.proxy.release()
	c.wait.Wait()
	require.ErrorIs(t, c.errs[60], publisher.ErrFenced)
	c.requireAll(t, 2, 60, 61)
	require.NoError(t, c.errs[61])
	require.Equal(t, int64(3), c.requireSameFold(c.runs[61]).Head.Counts.Events)
	require.NoError(t, taken.Mark(t.Context(), "y"))
	c.requireSameFold(taken)
	sizes, singles := c.batches(before)
	require.GreaterOrEqual(t, sizes[len(sizes)-1], waiting-2, "the others went together all the same: %v, %d singly", sizes, singles)
}

func TestManyFencedMembersLeaveTheOthersExact(t *testing.T) {
	t.Parallel()
	c := newCrowd(t, 40)
	c.serve()
	other := c.world.fleet(func(cfg *publisher.Config) { cfg.Executor = "exec-2" })
	var gone []int
	for i := 0; i < len(c.runs); i += 3 {
		resume(t, other, fmt.Sprint("r", i))
		gone = append(gone, i)
	}
	c.crowdedIn(t, c.mark)
	c.proxy.release()
	c.wait.Wait()
	for _, i := range gone {
		require.ErrorIs(t, c.errs[i], publisher.ErrFenced)
	}
	c.requireAll(t, 2, gone...)
}

func TestTwoHandlesOfARunInOneBatch(t *testing.T) {
	t.Parallel()
	c := newCrowd(t, 32)
	c.serve()
	before := c.runs[5]
	c.runs = append(c.runs, resume(t, c.fleet, "r5"))
	c.errs = append(c.errs, nil)
	c.crowdedIn(t, c.mark)
	c.proxy.release()
	c.wait.Wait()
	require.ErrorIs(t, c.errs[5], publisher.ErrFenced)
	require.ErrorIs(t, before.Err(), publisher.ErrFenced)
	require.NoError(t, c.errs[32])
	c.requireSameFold(c.runs[32])
	c.runs = c.runs[:32]
	c.requireAll(t, 2, 5)
}

func TestBatchWhoseAnswerIsLostIsResolvedSingly(t *testing.T) {
	t.Parallel()
	c := newCrowd(t, 40, func(cfg *publisher.Config) { cfg.TryTimeout = 2 * time.Second })
	before := c.end()
	waiting := c.crowdedIn(t, c.mark)
	c.proxy.dropAcks(-1)
	c.proxy.release()
	require.Eventually(t, func() bool { return c.end() >= before+2+uint64(len(c.runs)) }, time.Minute, 10*time.Millisecond) //nolint:gosec // a count
	c.proxy.dropAcks(0)
	c.wait.Wait()
	c.requireAll(t, 2)
	require.Positive(t, waiting)
	require.Equal(t, before+2+uint64(len(c.runs)), c.end(), "each is stored once")
}

// A caller that goes away takes nobody with it: neither as a leader, nor as a member, nor while it waits.
func TestCallersOfABatchThatGoAway(t *testing.T) {
	t.Parallel()
	c := newCrowd(t, 40)
	ctx, cancel := context.WithCancel(t.Context())
	c.crowdedIn(t, func(_ context.Context, i int) error { return c.runs[i].Mark(ctx, "x") })
	cancel()
	c.proxy.release()
	c.wait.Wait()
	c.requireAll(t, 2) // what is answered in a moment is waited for
}

func TestDeadlineWithinABatchLeavesEachRunItsOwnEnd(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		try  time.Duration
		want error
		end  error
	}{
		"before it went": {try: 20 * time.Second, want: publisher.ErrUnavailable},
		"once it went":   {try: 300 * time.Millisecond, want: publisher.ErrUnresolved, end: publisher.ErrUnresolved},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			c := newCrowd(t, 40, func(cfg *publisher.Config) { cfg.TryTimeout, cfg.PublishTimeout = test.try, 2*time.Second })
			var ended sync.WaitGroup
			ended.Add(len(c.runs))
			require.Positive(t, c.crowdedIn(t, func(ctx context.Context, i int) error {
				defer ended.Done()
				return c.mark(ctx, i)
			}))
			ended.Wait()
			c.proxy.release()
			c.wait.Wait()
			for i, run := range c.runs {
				require.ErrorIs(t, c.errs[i], test.want)
				require.ErrorIs(t, run.Err(), test.end)
				require.NoError(t, run.Resolve(t.Context()))
				if test.end == nil {
					require.NoError(t, run.Mark(t.Context(), "x"))
				}
				require.Equal(t, int64(2), run.Head().Counts.Events)
				c.errs[i] = run.Mark(t.Context(), "y")
			}
			c.requireAll(t, 3)
		})
	}
}

// Whatever happens to batches and their members, each log is dense and what the handle takes it for.
func TestWhateverHappensEachLogIsWhatItsHandleSays(t *testing.T) {
	t.Parallel()
	c := newCrowd(t, 24, func(cfg *publisher.Config) { cfg.TryTimeout, cfg.GroupFrom = 100*time.Millisecond, 3 })
	ctx, cancel := context.WithCancel(t.Context())
	trouble := make(chan struct{})
	go func() {
		defer close(trouble)
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				c.proxy.dropAcks(0)
				return
			case <-tick.C:
				c.proxy.dropAcks(rand.IntN(3)) //nolint:gosec // chance is what is wanted
			}
		}
	}()
	for i, run := range c.runs {
		c.wait.Go(func() {
			chance := rand.New(rand.NewPCG(uint64(i), 7)) //nolint:gosec // chance is what is wanted
			for n := int32(1); n <= 12 && c.errs[i] == nil; n++ {
				if chance.IntN(6) == 0 {
					c.control(run.ID(), 1, &schema.RunOrphanedData{Executor: "exec-1"})
				}
				var turn *publisher.Turn
				if turn, c.errs[i] = run.StartTurn(t.Context(), publisher.TurnSpec{}); c.errs[i] != nil {
					return
				}
				var keys []schema.CallKey
				if keys, c.errs[i] = turn.Answer(t.Context(), publisher.Answer{Message: assistant(schema.CallPart("a", "x")), Calls: []publisher.ToolCall{{ID: "a", Name: "x"}}}); c.errs[i] != nil {
					return
				}
				c.errs[i] = turn.Return(t.Context(), keys[0], publisher.ToolResult{Result: raw(`1`)})
			}
		})
	}
	c.wait.Wait()
	cancel()
	<-trouble
	require.Positive(t, c.proxy.dropped())
	for i, run := range c.runs {
		require.NoError(t, c.errs[i])
		s := c.requireSameFold(run)
		require.Equal(t, schema.Sequence(1+12*2), s.Head.Sequence)
		require.Zero(t, s.Head.Counts.Gaps)
		require.Zero(t, s.Head.Counts.Duplicates)
	}
}
