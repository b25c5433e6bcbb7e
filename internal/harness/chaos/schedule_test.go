//go:build waymark_failpoints

package chaos_test

import (
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/waymarkio/waymark/internal/harness/checker"
	"github.com/waymarkio/waymark/internal/harness/natstest"
)

func TestMain(m *testing.M) {
	if d, err := time.ParseDuration(os.Getenv("WAYMARK_PATIENCE")); err == nil {
		patience = d
	}
	// A server that is stopped while it loads a block of a stream can leave the block's flusher running (nats-server
	// v2.15.2): it is started once the store has stopped the known ones. Other leaks of a server are still found.
	const flusher = "github.com/nats-io/nats-server/v2/server.(*msgBlock).flushLoop"
	natstest.Main(m, goleak.IgnoreTopFunction(flusher))
}

// number reads a variable of the environment.
func number(tb testing.TB, name string, otherwise uint64) uint64 {
	tb.Helper()
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	n, err := strconv.ParseUint(text, 10, 64)
	require.NoError(tb, err, name)
	return n
}

// ciSchedules is the default number of schedules.
const ciSchedules = 60

// See the package's page for the whole test.
func TestSchedules_Random_LoseNothingAcknowledged(t *testing.T) {
	if total := schedules(t, profile{}, ciSchedules); total.schedules >= ciSchedules {
		total.meant(t)
	}
}

// The schedules remove events from logs, folded ones and others. Only removed events may be missing, and only where
// that is reported.
func TestSchedules_LogLoss_Reported(t *testing.T) {
	schedules(t, holes, 6)
}

// holes takes events out of logs.
var holes = profile{weights: mix(map[stepKind]int{damage: 10}), deletable: true, runs: 1}

// schedules runs schedules of a profile, as many as the environment asks for.
func schedules(t *testing.T, f profile, count uint64) *tally {
	t.Helper()
	first := number(t, "WAYMARK_SEED", 1)
	count = number(t, "WAYMARK_SCHEDULES", count)
	workers := number(t, "WAYMARK_WORKERS", 2)
	total := tally{kinds: map[checker.Kind][3]int{}, points: map[string]int{}}
	seeds := make(chan uint64)
	var group sync.WaitGroup
	for range workers {
		group.Go(func() {
			for seed := range seeds {
				out, err := runPlan(t.Context(), newPlan(seed, f))
				if err != nil {
					story := ""
					if out != nil {
						story = out.story(seed)
					}
					t.Errorf("%v\n%s", err, story)
					continue
				}
				if os.Getenv("WAYMARK_STORY") != "" {
					t.Log(out.story(seed))
				}
				if out.report.Error() != nil {
					t.Errorf("%s", out.story(seed))
				}
				total.add(out)
			}
		})
	}
	for seed := first; seed < first+count && !t.Failed(); seed++ {
		seeds <- seed
	}
	close(seeds)
	group.Wait()
	total.log(t, first)
	return &total
}

// tally adds schedules up.
type tally struct {
	mu                        sync.Mutex
	schedules, faults, events int
	kinds                     map[checker.Kind][3]int
	points                    map[string]int
	stale, sealed, purged     int64
	// sharded counts schedules of several shards, claims those answered with a run, orphaned the run.orphaned events.
	sharded, claims, orphaned int
}

func (s *tally) add(o *outcome) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.schedules++
	s.faults += o.report.Faults
	s.events += o.report.Events
	for _, kind := range []checker.Kind{checker.Publish, checker.Takeover, checker.Read} {
		n := s.kinds[kind]
		n[0] += o.report.OK[kind]
		n[1] += o.report.Failed[kind]
		n[2] += o.report.Unknown[kind]
		s.kinds[kind] = n
	}
	for p, n := range o.met {
		s.points[p] += n
	}
	s.stale += o.stale
	s.sealed += o.sealed
	s.purged += o.purged
	if o.shards > 1 {
		s.sharded++
	}
	for i := range o.history.Ops {
		if op := &o.history.Ops[i]; op.Detail == checker.DetailClaim && op.Outcome == checker.OK {
			s.claims++
		}
	}
	s.orphaned += o.orphaned
}

func (s *tally) log(t *testing.T, first uint64) {
	t.Helper()
	t.Logf("%d schedules from seed %d: %d events that count, %d faults; ok, failed, unknown: publish %v, takeover %v, read %v; stale answers %d; segments %d, purges %d; %d of several shards; %d claims, %d times orphaned; failpoints %v",
		s.schedules, first, s.events, s.faults, s.kinds[checker.Publish], s.kinds[checker.Takeover], s.kinds[checker.Read], s.stale, s.sealed, s.purged, s.sharded, s.claims, s.orphaned, s.points)
}

// meant fails if the schedules did not exercise what they should: then they prove nothing.
func (s *tally) meant(t *testing.T) {
	t.Helper()
	require.Positive(t, s.kinds[checker.Takeover][0], "takeovers")
	require.Positive(t, s.kinds[checker.Read][0], "reads")
	require.Positive(t, s.kinds[checker.Publish][1], "publishes that were refused")
	require.Positive(t, s.stale, "stale answers")
	require.Positive(t, s.sealed, "segments")
	require.Positive(t, s.purged, "purges")
	require.Positive(t, s.sharded, "schedules of several shards")
	require.Positive(t, s.claims, "claims")
	require.Positive(t, s.orphaned, "orphans")
	require.GreaterOrEqual(t, len(s.points), 8, "failpoints met: %v", s.points)
}
