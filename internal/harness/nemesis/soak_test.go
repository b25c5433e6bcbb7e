//go:build unix

package nemesis_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/harness/checker"
	"github.com/waymarkio/waymark/internal/harness/testbin"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// Figures of a stream and of a store; those of a process are takes'.
const (
	bytesOf    = "stream bytes"
	messagesOf = "stream messages"
	subjectsOf = "stream subjects"
	consumers  = "stream consumers"
	onDisk     = "store on disk"
	filesOf    = "store files"
)

// soakRules are how far each figure may rise from the first third of the judged time to the last. A removed run
// permanently leaves a tombstone, a checkpoint, a receipt and a delete marker for each segment and payload: 1.5 to
// 2.6 KiB (docs/limits.md). A server keeps each subject in memory.
func soakRules() []soakRule {
	const kb, mb = 1 << 10, 1 << 20
	return []soakRule{
		{Figure: goroutines, Share: 0.1, Least: 15},
		{Figure: openFiles, Share: 0.1, Least: 10},
		{Figure: resident, Share: 0.2, Least: 16 * mb, PerRun: 2 * kb},
		{Figure: heapInUse, Share: 0.2, Least: 6 * mb, PerRun: 2 * kb},
		{Figure: heapLive, Share: 0.2, Least: 3 * mb, PerRun: 2 * kb},
		{Figure: bytesOf, Share: 0.2, Least: 2 * mb, PerRun: 2 * kb},
		{Figure: messagesOf, Share: 0.2, Least: 500, PerRun: 5},
		{Figure: subjectsOf, Share: 0.2, Least: 100, PerRun: 5},
		{Figure: consumers, Share: 0, Least: 4},
		{Figure: onDisk, Share: 0.2, Least: 16 * mb, PerRun: 3 * kb},
		// A block of the server's store stays as long as it has one tombstone: a file per 33 removed runs was
		// measured.
		{Figure: filesOf, Share: 0.2, Least: 20, PerRun: 0.05},
	}
}

// soaking is a world that does the same work for a long time.
type soaking struct {
	*round
	ledger *ledger
	log    soakLog
	begun  time.Time
	// lasts is how long it takes, warm when it is judged from, keeps how long ended runs are kept.
	lasts, warm, keeps time.Duration
	// read is when the histories were read last: runs that had ended a moment before are judged.
	read  time.Time
	rules []soakRule
	probe *steadyProbe
	// judged runs, and removed ones since warm.
	judged, removed, removedWarm int
	faults                       int
	// refusals are the cleanups in a row that were not answered in time.
	refusals int
}

// unavailable is the exit code of a command that was not answered in time.
const unavailable = 3

// It runs for WAYMARK_SOAK: runs begin and end all the time, ended ones are removed, and the resource usage of each
// process and stream stays the same.
func TestSoak_SteadyWork_NothingGrows(t *testing.T) {
	if testing.Short() {
		t.Skip("short: real servers and programs are broken")
	}
	text := os.Getenv("WAYMARK_SOAK")
	if text == "" {
		t.Skip("a soak takes long: run make soak, with DURATION=10m for a short one")
	}
	lasts, err := time.ParseDuration(text)
	require.NoError(t, err, "WAYMARK_SOAK")
	require.GreaterOrEqual(t, lasts, 2*time.Minute, "WAYMARK_SOAK: nothing can be said of less")
	servers := int(number(t, "WAYMARK_CHAOS_SERVERS", 1)) //nolint:gosec // 1 or 3
	sc := scaleOf(servers)
	sc.daemons, sc.metrics, sc.leak = 2, true, os.Getenv("WAYMARK_SOAK_LEAK")
	sc.pause, sc.turns = int64(number(t, "WAYMARK_SOAK_PAUSE", 175)), 16       //nolint:gosec // milliseconds
	seed := number(t, "WAYMARK_CHAOS_SEED", uint64(time.Now().UnixNano()%1e9)) //nolint:gosec // any number will do
	t.Logf("WAYMARK_CHAOS_SEED=%d WAYMARK_CHAOS_SERVERS=%d WAYMARK_SOAK=%s", seed, servers, lasts)
	w := newWorld(t, sc, seed)
	w.js, err = jetstream.New(w.dial("nemesis", 0))
	require.NoError(t, err)
	s := &soaking{
		round: &round{world: w, fleet: w.fleet("judge", 0, 10*time.Second)}, ledger: newLedger(w.history()), lasts: lasts, rules: soakRules(),
		keeps: min(max(lasts/12, 20*time.Second), 2*time.Minute),
	}
	s.warm = max(lasts/5, 2*s.keeps)
	s.storm = &storm{world: w, rnd: rand.New(rand.NewPCG(seed, 7))} //nolint:gosec // chooses the faults
	s.begun = time.Now()
	t.Cleanup(func() { s.leave(t) })
	s.probe = w.steadyProbe(s.fleet)
	t.Cleanup(s.probe.end)
	w.load()
	s.work(t)
	s.finish(t)
}

// work keeps the world going until its time is over: samples, judges and removes runs, and breaks something now and then.
func (s *soaking) work(t *testing.T) {
	t.Helper()
	mild := os.Getenv("WAYMARK_SOAK_FAULTS") != "none"
	every := min(max(s.lasts/300, time.Second), 10*time.Second)
	clean, breaks := s.keeps, s.warm/3
	restarted := s.scale.servers > 1 || !mild
	tick := time.NewTicker(every)
	defer tick.Stop()
	for range tick.C {
		at := time.Since(s.begun)
		if at >= s.lasts || t.Failed() {
			return
		}
		s.sample(t)
		s.judgeEnded(t)
		if at >= clean {
			s.cleanup(t)
			clean = at + s.keeps/4
		}
		switch {
		case !mild || at < breaks:
		case !restarted:
			restarted = true
			s.breaks(t, "the server is restarted", func(ctx context.Context) error { return s.nodes[0].terminate(ctx) })
		default:
			s.mildFault(t)
		}
		if at >= breaks {
			breaks = at + min(max(s.lasts/20, 15*time.Second), 4*time.Minute)
		}
	}
}

// mildFault injects a fault that occurs about weekly. Of each kind of process the last one is ended; the others live
// as long as the world, and are judged.
func (s *soaking) mildFault(t *testing.T) {
	t.Helper()
	last := func(list []*process) *process { return list[len(list)-1] }
	list := []struct {
		name string
		do   func(ctx context.Context) error
	}{
		{"a daemon is restarted", func(ctx context.Context) error { return last(s.daemons).terminate(ctx) }},
		{"a daemon is stopped for a while", func(ctx context.Context) error { return s.storm.freeze(ctx, s.daemons[:1], 7000, 9000, false) }},
		{"an executor is restarted", func(ctx context.Context) error { return last(s.executors).terminate(ctx) }},
		{"an executor is killed", func(context.Context) error { return last(s.executors).kill() }},
		{"an executor is stopped for a while", func(ctx context.Context) error {
			return s.storm.freeze(ctx, s.executors[:1], 4000, 8000, false)
		}},
		{"the links are cut", func(ctx context.Context) error {
			return s.storm.weather(ctx, slices.Concat(s.executors, s.daemons), Weather{Cut: true}, 500, 2500)
		}},
	}
	if s.scale.servers > 1 {
		list = append(list, list[0])
		list[len(list)-1].name, list[len(list)-1].do = "a server is restarted", func(ctx context.Context) error { return last(s.nodes).terminate(ctx) }
	}
	f := list[s.storm.rnd.IntN(len(list))]
	s.breaks(t, f.name, f.do)
}

// breaks injects a fault, heals it, and waits until every process works again.
func (s *soaking) breaks(t *testing.T, name string, do func(ctx context.Context) error) {
	t.Helper()
	s.faults++
	op := s.record.Begin(checker.Op{Actor: "nemesis", Kind: checker.Fault, Detail: name})
	err := errors.Join(do(t.Context()), s.heal())
	s.record.End(op, func(op *checker.Op) { Ended(op, err) })
	require.NoError(t, err, name)
	since, recovered := s.record.Now(), s.probe.recovered.Load()
	s.eventually("not every process works again", func() error {
		if err := s.ledger.read(); err != nil {
			return err
		}
		for _, p := range s.executors {
			if s.ledger.wrote[p.name] < since {
				return fmt.Errorf("%s has written nothing", p.name)
			}
		}
		if s.probe.recovered.Load() < recovered+2 {
			return errors.New("nothing was recovered")
		}
		return s.replicated(t.Context(), s.js)
	})
}

// judgeEnded judges ended runs, before they are removed.
func (s *soaking) judgeEnded(t *testing.T) {
	t.Helper()
	s.read = time.Now()
	require.NoError(t, s.ledger.read())
	over, idle := s.ledger.over(s.read)
	for _, run := range idle {
		head, err := s.fleet.Head(t.Context(), run)
		if errors.Is(err, publisher.ErrRunNotFound) || err == nil && head.Status.Terminal() {
			over = append(over, run)
		}
	}
	for _, run := range over {
		s.judgeRun(t, run)
	}
	s.probe.know(s.ledger.live())
}

func (s *soaking) judgeRun(t *testing.T, run string) {
	t.Helper()
	var found []checker.Final
	if f, there := s.final(run); there {
		found = append(found, f)
	}
	broken := s.ledger.judge(run, found)
	s.violations = append(s.violations, broken...)
	for _, v := range broken {
		t.Errorf("%v", v)
	}
	s.judged++
}

// cleanup removes the runs that ended a while ago, as an operator's timer would. All of them are judged: those that ended while others were
// being judged are too young.
func (s *soaking) cleanup(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	removed, err := s.world.cleanup(ctx, s.keeps+endedFor+time.Since(s.read))
	if exit, ended := errors.AsType[*exec.ExitError](err); ended && exit.ExitCode() == unavailable && s.refusals < 10 {
		s.refusals++ // it reports that, and the next one continues
		t.Logf("a cleanup was not answered in time: %v", err)
		err = nil
	} else {
		s.refusals = 0
	}
	require.NoError(t, err)
	s.removed += len(removed)
	if time.Since(s.begun) > s.warm {
		s.removedWarm += len(removed)
	}
}

// cleanup makes a person remove the runs that ended longer ago than an age, by the command, and returns them. An
// error has the output.
func (w *world) cleanup(ctx context.Context, age time.Duration, more ...string) (removed []string, err error) {
	args := []string{"--json", "cleanup", "--nats", w.urls("operator", 0), "--max-age", age.Round(time.Second).String(), "--grace", "1s", "--by", "operator"}
	cmd := exec.CommandContext(ctx, waymarkBinary, append(args, more...)...)
	cmd.Env = testbin.Environment("NATS_USER="+w.user, "NATS_PASSWORD="+w.password)
	var told strings.Builder
	cmd.Stderr = &told
	out, err := cmd.Output()
	var report struct {
		Runs []schema.CleanupItem `json:"runs"`
	}
	if parsed := json.Unmarshal(out, &report); err == nil {
		err = parsed
	}
	for _, item := range report.Runs {
		if item.Remove && item.Failed == "" {
			removed = append(removed, item.Run)
		}
	}
	if err != nil {
		return removed, fmt.Errorf("cleanup: %w: %s", err, strings.TrimSpace(told.String()))
	}
	return removed, nil
}

// sample adds the current usage of everything. A process that does not answer, because it is stopped or away, is left
// out.
func (s *soaking) sample(t *testing.T) {
	t.Helper()
	at := time.Since(s.begun)
	for _, p := range slices.Concat(s.nodes, s.daemons, s.executors) {
		of := p.name
		if p.starts > 1 {
			of += fmt.Sprintf(" (start %d)", p.starts)
		}
		figures, err := p.takes(t.Context())
		if err != nil {
			t.Logf("%s is not sampled: %v", of, err)
			continue
		}
		for figure, value := range figures {
			s.log.Add(at, soakKey{Of: of, Figure: figure}, value)
		}
	}
	list, err := streams(t.Context(), s.js)
	if err != nil {
		t.Logf("streams are not sampled: %v", err)
	}
	for _, info := range list {
		for figure, value := range map[string]uint64{
			bytesOf: info.State.Bytes, messagesOf: info.State.Msgs, subjectsOf: info.State.NumSubjects, consumers: uint64(info.State.Consumers), //nolint:gosec // a count
		} {
			s.log.Add(at, soakKey{Of: info.Config.Name, Figure: figure}, float64(value))
		}
	}
	for i := range s.nodes {
		bytes, files := s.disk(i)
		s.log.Add(at, soakKey{Of: s.nodes[i].name, Figure: onDisk}, float64(bytes))
		s.log.Add(at, soakKey{Of: s.nodes[i].name, Figure: filesOf}, float64(files))
	}
	for of, n := range map[string]int{"boundaries": s.ledger.outcomes["publish ok"], "runs judged": s.judged, "runs removed": s.removed} {
		s.log.Add(at, soakKey{Of: of, Figure: "work"}, float64(n))
	}
}

// disk is the size of a server's store, in bytes and files. Files removed during the walk do not count.
func (s *soaking) disk(i int) (bytes int64, files int) {
	_ = filepath.WalkDir(s.store(i), func(_ string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return nil //nolint:nilerr // it was removed during the walk
		}
		if info, err := entry.Info(); err == nil {
			bytes += info.Size()
			files++
		}
		return nil
	})
	return bytes, files
}

// finish ends the load, judges the rest, and reports the figures that rose.
func (s *soaking) finish(t *testing.T) {
	t.Helper()
	s.probe.end()
	for _, p := range s.executors {
		require.NoError(t, p.terminate(t.Context()))
	}
	require.NoError(t, s.ledger.read())
	for _, run := range s.ledger.all() {
		s.judgeRun(t, run)
	}
	require.Greater(t, s.judged, 10, "too few runs for the soak to mean anything")
	require.Positive(t, s.removed, "no run was removed")
	verdicts := s.log.Judge(s.warm, s.rules, s.removedWarm)
	judged := make(map[string]bool)
	for _, v := range verdicts {
		if v.Judged && v.Key.Figure == goroutines {
			name, _, _ := strings.Cut(v.Key.Of, " ")
			judged[name] = true
		}
		if v.Rose {
			t.Errorf("%s", v)
		}
	}
	for _, p := range []*process{s.nodes[0], s.daemons[0], s.executors[0], s.executors[1]} {
		require.True(t, judged[p.name], "%s was not seen all the time", p.name)
	}
}

// leave writes all figures, and their verdicts, wherever the soak ended.
func (s *soaking) leave(t *testing.T) {
	t.Helper()
	verdicts := s.log.Judge(s.warm, s.rules, s.removedWarm)
	dir := os.Getenv("WAYMARK_CHAOS_DIR")
	if dir == "" {
		dir = os.TempDir()
	}
	dir = filepath.Join(dir, fmt.Sprintf("soak-%dx-%d-%d", s.scale.servers, s.seed, os.Getpid()))
	require.NoError(t, os.MkdirAll(dir, 0o700))
	require.NoError(t, writeTo(filepath.Join(dir, "figures.csv"), s.log.WriteCSV))
	require.NoError(t, writeTo(filepath.Join(dir, "verdicts.json"), func(out io.Writer) error { return json.MarshalWrite(out, verdicts) }))
	var table strings.Builder
	for _, v := range verdicts {
		if v.Whole {
			_, _ = fmt.Fprintf(&table, "%s\n", v) // a builder takes everything
		}
	}
	t.Logf("%s, judged from %s on: %d runs judged, %d removed (%d in that time), %d mild faults, %d violations; %v; all figures are in %s\n%s",
		time.Since(s.begun).Round(time.Second), s.warm, s.judged, s.removed, s.removedWarm, s.faults, len(s.violations), s.ledger.outcomes, dir, table.String())
}

// all are the runs that were not judged yet.
func (l *ledger) all() []string {
	var all []string
	for run := range l.runs {
		all = append(all, run)
	}
	slices.Sort(all)
	return all
}

// takeoversOfAProbe is how many takeovers a probe has before it ends and another begins, so that none grows for ever.
const takeoversOfAProbe = 60

// steadyProbe recovers one run after the other, and reads others, at a steady rate.
type steadyProbe struct {
	stop      context.CancelFunc
	work      sync.WaitGroup
	recovered atomic.Int64
	mu        sync.Mutex
	runs      []string
}

// steadyProbe starts one.
func (w *world) steadyProbe(fleet *publisher.Fleet) *steadyProbe {
	w.tb.Helper()
	ctx, stop := context.WithCancel(w.tb.Context())
	p := &steadyProbe{stop: stop}
	prober := w.fleet("prober", 0, probeTimeout)
	p.work.Go(func() { p.recover(ctx, w.record, prober, w.seed) })
	p.work.Go(func() { p.read(ctx, w.record, fleet) })
	return p
}

func (p *steadyProbe) end() {
	p.stop()
	p.work.Wait()
}

func (p *steadyProbe) know(runs []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.runs = runs
}

// recover begins a run, takes it over again and again, ends it, and begins the next. Errors are in the history.
func (p *steadyProbe) recover(ctx context.Context, record *checker.Recorder, fleet *publisher.Fleet, seed uint64) {
	tick := time.NewTicker(250 * time.Millisecond)
	defer tick.Stop()
	tokens := 0
	token := func() string {
		tokens++
		return checker.Token("prober", tokens)
	}
	for n := 0; ctx.Err() == nil; n++ {
		id := fmt.Sprintf("probe-%d-%d", seed, n)
		begin := checker.Op{Actor: "prober", Kind: checker.Publish, Run: id, Epoch: 1, Sequence: 1, Token: token(), Detail: schema.RunStarted}
		op := record.Begin(begin)
		_, err := fleet.Start(ctx, publisher.RunSpec{ID: id, Task: begin.Token})
		record.End(op, func(op *checker.Op) {
			Ended(op, err)
			if err != nil {
				op.Outcome = checker.Unknown
			}
		})
		for taken, ended := 0, false; !ended && ctx.Err() == nil; {
			run, err := Resume(ctx, record, "prober", fleet, id)
			switch {
			case errors.Is(err, publisher.ErrRunNotFound), errors.Is(err, publisher.ErrRunEnded):
				ended = true // its start failed, or an executor had stolen it and brought it to its end
			case err == nil:
				p.recovered.Add(1)
				taken++
				ended = p.boundary(ctx, record, run, token(), taken >= takeoversOfAProbe)
			}
			select {
			case <-tick.C:
			case <-ctx.Done():
			}
		}
	}
}

// boundary writes one, the last of the run if so asked for, and reports whether the run has ended by it.
func (p *steadyProbe) boundary(ctx context.Context, record *checker.Recorder, run *publisher.Run, token string, last bool) bool {
	name, do := schema.MessageAdded, func(ctx context.Context) error {
		return run.AddMessage(ctx, schema.Message{Role: schema.RoleUser, Parts: []schema.Part{schema.Text(token)}})
	}
	if last {
		name, do = schema.RunEnded, func(ctx context.Context) error { return run.End(ctx, publisher.RunEnd{Summary: token}) }
	}
	err := Publish(ctx, record, checker.Op{Actor: "prober", Token: token, Detail: name}, run, do)
	return last && err == nil
}

// read reads one live run after the other.
func (p *steadyProbe) read(ctx context.Context, record *checker.Recorder, fleet *publisher.Fleet) {
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for n := 0; ctx.Err() == nil; n++ {
		p.mu.Lock()
		id := ""
		if len(p.runs) > 0 {
			id = p.runs[n%len(p.runs)]
		}
		p.mu.Unlock()
		if id != "" {
			op := record.Begin(checker.Op{Actor: "judge", Kind: checker.Read, Run: id})
			head, err := fleet.Head(ctx, id)
			record.End(op, func(op *checker.Op) {
				Ended(op, err)
				if err == nil {
					answer := checker.AnswerOf(&head, true)
					op.Answer = &answer
				}
			})
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
}
