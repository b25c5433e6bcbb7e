package nemesis_test

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/harness/checker"
	"github.com/waymarkio/waymark/internal/harness/mutant"
	"github.com/waymarkio/waymark/internal/harness/mutant/overlay"
	"github.com/waymarkio/waymark/internal/harness/testbin"
	"github.com/waymarkio/waymark/schema"
)

// withMutants is the directory of the daemon and this test with all mutants and failpoints. They are built once,
// when a test needs them, in a directory below that of the ordinary programs.
var withMutants = sync.OnceValues(func() (string, error) {
	dir := filepath.Join(filepath.Dir(waymarkBinary), "with-mutants")
	all, err := mutant.All()
	if err != nil {
		return "", err
	}
	file, err := overlay.Write(filepath.Join("..", "..", ".."), filepath.Join(filepath.Dir(waymarkBinary), "mutants"), all)
	if err != nil {
		return "", err
	}
	for _, build := range [][]string{
		{"build", "-o", dir + string(filepath.Separator), "../../../cmd/waymark"}, {"test", "-c", "-o", filepath.Join(dir, filepath.Base(testBinary)), "."},
	} {
		args := slices.Insert(build, 1, "-tags", "waymark_failpoints", "-overlay", file)
		if out, err := run("go", args...); err != nil {
			return "", fmt.Errorf("building programs with mutants: %w\n%s", err, out)
		}
	}
	return dir, nil
})

// cutsWithin is within how many power cuts a mistake must be found. It took one on each of the seeds that were tried.
const cutsWithin = 5

// It switches on the mutant that no kill can show: the server syncs at its default interval. The power is cut right
// after an acknowledgement.
func TestPowerCut_UnsyncedServer_Detected(t *testing.T) {
	if testing.Short() {
		t.Skip("short: real servers and programs are broken")
	}
	foundByCuts(t, "default-sync", func(r *round, n uint64) error {
		r.awaitOps(200 + r.storm.rnd.IntN(600))
		return errors.Join(r.rest(), r.acknowledged(n))
	})
}

// foundByCuts switches a mutant on and cuts the power at a moment, until the checker finds that acknowledged events are missing. The same
// cuts of the same worlds without the mistake lose nothing.
func foundByCuts(t *testing.T, bug string, at moment) {
	t.Helper()
	t.Parallel() // it mostly waits
	if !testbin.Full(t) {
		t.Skip("sample: a bug takes minutes to be found by cuts: set WAYMARK_E2E_FULL=1, or run make chaos-power")
	}
	if only := number(t, "WAYMARK_CHAOS_SERVERS", 0); only > 1 {
		t.Skipf("WAYMARK_CHAOS_SERVERS=%d leaves out worlds of one server", only)
	}
	first, seeds := number(t, "WAYMARK_CHAOS_SEED", 1), number(t, "WAYMARK_CHAOS_CUTS", 1)
	if seeds == 0 {
		t.Skip("WAYMARK_CHAOS_CUTS=0 leaves out power cuts")
	}
	newDisk(t, filepath.Join(t.TempDir(), "disk"), 64) // skips where there can be none
	for i := range seeds {
		seed := first + i
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			cuts := uint64(0)
			for found := false; !found; {
				require.Less(t, cuts, uint64(cutsWithin), "as many power cuts have not shown the mistake")
				report := cutOnce(t, bug, at, seed*cutsWithin+cuts)
				cuts++
				if found = report.Broken(checker.RuleAcknowledged); found {
					t.Logf("found by power cut %d: %v, %d times, e.g. %s", cuts, report.Rules(), len(report.Violations), report.Violations[0])
				}
			}
			for n := range cuts {
				report := cutOnce(t, "", at, seed*cutsWithin+n)
				require.NoError(t, report.Error(), "without the mistake")
			}
		})
	}
}

// cutOnce cuts the power of a new world's only server under load, and judges the state afterwards.
func cutOnce(t *testing.T, bug string, at moment, seed uint64) (report *checker.Report) {
	t.Helper()
	t.Run(fmt.Sprintf("cut=%d%s", seed, bug), func(t *testing.T) { report = cutAndJudge(t, bug, at, seed) })
	require.NotNil(t, report, "the cut was not judged")
	return report
}

func cutAndJudge(t *testing.T, bug string, at moment, seed uint64) *checker.Report {
	t.Helper()
	s := scaleOf(1)
	d := newDisk(t, filepath.Join(t.TempDir(), "disk"), 1024)
	s.storeDirs, s.mutant = []string{filepath.Join(d.mount, "state")}, bug
	var err error
	s.mutants, err = withMutants()
	require.NoError(t, err)
	r := newRound(t, s, seed)
	// In every second world the initial data is on the disk, and only later data can be lost.
	if seed%2 == 0 {
		out, err := run("sync", "-f", d.mount)
		require.NoError(t, err, out)
	}
	r.must(at(r, seed))
	op := r.record.Begin(checker.Op{Actor: "nemesis", Kind: checker.Fault, Detail: "power-cut " + bug})
	server := r.nodes[0]
	r.must(errors.Join(server.pause(), stands(t.Context(), server)))
	r.must(errors.Join(d.cut(), server.kill()))
	r.prober.end()
	r.must(killAll(slices.Concat(r.executors, r.daemons)))
	r.must(errors.Join(d.off(), d.on()))
	r.halt = ""
	r.record.End(op, func(op *checker.Op) { op.Outcome = checker.OK })
	h, err := r.read()
	r.must(err)
	var finals []checker.Final
	if err := r.back(); err != nil {
		require.NotEmpty(t, bug, "server and daemon start again: %v", err)
		t.Logf("seed %d: nothing is answered after the cut: %v", seed, err)
	} else {
		for _, run := range runsOf(h) {
			f, there, err := r.found(run)
			if err != nil {
				require.NotEmpty(t, bug, "run %s is answered: %v", run, err)
				continue
			}
			if there {
				finals = append(finals, f)
			}
		}
	}
	checker.AttributeClaims(h, finals)
	stored(h, finals)
	report := checker.Check(h, finals, checker.Options{Fleet: schema.DefaultFleet, Keys: schema.NoKeys})
	if bug == "" {
		r.violations = report.Violations
	}
	t.Logf("seed %d, %q: %d boundaries were acknowledged; the checker found %v", seed, bug, report.OK[checker.Publish], report.Rules())
	return report
}

// back starts the only server and a daemon again after both have ended.
func (r *round) back() error {
	if err := r.nodes[0].start(); err != nil {
		return err
	}
	if err := r.serving(0); err != nil {
		return err
	}
	return r.serve(r.daemons[0])
}
