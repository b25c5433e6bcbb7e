//go:build unix

package nemesis_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/waymarkio/waymark/internal/harness/checker"
	"github.com/waymarkio/waymark/internal/harness/testbin"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// damage is done to the store of a server that is stopped.
type damage struct {
	name string
	// pattern chooses the damaged file, below the directory of the streams.
	pattern string
	// do damages one file.
	do func(rnd *rand.Rand, file string) error
}

func damages() []damage {
	flip := func(rnd *rand.Rand, file string) error {
		text, err := os.ReadFile(file)
		if err != nil || len(text) == 0 {
			return err
		}
		text[rnd.IntN(len(text))] ^= 1 << rnd.IntN(8)
		return os.WriteFile(file, text, 0o600)
	}
	truncate := func(rnd *rand.Rand, file string) error {
		info, err := os.Stat(file)
		if err != nil {
			return err
		}
		return os.Truncate(file, rnd.Int64N(max(1, info.Size())))
	}
	remove := func(_ *rand.Rand, file string) error { return os.Remove(file) }
	zero := func(rnd *rand.Rand, file string) error {
		text, err := os.ReadFile(file)
		if err != nil || len(text) == 0 {
			return err
		}
		from := rnd.IntN(len(text))
		clear(text[from:min(len(text), from+4096)])
		return os.WriteFile(file, text, 0o600)
	}
	const events, checkpoints, segments, blobs = "WAYMARK_EVENTS_*", "KV_WAYMARK_CHECKPOINTS_*", "KV_WAYMARK_SEGMENTS_*", "OBJ_WAYMARK_BLOBS_*"
	var list []damage
	for _, stream := range []string{events, checkpoints, segments, blobs} {
		short := strings.ToLower(strings.Trim(strings.TrimPrefix(strings.TrimPrefix(stream, "KV_"), "OBJ_"), "*_")[len("WAYMARK_"):])
		list = append(
			list,
			damage{short + ": a bit flipped", stream + "/msgs/*.blk", flip},
			damage{short + ": 4 KiB zeroed", stream + "/msgs/*.blk", zero},
			damage{short + ": a block cut short", stream + "/msgs/*.blk", truncate},
			damage{short + ": a block removed", stream + "/msgs/*.blk", remove},
			damage{short + ": the index removed", stream + "/msgs/index.db", remove},
			damage{short + ": the index damaged", stream + "/msgs/index.db", flip},
			damage{short + ": the stream's description removed", stream + "/meta.inf", remove},
		)
	}
	return list
}

// It damages the store of a server that was stopped, cleanly or by kill -9, in every known way, and reads all runs:
// each answer is complete, or says that something is missing.
func TestDamage_StoreFiles_NamedOrSurvived(t *testing.T) {
	t.Parallel() // it mostly waits
	if testing.Short() {
		t.Skip("short: real servers and programs are broken")
	}
	times := 0
	if testbin.Full(t) {
		times = 3
	}
	for name, clean := range map[string]bool{"clean": true, "kill9": false} {
		t.Run(name, func(t *testing.T) {
			seed := number(t, "WAYMARK_CHAOS_SEED", 1)
			r := newRound(t, scaleOf(1), seed)
			r.awaitOps(1500)
			r.stop()
			r.awaitCheckpoints()
			for _, d := range r.daemons {
				r.must(d.kill())
			}
			if clean {
				r.must(r.nodes[0].terminate(t.Context()))
			} else {
				r.must(r.nodes[0].kill())
			}
			h, err := r.read()
			r.must(err)
			rnd := rand.New(rand.NewPCG(seed, 5)) //nolint:gosec // chooses the damage
			list := damages()
			if !testbin.Full(t) { // a few, which the seed chooses
				rnd.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
				list = list[:2]
			}
			for _, d := range list {
				for i := range max(1, times) {
					t.Run(fmt.Sprintf("%s-%d", d.name, i), func(t *testing.T) { r.damaged(t, h, d, rnd.Uint64()) })
				}
			}
		})
	}
}

// awaitOps waits until so many operations have succeeded.
func (r *round) awaitOps(n int) {
	r.tb.Helper()
	r.eventually("too few operations", func() error {
		h, err := r.read()
		if err != nil {
			return err
		}
		done := 0
		for i := range h.Ops {
			if h.Ops[i].Outcome == checker.OK {
				done++
			}
		}
		if done < n {
			return fmt.Errorf("%d of %d", done, n)
		}
		return nil
	})
}

// awaitCheckpoints waits until each run has a checkpoint. Events that were only in the damaged log leave no trace, as
// limits.md says.
func (r *round) awaitCheckpoints() {
	r.tb.Helper()
	h, err := r.read()
	r.must(err)
	for _, run := range runsOf(h) {
		r.eventually("run "+run+" has no checkpoint", func() error {
			_, err := checkpoint(r.tb.Context(), r.js, run)
			if errors.Is(err, kvstore.ErrNotFound) {
				if _, err := r.fleet.Head(r.tb.Context(), run); errors.Is(err, publisher.ErrRunNotFound) {
					return nil // its start was not acknowledged, and did not happen
				}
			}
			return err
		})
	}
}

// damaged does one damage to a copy of the store, starts a server and a daemon on it, and judges their answers.
func (r *round) damaged(t *testing.T, h *checker.History, d damage, seed uint64) {
	t.Helper()
	s := r.scale
	s.storeDirs = []string{filepath.Join(t.TempDir(), "server-0")}
	require.NoError(t, os.CopyFS(s.storeDirs[0], os.DirFS(r.store(0))))
	rnd := rand.New(rand.NewPCG(seed, 6)) //nolint:gosec // chooses the damage
	streams := filepath.Join(s.storeDirs[0], "nats", "store", "jetstream", "$G", "streams")
	files, err := filepath.Glob(filepath.Join(streams, d.pattern))
	require.NoError(t, err)
	if len(files) == 0 {
		t.Skipf("the server wrote no %s this time: run it with another WAYMARK_CHAOS_SEED", d.pattern)
	}
	file := files[rnd.IntN(len(files))]
	require.NoError(t, d.do(rnd, file))
	w := emptyWorld(t, s, seed)
	op := w.record.Begin(checker.Op{Actor: "nemesis", Kind: checker.Fault, Detail: d.name + " in " + filepath.Base(filepath.Dir(filepath.Dir(file)))})
	w.record.End(op, func(op *checker.Op) { op.Outcome = checker.OK })
	w.startServers()
	w.daemons = append(w.daemons, w.daemon(0))
	if err := w.serve(w.daemons[0]); err != nil {
		// An alarm instead of a fresh start: the daemon's log names the missing stream.
		text, readErr := os.ReadFile(filepath.Join(w.logs(), w.daemons[0].name+".log"))
		require.NoError(t, readErr)
		below, err := filepath.Rel(streams, file)
		require.NoError(t, err)
		stream, _, _ := strings.Cut(filepath.ToSlash(below), "/")
		said := string(text[strings.LastIndex(string(text), "\nwaymark: ")+1:])
		require.Contains(t, said, stream, "the daemon does not start, and does not name what is missing: %s", text)
		t.Logf("%s: the daemon refuses to start: %s", d.name, strings.ReplaceAll(strings.TrimSpace(said), "\n", "; "))
		return
	}
	c := &round{world: w, fleet: w.fleet("judge", 0, 10*time.Second)}
	w.js, err = jetstream.New(w.dial("nemesis", 0))
	require.NoError(t, err)
	var finals []checker.Final
	unread := 0
	named := make(map[string]string)
	may := make(map[string]bool)
	for _, a := range c.foundAll(runsOf(h)) {
		may[a.run] = true
		switch {
		case a.err != nil:
			named[a.run] = a.err.Error()
		case a.there:
			finals = append(finals, a.final)
			unread += len(a.final.Unread)
			if !a.final.Complete {
				named[a.run] = fmt.Sprintf("gaps %v", a.final.Head.Gaps)
			}
		}
	}
	checker.AttributeClaims(h, finals)
	stored(h, finals)
	judged := checker.Check(h, finals, checker.Options{Fleet: schema.DefaultFleet, Keys: schema.NoKeys, Damaged: may})
	for _, v := range judged.Violations {
		// A run that is refused with an error, and named so, is not silently lost.
		if v.Rule == checker.RuleAcknowledged && named[v.Run] != "" {
			continue
		}
		// Sealed events are read from segments; the rest of the log after a damage is read again, at another
		// position.
		if v.Rule == checker.RuleModel && strings.HasPrefix(v.Detail, "position:") {
			continue
		}
		w.violations = append(w.violations, v)
		t.Errorf("%s (%s): %v", d.name, filepath.Base(file), v)
	}
	var examples []string
	for run, why := range named {
		examples = append(examples, run+": "+why)
	}
	slices.Sort(examples)
	first := ""
	if len(examples) > 0 {
		first = fmt.Sprintf(", such as %.160s", examples[0])
	}
	t.Logf("%s: %d runs are whole, %d say what is missing; of %d large fields %d are refused%s", d.name, len(finals)-incomplete(finals), len(named), c.fields.Load(), unread, first)
}

func incomplete(finals []checker.Final) (n int) {
	for i := range finals {
		if !finals[i].Complete {
			n++
		}
	}
	return n
}

// answered is what [round.found] says of a run.
type answered struct {
	run   string
	final checker.Final
	there bool
	err   error
}

// foundAll reads runs side by side: each of those that the service cannot answer for is asked for until its time is over.
func (r *round) foundAll(runs []string) []answered {
	list := make([]answered, len(runs))
	var group errgroup.Group
	group.SetLimit(8)
	for i, run := range runs {
		group.Go(func() error {
			a := answered{run: run}
			a.final, a.there, a.err = r.found(run)
			list[i] = a
			return nil
		})
	}
	_ = group.Wait() // what is wrong with a run is in its answer
	return list
}

// found reads a run, once. An error is an answer, too; none of a service that is only slow.
func (r *round) found(run string) (f checker.Final, there bool, err error) {
	ctx := r.tb.Context()
	f = checker.Final{Run: run, Complete: true}
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(30 * time.Second); ; <-tick.C {
		f.Head, err = r.fleet.Head(ctx, run)
		if !errors.Is(err, publisher.ErrUnavailable) && !errors.Is(err, publisher.ErrNoService) || time.Now().After(end) {
			break
		}
	}
	_, gaps := errors.AsType[*publisher.IncompleteError](err)
	switch {
	case errors.Is(err, publisher.ErrRunNotFound):
		return f, false, nil
	case err != nil && !gaps:
		return f, false, err
	}
	f.Complete = err == nil && f.Head.Complete()
	err = r.fleet.Events(ctx, run, func(rec schema.Record) error {
		f.Log = append(f.Log, rec)
		return nil
	})
	f.Unread = r.unread(f.Log, 1)
	if _, gaps := errors.AsType[*publisher.IncompleteError](err); gaps {
		f.Complete = false
		return f, true, nil
	}
	return f, true, err
}
