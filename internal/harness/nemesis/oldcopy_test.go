//go:build unix

package nemesis_test

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/harness/checker"
	"github.com/waymarkio/waymark/internal/harness/testbin"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// copies are the ways in which an operator takes a copy of a server's store, and whether the daemon is there when it comes back.
var copies = []struct {
	name string
	// how the copy is taken: of a server that "runs", "stands" still (like a snapshot of its disk), or is "stopped".
	how string
	// daemon: it keeps running while the server is exchanged, and finds its log shorter than it was.
	daemon bool
}{
	{"of a server that runs", "runs", true},
	{"of a server that runs, daemon stopped", "runs", false},
	{"of a disk's snapshot", "stands", true},
	{"of a disk's snapshot, daemon stopped", "stands", false},
	{"of a stopped server", "stopped", true},
	{"of a stopped server, daemon stopped", "stopped", false},
}

// It replaces the store of the only server by an older copy of itself, under load, which is an operator's mistake.
// Events acknowledged since the copy are gone. Their writers are told so, and no event acknowledged before or
// afterwards is lost, applied twice or mixed with them.
func TestStore_OlderCopy_Reported(t *testing.T) {
	t.Parallel() // it mostly waits
	if testing.Short() {
		t.Skip("short: real servers and programs are broken")
	}
	if only := number(t, "WAYMARK_CHAOS_SERVERS", 0); only > 1 {
		t.Skipf("WAYMARK_CHAOS_SERVERS=%d leaves out worlds of one server", only)
	}
	seed := number(t, "WAYMARK_CHAOS_SEED", uint64(time.Now().UnixNano()%1e9)) //nolint:gosec // any number will do
	for i, c := range copies {
		if !testbin.Full(t) && uint64(i) != seed%uint64(len(copies)) { // one, another each time
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			rounds := uint64(1)
			if testbin.Full(t) {
				rounds = number(t, "WAYMARK_CHAOS_ROUNDS", 1)
			}
			for n := range rounds {
				t.Run(fmt.Sprintf("seed=%d", seed+n), func(t *testing.T) { olderCopy(t, c.how, c.daemon, seed+n) })
			}
		})
	}
}

func olderCopy(t *testing.T, how string, daemon bool, seed uint64) {
	t.Helper()
	s := scaleOf(1)
	s.turns = 350 // runs that are active when the log goes back
	// A tool's external effect does not go back with the log: a call whose record is gone runs again, and no process
	// can know.
	s.toolless = true
	r := newRound(t, s, seed)
	server, store := r.nodes[0], r.store(0)
	copied := filepath.Join(t.TempDir(), "copy")
	more := func() {
		t.Helper()
		h, err := r.read()
		r.must(err)
		r.awaitOps(succeeded(h) + 300 + r.storm.rnd.IntN(500))
	}
	more()
	op := r.record.Begin(checker.Op{Actor: "nemesis", Kind: checker.Fault, Detail: "a copy of the store is taken, the server " + how})
	begun := op.Start
	switch how {
	case "stands":
		r.must(server.pause())
		copyTree(t, store, copied)
		r.must(server.resume())
	case "stopped":
		r.must(server.terminate(t.Context()))
		copyTree(t, store, copied)
		r.must(server.start())
		r.must(r.serving(0))
	default:
		copyTree(t, store, copied)
	}
	r.record.End(op, func(op *checker.Op) { op.Outcome = checker.OK })
	copiedAt := r.record.Now()
	more()
	op = r.record.Begin(checker.Op{Actor: "nemesis", Kind: checker.Fault, Detail: "the store is exchanged for its copy"})
	if !daemon {
		r.must(r.daemons[0].kill())
	}
	r.must(server.kill())
	gone := r.record.Now()
	r.must(os.RemoveAll(store))
	r.must(os.Rename(copied, store))
	r.must(server.start())
	r.must(r.serving(0))
	if !daemon {
		r.must(r.serve(r.daemons[0]))
	}
	r.record.End(op, func(op *checker.Op) { op.Outcome = checker.OK })
	r.calm()
	more()
	r.stop()
	h, err := r.read()
	r.must(err)
	var torn int
	window := acknowledged(h, begun, copiedAt)
	lost, held := forget(h, begun, gone)
	finals, may := r.readAll(t, h)
	if how == "runs" {
		torn = forgetFields(finals, window)
	}
	checker.AttributeClaims(h, finals)
	stored(h, finals)
	report := checker.Check(h, finals, checker.Options{
		Keys:  schema.NoKeys,
		Fleet: schema.DefaultFleet, Damaged: may, Least: map[checker.Kind]int{checker.Publish: 100, checker.Takeover: 10, checker.Read: 10},
	})
	r.violations = report.Violations
	for _, v := range report.Violations {
		t.Error(v)
	}
	told := r.told(t, publisher.ErrLogRegressed, publisher.ErrForked, publisher.ErrFenced)
	t.Logf("seed %d: %d boundaries were acknowledged after the copy was begun and before it came back, in %d runs; %d runs name what they miss, "+
		"%d large fields are missing and said to be; executors' handles ended: %v", seed, lost, held, len(may), torn, told)
	require.Positive(t, lost)
	require.Positive(t, told[publisher.ErrLogRegressed.Error()]+told[publisher.ErrForked.Error()], "no executor was told that what it had written is gone")
	if daemon {
		text, err := os.ReadFile(filepath.Join(r.logs(), r.daemons[0].name+".log"))
		r.must(err)
		require.Contains(t, string(text), "log regressed", "the daemon says that its log went back")
	}
}

// succeeded counts operations that did.
func succeeded(h *checker.History) (n int) {
	for i := range h.Ops {
		if h.Ops[i].Outcome == checker.OK {
			n++
		}
	}
	return n
}

// acknowledged returns the ids of the events that were acknowledged in a span of time.
func acknowledged(h *checker.History, from, to int64) map[string]bool {
	ids := make(map[string]bool)
	for i := range h.Ops {
		if op := &h.Ops[i]; op.Kind == checker.Publish && op.Outcome == checker.OK && op.End >= from && op.Start <= to {
			ids[op.Event] = true
		}
	}
	return ids
}

// forgetFields removes from the final runs the large fields that are gone and belong only to these events, and counts
// them. Files are copied one after another while the server writes: an event may be in the copy of the log and its
// large field not in the earlier copy of the blobs. Loading the field returns an error.
func forgetFields(finals []checker.Final, events map[string]bool) (n int) {
	for i := range finals {
		f := &finals[i]
		within, others := map[string]bool{}, map[string]bool{}
		for _, rec := range f.Log {
			if e, err := schema.Decode(rec.Header, rec.Body); err == nil && events[e.ID] {
				within[e.DataRef] = true
			} else if err == nil {
				others[e.DataRef] = true
			}
		}
		for ref, why := range f.Unread {
			if within[ref] && !others[ref] && strings.Contains(why, jetstream.ErrObjectNotFound.Error()) {
				delete(f.Unread, ref)
				n++
			}
		}
	}
	return n
}

// forget marks acknowledgements between a copy and its return as unknown in a history. It returns the number of
// boundaries, and of their runs.
func forget(h *checker.History, from, to int64) (lost, runs int) {
	of := make(map[string]bool)
	kept := h.Ops[:0]
	for i := range h.Ops {
		op := h.Ops[i]
		if op.Fenced && op.End >= from && op.Start <= to {
			op.Outcome, op.Fenced = checker.Unknown, false // the takeover that fenced it may be gone
		}
		if op.Outcome == checker.OK && op.End >= from && op.Start <= to {
			switch op.Kind {
			case checker.Read:
				continue // its answer is gone
			case checker.Publish:
				lost++
				of[op.Run] = true
				op.Outcome, op.Stream, op.Event = checker.Unknown, 0, ""
			case checker.Takeover:
				op.Outcome, op.Answer = checker.Unknown, nil
			default:
			}
		}
		kept = append(kept, op)
	}
	h.Ops = kept
	return lost, len(of)
}

// told counts the errors with which executors' handles ended.
func (r *round) told(t *testing.T, kinds ...error) map[string]int {
	t.Helper()
	told := make(map[string]int)
	h, err := r.read()
	r.must(err)
	for i := range h.Ops {
		if op := &h.Ops[i]; op.Kind == checker.Publish && op.Error != "" {
			for _, kind := range kinds {
				if strings.Contains(op.Error, kind.Error()) {
					told[kind.Error()]++
				}
			}
		}
	}
	return told
}

// copyTree copies files as they are read, while they change: a file that disappears is left out.
func copyTree(t *testing.T, from, to string) {
	t.Helper()
	require.NoError(t, filepath.WalkDir(from, func(path string, entry fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		if entry.IsDir() {
			return os.MkdirAll(filepath.Join(to, rel), 0o700)
		}
		in, err := os.Open(path)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		out, err := os.OpenFile(filepath.Join(to, rel), os.O_CREATE|os.O_WRONLY|os.O_EXCL, 0o600)
		if err == nil {
			_, err = io.Copy(out, in)
			err = errors.Join(err, out.Close())
		}
		return errors.Join(err, in.Close())
	}))
}
