//go:build unix

package nemesis_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/harness/checker"
	"github.com/waymarkio/waymark/internal/harness/testbin"
	"github.com/waymarkio/waymark/schema"
)

// behind is what happens to one of three servers' store while that server is stopped.
type behind struct {
	name string
	// older: it is reset to its state at an earlier stop.
	older bool
	// do changes JetStream's directory.
	do func(rnd *rand.Rand, jetstream string) error
}

// ours are the directories of Waymark's streams below JetStream's directory.
func ours(jetstream string) ([]string, error) {
	return filepath.Glob(filepath.Join(jetstream, "$G", "streams", "*WAYMARK_*"))
}

var replicasBehind = []behind{
	{name: "an older copy", older: true, do: func(*rand.Rand, string) error { return nil }},
	{name: "nothing", do: func(_ *rand.Rand, jetstream string) error { return os.RemoveAll(jetstream) }},
	{name: "no streams, and their raft logs", do: func(_ *rand.Rand, jetstream string) error {
		list, err := ours(jetstream)
		for _, dir := range list {
			err = errors.Join(err, os.RemoveAll(dir))
		}
		return err
	}},
	{name: "streams cut short, and their raft logs", do: func(rnd *rand.Rand, jetstream string) error {
		list, err := ours(jetstream)
		for _, dir := range list {
			blocks, globErr := filepath.Glob(filepath.Join(dir, "msgs", "*.blk"))
			err = errors.Join(err, globErr)
			slices.SortFunc(blocks, func(a, b string) int { return len(a) - len(b) })
			if len(blocks) > 0 {
				last := blocks[len(blocks)-1]
				info, statErr := os.Stat(last)
				err = errors.Join(err, statErr)
				if statErr == nil {
					err = errors.Join(err, os.Truncate(last, rnd.Int64N(info.Size()+1)))
				}
			}
			if rnd.IntN(2) == 0 { // else it is read as before, and found wrong
				if removeErr := os.Remove(filepath.Join(dir, "msgs", "index.db")); !errors.Is(removeErr, os.ErrNotExist) {
					err = errors.Join(err, removeErr)
				}
			}
		}
		return err
	}},
	{name: "raft logs cut short", do: func(rnd *rand.Rand, jetstream string) error {
		logs, err := filepath.Glob(filepath.Join(jetstream, "$SYS", "_js_", "*", "msgs", "*.blk"))
		for _, block := range logs {
			info, statErr := os.Stat(block)
			err = errors.Join(err, statErr)
			if statErr == nil {
				err = errors.Join(err, os.Truncate(block, rnd.Int64N(info.Size()+1)))
			}
		}
		return err
	}},
}

// It damages the store of one of three servers while it is stopped, starts it, kills the leader while it catches up,
// and makes it lead all streams: acknowledged events stay, or are reported missing.
func TestReplica_BehindLeads_LosesNothing(t *testing.T) {
	t.Parallel() // it mostly waits
	if testing.Short() {
		t.Skip("short: real servers and programs are broken")
	}
	if !testbin.Full(t) {
		t.Skip("sample: it takes a minute for each of five kinds: set WAYMARK_E2E_FULL=1, or run make chaos CHAOSFLAGS=\"-run Replica\"")
	}
	if only := number(t, "WAYMARK_CHAOS_SERVERS", 0); only != 0 && only != 3 {
		t.Skipf("WAYMARK_CHAOS_SERVERS=%d leaves out worlds of three servers", only)
	}
	seed := number(t, "WAYMARK_CHAOS_SEED", 1)
	for _, b := range replicasBehind {
		for i := range number(t, "WAYMARK_CHAOS_ROUNDS", 1) {
			t.Run(fmt.Sprintf("%s-seed=%d", b.name, seed+i), func(t *testing.T) { replicaBehind(t, b, seed+i) })
		}
	}
}

func replicaBehind(t *testing.T, b behind, seed uint64) {
	t.Helper()
	r := newRound(t, scaleOf(3), seed)
	i := r.storm.rnd.IntN(3)
	victim := r.nodes[i]
	copied := filepath.Join(t.TempDir(), "copy")
	more := func() error {
		h, err := r.read()
		if err == nil {
			r.awaitOps(succeeded(h) + 200 + r.storm.rnd.IntN(300))
		}
		return err
	}
	if b.older {
		r.suffer(fault{name: "replica-copied", strike: func(ctx context.Context, _ *storm) error {
			if err := victim.terminate(ctx); err != nil {
				return err
			}
			copyTree(t, r.store(i), copied)
			return nil
		}})
		r.must(more())
	}
	r.suffer(fault{name: "replica-behind: " + b.name, strike: func(ctx context.Context, s *storm) error {
		end := victim.terminate
		if s.rnd.IntN(2) == 0 {
			end = func(context.Context) error { return victim.kill() }
		}
		if err := end(ctx); err != nil {
			return err
		}
		if b.older {
			if err := errors.Join(os.RemoveAll(r.store(i)), os.Rename(copied, r.store(i))); err != nil {
				return err
			}
		}
		if err := errors.Join(b.do(s.rnd, filepath.Join(r.store(i), "nats", "store", "jetstream")), more()); err != nil {
			return err
		}
		if err := errors.Join(victim.start(), r.serving(i)); err != nil {
			return err
		}
		if err := s.between(ctx, 0, 1500); err != nil {
			return err
		}
		leader, err := s.leader(ctx)
		if err != nil {
			return err
		}
		if leader != i {
			if err := r.nodes[leader].kill(); err != nil {
				return err
			}
		}
		if err := s.between(ctx, 3000, 8000); err != nil {
			return err
		}
		led, err := s.promote(ctx, i)
		t.Logf("%s led %d streams", r.names[i], led)
		return err
	}})
	// With all three again it leads everything for a while.
	r.suffer(fault{name: "replica-leads: " + b.name, strike: func(ctx context.Context, s *storm) error {
		r.eventually("it does not lead", func() error {
			led, err := s.promote(ctx, i)
			if err == nil && led == 0 {
				err = errors.New("no stream has it as leader")
			}
			return err
		})
		return more()
	}})
	r.stop()
	h, err := r.read()
	r.must(err)
	finals, named := r.readAll(t, h)
	checker.AttributeClaims(h, finals)
	stored(h, finals)
	report := checker.Check(h, finals, checker.Options{Fleet: schema.DefaultFleet, Keys: schema.NoKeys, Damaged: named})
	r.violations = report.Violations
	for _, v := range report.Violations {
		t.Error(v)
	}
	t.Logf("seed %d, %s: %d boundaries acknowledged, %d runs, of which %d say what is missing", seed, b.name, report.OK[checker.Publish], len(finals), len(named))
}

// promote asks for a server to lead each stream, and counts those that it leads then.
func (s *storm) promote(ctx context.Context, server int) (led int, err error) {
	body, err := json.Marshal(map[string]any{"placement": map[string]string{"preferred": s.names[server]}})
	if err != nil {
		return 0, err
	}
	for range 3 {
		led = 0
		list, err := streams(ctx, s.js)
		if err != nil {
			if ctx.Err() != nil {
				return 0, err
			}
			continue // there is no leader to list them right now
		}
		for _, info := range list {
			if !strings.Contains(info.Config.Name, "WAYMARK_") || info.Cluster == nil {
				continue
			}
			if info.Cluster.Leader == s.names[server] {
				led++
				continue
			}
			request, cancel := context.WithTimeout(ctx, 2*time.Second)
			_, _ = s.js.Conn().RequestWithContext(request, "$JS.API.STREAM.LEADER.STEPDOWN."+info.Config.Name, body) // it may have none right now
			cancel()
		}
		if err := s.between(ctx, 500, 1000); err != nil {
			return 0, err
		}
	}
	return led, nil
}

// readAll reads the final state of all runs, and returns those that report missing events.
func (r *round) readAll(t *testing.T, h *checker.History) (finals []checker.Final, named map[string]bool) {
	t.Helper()
	named = make(map[string]bool)
	for _, run := range runsOf(h) {
		f, there, err := r.found(run)
		for err == nil && there && f.Complete {
			// An orphan may be noticed between the two readings.
			if head, err := r.fleet.Head(t.Context(), run); err == nil && head.Digest == f.Head.Digest {
				break
			}
			f, there, err = r.found(run)
		}
		switch {
		case err != nil:
			t.Logf("run %s: %v", run, err)
			named[run] = true
		case there:
			finals = append(finals, f)
			if !f.Complete {
				named[run] = true
			}
		}
	}
	require.NotEmpty(t, finals)
	return finals, named
}
