package e2e_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/harness/testbin"
	"github.com/waymarkio/waymark/internal/journal"
	"github.com/waymarkio/waymark/internal/player"
	"github.com/waymarkio/waymark/internal/transcript"
)

func TestKills_Executors_LoseNothing(t *testing.T) {
	if testing.Short() {
		t.Skip("short: real processes are started and killed")
	}
	kills := 30
	if testbin.Full(t) {
		kills = 200
	}
	killTest(t, kills, 0)
}

func TestKills_ExecutorsAndServers_LoseNothing(t *testing.T) {
	if testing.Short() {
		t.Skip("short: real processes are started and killed")
	}
	kills, servers := 15, 5
	if testbin.Full(t) {
		kills, servers = 200, 20
	}
	killTest(t, kills, servers)
}

// killTest plays transcripts, kills executors at random boundaries and the daemon with its server in between, and
// proves that the result is the same as without kills.
func killTest(t *testing.T, kills, servers int) {
	t.Helper()
	if !testbin.Full(t) {
		t.Logf("%d kills of executors and %d of the server; WAYMARK_E2E_FULL=1 does 200 and 20", kills, servers)
	}
	rnd := random(t)
	w := newWorld(t)
	sources := killSources(t)
	d := &director{world: w, reader: journal.NewReader(w.journal()), rnd: rnd, sources: sources}
	d.order()
	// The reference comes first: it shows the number of boundaries, so that the kills spread over all of them.
	reference := d.reference(t, sources)
	d.play(t, kills, servers)

	fleet := w.fleet(t, "proof")
	recovered := make(map[string][]journal.Event)
	for _, o := range d.orders {
		events, err := player.ReadBack(t.Context(), fleet, o.Run)
		require.NoError(t, err)
		recovered[o.Run] = events
		require.JSONEq(t, reference[o.Script], essence(t, o.source.prove(t, fleet, o.index, o.Run)), o.Run)
	}
	facts := journal.Check(d.history, recovered)
	t.Logf("%d kills of executors, %d of the server: %d boundaries acknowledged, %d recovered, %d lost; %d takeovers; "+
		"%d executions of %d calls, %d in doubt run again, %d twice; recovery p50 %s, max %s",
		d.killed, d.serverKills, facts.Acknowledged, facts.Recovered, facts.Lost, facts.Takeovers,
		facts.Executions, facts.Calls, facts.Reruns, facts.Twice, d.quantile(2), d.quantile(1))
	if torn := d.reader.Torn(); torn > 0 {
		t.Logf("%d entries were cut short by a kill, and what they announce did not go on", torn)
	}
	require.Empty(t, facts.Problems)
	require.Equal(t, kills, d.killed)
	require.Equal(t, servers, d.serverKills)
	require.GreaterOrEqual(t, facts.Takeovers, kills/2, "too few kills hit an active run for the test to mean something")
	require.Zero(t, w.deadLetters(t))
}

// killSources are the transcripts that are played: all of them in full, else a part.
func killSources(t *testing.T) []source {
	t.Helper()
	var sources []source
	for _, file := range transcriptFiles(t, ownData) {
		sources = append(sources, readSource(t, file))
	}
	if _, err := os.Stat(sharedData); err != nil {
		t.Logf("no real transcripts at %s: only the project's own are played", sharedData)
		return sources
	}
	for _, file := range transcriptFiles(t, sharedData) {
		s := readSource(t, file)
		const few, long = 8, 100
		if !testbin.Full(t) {
			s.runs = s.runs[:min(len(s.runs), few)]
			if slices.ContainsFunc(s.runs, func(r *transcript.Run) bool { return r.Turns() > long }) {
				continue
			}
		}
		sources = append(sources, s)
	}
	return sources
}

// directed is an order and where its run is in the sources.
type directed struct {
	executorOrder
	source source
	index  int
}

// director kills and restarts from outside; it knows the journal.
type director struct {
	world   *world
	reader  *journal.Reader
	rnd     *rand.Rand
	sources []source
	orders  []directed
	// rounds counts how often all transcripts were ordered.
	rounds  int
	history []journal.Entry
	// boundaries that a play without kills has.
	boundaries int
	// acks counts those acknowledged, left the kills to come.
	acks, left  int
	killed      int
	serverKills int
	attempts    int
}

// counter is a witness that counts boundaries.
type counter struct{ acks int }

func (c *counter) Write(e journal.Entry) error {
	if e.Op == journal.Ack {
		c.acks++
	}
	return nil
}

// reference plays every run once without kills, under another id, and returns the essence of each.
func (d *director) reference(t *testing.T, sources []source) map[string]string {
	t.Helper()
	fleet := d.world.fleet(t, "reference")
	c := new(counter)
	p := &player.Player{Fleet: fleet, Journal: c, Tool: player.Recorded, Now: time.Now}
	list := make(map[string]string)
	for _, s := range sources {
		for i, run := range s.runs {
			script := *run
			script.ID = fmt.Sprintf("reference-%d", len(list))
			require.NoError(t, p.Play(t.Context(), &script))
			list[run.ID] = essence(t, s.prove(t, fleet, i, script.ID))
		}
	}
	d.boundaries = c.acks
	return list
}

// order adds every run again.
func (d *director) order() {
	d.rounds++
	for _, s := range d.sources {
		for i, run := range s.runs {
			o := executorOrder{File: s.file, Format: s.format, Script: run.ID, Run: run.ID}
			if d.rounds > 1 {
				o.Run = fmt.Sprintf("%s-%d", run.ID, d.rounds)
			}
			d.orders = append(d.orders, directed{o, s, i})
		}
	}
}

// play runs executors until every run has ended, and kills as often as asked.
func (d *director) play(t *testing.T, kills, servers int) {
	t.Helper()
	// Which of the kills a server's kill comes before.
	d.left = kills + servers
	before := make(map[int]int)
	for range servers {
		before[d.rnd.IntN(kills)]++
	}
	for orders := d.unfinished(); len(orders) > 0; orders = d.unfinished() {
		d.attempts++
		require.Less(t, d.attempts, 3*(kills+servers)+10, "executors give up again and again")
		p := d.world.executor(t, fmt.Sprintf("executor-%d", d.attempts), orders)
		if d.killed < kills {
			for range before[d.killed] {
				if !d.boundary(t, p) {
					break
				}
				before[d.killed]--
				d.world.server.kill9(t)
				d.serverKills++
				d.left--
				d.world.serve(t)
			}
			if d.boundary(t, p) {
				p.kill9(t)
				d.killed++
				d.left--
				d.look(t)
				continue
			}
		}
		select {
		case <-p.gone:
			code := p.cmd.ProcessState.ExitCode()
			require.Contains(t, []int{0, exitUnavailable}, code, "executor: %s", p.log)
		case <-time.After(3 * patience):
			require.Fail(t, "the executor does not end", "%s", p.log)
		}
		d.look(t)
	}
}

// unfinished returns the orders whose runs have not ended. The killed executor may have begun the first of them; the
// next executor is told to resume it, and finds its state.
func (d *director) unfinished() []executorOrder {
	ended := make(map[string]bool)
	for _, e := range d.history {
		if e.Op == journal.Done {
			ended[e.Run] = true
		}
	}
	if len(ended) == len(d.orders) && d.left > 0 {
		d.order() // the kills came late, and some of them found nothing left to kill
	}
	var orders []executorOrder
	for _, o := range d.orders {
		if !ended[o.Run] {
			o.Resume = len(orders) == 0 && d.attempts > 0
			orders = append(orders, o.executorOrder)
		}
	}
	return orders
}

// look reads executors' new entries since the last time.
func (d *director) look(t *testing.T) {
	t.Helper()
	entries, err := d.reader.Next()
	require.NoError(t, err)
	d.history = append(d.history, entries...)
	for _, e := range entries {
		if e.Op == journal.Ack {
			d.acks++
		}
	}
}

// quantile of the recovery times: 2 gives the median, 1 the maximum.
func (d *director) quantile(nth int) time.Duration {
	var list []time.Duration
	for _, e := range d.history {
		if e.Op == journal.Resumed {
			list = append(list, time.Duration(e.At-e.Start))
		}
	}
	if len(list) == 0 {
		return 0
	}
	slices.Sort(list)
	return list[(len(list)-1)/nth].Round(100 * time.Microsecond)
}

// boundary waits until the executor has acknowledged a random number of further boundaries, or a moment more. It is
// false when the executor ended before.
func (d *director) boundary(t *testing.T, p *child) bool {
	t.Helper()
	// There must be room for the kills to come: each may come some boundaries late.
	const late = 20
	left := d.rounds*d.boundaries - d.acks
	gap := min(3*left/2/max(1, d.left), left-late*d.left)
	target := d.acks + 1 + d.rnd.IntN(max(1, gap))
	deadline := time.Now().Add(patience)
	ticker := time.NewTicker(time.Millisecond)
	defer ticker.Stop()
	for d.acks < target {
		select {
		case <-ticker.C:
			d.look(t)
		case <-p.gone:
			return false
		}
		require.Less(t, time.Now(), deadline, "no progress: %s", p.log)
	}
	// Not only right after a boundary.
	timer := time.NewTimer(time.Duration(d.rnd.IntN(3000)) * time.Microsecond)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-p.gone:
		return false
	}
	return true
}
