//go:build unix

package nemesis_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/harness/checker"
	"github.com/waymarkio/waymark/schema"
)

const (
	// endedFor is how long a run has ended before it is judged: reads in progress have returned by then.
	endedFor = 3 * time.Second
	// idleFor is how long nothing is done on a run before it is looked whether it has ended: the answer to its end may have been lost.
	idleFor = 40 * time.Second
	// claimsFor is how long an unanswered claim may turn out to be one of a run's takeovers.
	claimsFor = 15 * time.Minute
)

// ledger reads the histories of all processes as they are written, and drops each run once it is judged, so that a
// world of days takes no more memory than one of minutes.
type ledger struct {
	dir     string
	offsets map[string]int64
	// open are the operations that have begun, by their ids.
	open map[int64]*checker.Op
	// runs that are not judged, claims that have no run.
	runs   map[string]*account
	claims []*checker.Op
	// judged is when a run was, as far as something late may still be said of it.
	judged map[string]time.Time
	// wrote is when an executor was last acknowledged a boundary.
	wrote    map[string]int64
	outcomes map[string]int
}

// account is the operations on one run.
type account struct {
	ops []*checker.Op
	// ended is when its end was acknowledged, last when anything was done with it that is not a read, in nanoseconds. looked: not before.
	ended, last int64
	looked      time.Time
}

func newLedger(dir string) *ledger {
	return &ledger{
		dir: dir, offsets: make(map[string]int64), open: make(map[int64]*checker.Op), runs: make(map[string]*account),
		judged: make(map[string]time.Time), wrote: make(map[string]int64), outcomes: make(map[string]int),
	}
}

// read reads the new entries since the last time.
func (l *ledger) read() error {
	names, err := filepath.Glob(filepath.Join(l.dir, "*.jsonl"))
	if err != nil {
		return err
	}
	for _, name := range names {
		if err := l.file(name); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	now := time.Now()
	l.claims = slices.DeleteFunc(l.claims, func(op *checker.Op) bool { return now.UnixNano()-op.Start > int64(claimsFor) })
	for id, op := range l.open {
		if op.Run == "" && now.UnixNano()-op.Start > int64(claimsFor) {
			delete(l.open, id)
		}
	}
	for run, at := range l.judged {
		if now.Sub(at) > claimsFor {
			delete(l.judged, run)
		}
	}
	return nil
}

// file reads the new complete lines of a file. An incomplete one is left for the next time, or forever.
func (l *ledger) file(name string) (err error) {
	file, err := os.Open(name)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	if _, err := file.Seek(l.offsets[name], io.SeekStart); err != nil {
		return err
	}
	text, err := io.ReadAll(file)
	if err != nil {
		return err
	}
	for {
		line, rest, whole := bytes.Cut(text, []byte("\n"))
		if !whole {
			return nil
		}
		op := new(checker.Op)
		if err := json.Unmarshal(line, op); err != nil {
			return err
		}
		l.offsets[name] += int64(len(line)) + 1
		l.take(op)
		text = rest
	}
}

// take takes in one line: an operation that begins or ends.
func (l *ledger) take(op *checker.Op) {
	if op.End == 0 {
		l.open[op.ID] = op
	} else {
		delete(l.open, op.ID)
		l.outcomes[string(op.Kind)+" "+string(op.Outcome)]++
		if op.Kind == checker.Publish && op.Outcome == checker.OK {
			name, _, _ := strings.Cut(op.Actor, ".")
			l.wrote[name] = max(l.wrote[name], op.End)
		}
	}
	if op.Kind == checker.Fault {
		return
	}
	if op.Run == "" {
		if op.End != 0 && op.Outcome != checker.OK && op.Detail == checker.DetailClaim {
			l.claims = append(l.claims, op)
		}
		return
	}
	if _, late := l.judged[op.Run]; late {
		delete(l.open, op.ID)
		return
	}
	a := l.runs[op.Run]
	if a == nil {
		a = new(account)
		l.runs[op.Run] = a
	}
	if op.Kind != checker.Read { // a read does not change that a run has ended
		a.last = max(a.last, op.Start, op.End)
	}
	if op.End != 0 {
		a.ops = append(a.ops, op)
		if op.Kind == checker.Publish && op.Outcome == checker.OK && op.Detail == schema.RunEnded {
			a.ended = op.End
		}
	}
}

// over are runs that have ended and come to rest, and idle those to look up.
func (l *ledger) over(now time.Time) (over, idle []string) {
	for run, a := range l.runs {
		switch {
		case a.ended != 0 && now.UnixNano()-a.ended > int64(endedFor):
			over = append(over, run)
		case a.ended == 0 && now.UnixNano()-a.last > int64(idleFor) && now.After(a.looked):
			a.looked = now.Add(idleFor)
			idle = append(idle, run)
		}
	}
	slices.Sort(over)
	slices.Sort(idle)
	return over, idle
}

// live are runs that are known not to have ended.
func (l *ledger) live() []string {
	var live []string
	for run, a := range l.runs {
		if a.ended == 0 {
			live = append(live, run)
		}
	}
	slices.Sort(live)
	return live
}

// history is the operations on one run, with the claims that may belong to it. It is for Check.
func (l *ledger) history(run string) *checker.History {
	h := new(checker.History)
	for _, op := range l.runs[run].ops {
		h.Ops = append(h.Ops, *op)
	}
	for _, op := range l.open {
		if op.Run == run || op.Run == "" && op.Detail == checker.DetailClaim {
			h.Ops = append(h.Ops, *op)
		}
	}
	for _, op := range l.claims {
		h.Ops = append(h.Ops, *op)
	}
	slices.SortFunc(h.Ops, func(a, b checker.Op) int { return int(a.Start - b.Start) })
	return h
}

// judge judges one run by its final state, and drops it.
func (l *ledger) judge(run string, found []checker.Final) []checker.Violation {
	h := l.history(run)
	checker.AttributeClaims(h, found)
	stored(h, found)
	// Claims that are of no run, or turned out to be of another, are not this one's.
	mine := new(checker.History)
	used := make(map[int64]bool)
	for i := range h.Ops {
		if h.Ops[i].Run == run {
			mine.Ops = append(mine.Ops, h.Ops[i])
			used[h.Ops[i].ID] = true
		}
	}
	l.claims = slices.DeleteFunc(l.claims, func(op *checker.Op) bool { return used[op.ID] })
	for id := range used {
		delete(l.open, id)
	}
	delete(l.runs, run)
	l.judged[run] = time.Now()
	return checker.Check(mine, found, checker.Options{Fleet: schema.DefaultFleet, Keys: schema.NoKeys}).Violations
}

// An executor that was killed as it ended its run leaves an ended run without a report of its end.
func TestPlayer_EndUnacknowledged_LookedFor(t *testing.T) {
	now := time.Now()
	l := newLedger(t.TempDir())
	l.take(&checker.Op{ID: 1, Kind: checker.Publish, Run: "r1", Detail: schema.RunEnded, Start: now.Add(-2 * idleFor).UnixNano()})
	l.take(&checker.Op{ID: 2, Kind: checker.Read, Run: "r1", Start: now.UnixNano(), End: now.UnixNano(), Outcome: checker.OK})
	over, idle := l.over(now)
	require.Empty(t, over)
	require.Equal(t, []string{"r1"}, idle)
}
