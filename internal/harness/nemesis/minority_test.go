//go:build unix

package nemesis_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/harness/checker"
	"github.com/waymarkio/waymark/internal/harness/testbin"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// askedFor is how long a client on the minority's side waits for an answer: longer than a daemon needs to report that
// it has none.
const askedFor = 12 * time.Second

// minority is one server that is cut off, with a daemon, an executor, a reader and a client that reach no other.
type minority struct {
	*round
	server int
	// fleet is the client's, at the server that is cut off; urls are how commands reach it. majority is the others'.
	fleet, majority *publisher.Fleet
	urls            string
	// taken is a run for which the majority acknowledges more events once the server is cut off; own is one that no
	// other executor touches.
	taken, own *publisher.Run
	// refs are large fields that were stored before the cut and after it.
	before, behind string
	// begun on the majority's side after the cut, where the run that was taken is at epoch.
	begun string
	epoch schema.Epoch

	mu sync.Mutex
	// wrong are the requests that were answered, or failed with an error that does not say that there is no answer;
	// said are the other errors.
	wrong []string
	said  map[string]int
	slow  time.Duration
}

// TestPartition_Minority_RefusesInsteadOfStale cuts a server off together with a daemon and clients. The others acknowledge more; then
// everything is asked on its side that answers, and nothing of it may be answered.
func TestPartition_Minority_RefusesInsteadOfStale(t *testing.T) {
	t.Parallel() // it mostly waits
	if testing.Short() {
		t.Skip("short: real servers and programs are broken")
	}
	if only := number(t, "WAYMARK_CHAOS_SERVERS", 3); only != 3 {
		t.Skip("one server has no minority")
	}
	s := scaleOf(3)
	s.executors, s.slots, s.pause, s.steal = 2, 1, 40, 0
	r := newRound(t, s, number(t, "WAYMARK_CHAOS_SEED", uint64(time.Now().UnixNano()%1e9))) //nolint:gosec // any number will do
	isolations := []string{"leader"}
	if testbin.Full(t) {
		isolations = []string{"leader", "leader", "follower", "follower"} // noticed and not, in turn
	}
	for n, kind := range isolations {
		r.suffer(fault{name: "minority-of-a-" + kind, strike: func(ctx context.Context, s *storm) error {
			r.minority(ctx, s, kind == "leader", n)
			return nil
		}})
	}
	r.judge()
}

// minority cuts one server off and asks it everything.
func (r *round) minority(ctx context.Context, s *storm, leader bool, n int) {
	r.tb.Helper()
	at, err := s.leader(ctx)
	r.must(err)
	if !leader {
		at = (at + 1 + s.rnd.IntN(len(r.nodes)-1)) % len(r.nodes)
	}
	name := fmt.Sprintf("minority-%d", n)
	m := &minority{
		round: r, server: at, said: make(map[string]int), urls: r.urls(name, at),
		fleet: r.client(ctx, name, at), majority: r.client(ctx, fmt.Sprintf("majority-%d", n), (at+1)%len(r.nodes)),
	}
	m.prepare(ctx, n)
	noticed := n%2 == 0
	m.cut(noticed, name)
	m.acknowledge(ctx)

	r.eventually("no daemon is on the side that was cut off", func() error {
		_, err := m.fleet.Conn().Request("$SRV.PING.waymark", nil, time.Second)
		return err
	})
	// At once, while a leader that was cut off may still believe that it leads, and again when its daemon knows.
	m.askAll(ctx, 1)
	r.notReadyByItself(ctx, r.daemons[at])
	if testbin.Full(r.tb) {
		m.askAll(ctx, 2)
	}

	r.tb.Logf("%s: asked %v, the slowest %s", name, m.said, m.slow.Round(time.Millisecond))
	require.Empty(r.tb, m.wrong, "%s, server %d", name, at)
	// During a cut that is not noticed yet, a server may send requests for a while to daemons that it still believes
	// in.
	refused := 0
	for said, times := range m.said {
		if strings.HasSuffix(said, ": unavailable") {
			refused += times
		}
	}
	require.True(r.tb, !noticed || refused > 0, "nothing was refused by the daemon itself: %v", m.said)
	r.must(r.heal())
	m.whole(ctx)
}

// client is an SDK in this process, of an agent whose runs no executor takes.
func (r *round) client(ctx context.Context, name string, first int) (fleet *publisher.Fleet) {
	r.tb.Helper()
	nc := r.dial(name, first)
	r.eventually("the fleet is not there", func() (err error) {
		fleet, err = publisher.Connect(ctx, publisher.Config{Conn: nc, Executor: name, Agent: unknownAgent, PublishTimeout: askedFor, RequestTimeout: askedFor, Heartbeat: time.Second})
		return err
	})
	r.tb.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), askedFor)
		defer cancel()
		_ = fleet.Close(ctx) // the servers may be gone
	})
	return fleet
}

// prepare begins the runs that are asked for, before the cut.
func (m *minority) prepare(ctx context.Context, n int) {
	m.tb.Helper()
	m.taken, m.own = m.start(ctx, m.fleet, fmt.Sprintf("taken-%d", n)), m.start(ctx, m.fleet, fmt.Sprintf("own-%d", n))
	m.begun = fmt.Sprintf("begun-%d", n)
	m.insist(ctx, m.taken, strings.Repeat("large before ", 40_000))
	m.insist(ctx, m.own, "before")
	m.before = m.refs(ctx)[0]
	// Its daemon's memory is from before the cut.
	m.eventually("the run is not listed", func() error {
		page, err := m.fleet.List(ctx, schema.ListRequest{Status: []schema.Status{schema.StatusRunning}})
		if err == nil && !slices.ContainsFunc(page.Runs, func(s schema.RunSummary) bool { return s.Run == m.taken.ID() }) {
			err = errors.New("not yet")
		}
		return err
	})
}

// start begins a run, and records it.
func (m *minority) start(ctx context.Context, fleet *publisher.Fleet, id string) (run *publisher.Run) {
	m.tb.Helper()
	m.eventually("run "+id+" cannot be begun", func() (err error) {
		run, err = m.tryStart(ctx, fleet, id)
		return err
	})
	return run
}

func (m *minority) tryStart(ctx context.Context, fleet *publisher.Fleet, id string) (*publisher.Run, error) {
	token := checker.Token(fleet.Executor(), int(m.prober.n.Add(1)))
	op := m.record.Begin(checker.Op{Actor: fleet.Executor(), Kind: checker.Publish, Run: id, Epoch: 1, Sequence: 1, Token: token, Detail: schema.RunStarted})
	run, err := fleet.Start(ctx, publisher.RunSpec{ID: id, Task: token})
	m.record.End(op, func(op *checker.Op) {
		Ended(op, err)
		if err != nil {
			op.Outcome = checker.Unknown // Start gives no handle to find out with
		}
	})
	return run, err
}

// unknownAgent is an agent without runs to claim.
const unknownAgent = "unknown"

// say publishes a message, and records it. The outcome of the earlier ones must be known first: only then is an
// answer that of this one.
func (m *minority) say(ctx context.Context, run *publisher.Run, more string) error {
	if err := run.Resolve(ctx); err != nil {
		return err
	}
	token := checker.Token(run.ID(), int(m.prober.n.Add(1)))
	return Publish(ctx, m.record, checker.Op{Actor: "minority." + run.ID(), Token: token, Detail: schema.MessageAdded}, run, func(ctx context.Context) error {
		return run.AddMessage(ctx, schema.Message{Role: schema.RoleUser, Parts: []schema.Part{schema.Text(token), schema.Text(more)}})
	})
}

var dataref = regexp.MustCompile(`waymark-blob:[^"]+`)

// refs are the large fields of the run that was taken.
func (m *minority) refs(ctx context.Context) (list []string) {
	m.tb.Helper()
	// Right after the cut a request may still be sent to the daemon that is away.
	m.eventually("the majority cannot read the run", func() error {
		list = nil
		return m.majority.Events(ctx, m.taken.ID(), func(rec schema.Record) error {
			list = append(list, dataref.FindAllString(string(rec.Body), -1)...)
			return nil
		})
	})
	require.NotEmpty(m.tb, list)
	return list
}

// insist publishes a message, or another one when it was not answered.
func (m *minority) insist(ctx context.Context, run *publisher.Run, more string) {
	m.tb.Helper()
	m.eventually("run "+run.ID()+" does not go on", func() error { return m.say(ctx, run, more) })
}

// cut leaves the server, its daemon, an executor, a reader and the client to each other, and all others to themselves: connections
// end, which is noticed, or nothing passes any more.
func (m *minority) cut(noticed bool, client string) {
	weather := Weather{Hold: [2]bool{true, true}}
	if noticed {
		weather = Weather{Cut: true}
	}
	inside := []string{client, m.daemons[m.server].name, m.executors[0].name, "reader-1"}
	for i := range m.nodes {
		if i != m.server {
			m.routes[i][m.server].Set(weather)
			m.routes[m.server][i].Set(weather)
		}
	}
	for name, links := range m.links {
		for i, p := range links {
			if (i == m.server) != slices.Contains(inside, name) {
				p.Set(weather)
			}
		}
	}
}

// acknowledge has the majority take a run over, write to it, begin another, and change the fleet's settings.
func (m *minority) acknowledge(ctx context.Context) {
	m.tb.Helper()
	var run *publisher.Run
	m.eventually("the majority cannot take the run over", func() (err error) {
		run, err = Resume(ctx, m.record, m.majority.Executor(), m.majority, m.taken.ID())
		return err
	})
	m.epoch = run.Epoch() // a try whose answer was lost may have taken it over, too
	m.insist(ctx, run, strings.Repeat("large behind ", 40_000))
	m.insist(ctx, run, "behind")
	m.start(ctx, m.majority, m.begun)
	m.eventually("the fleet's settings cannot be changed", func() error {
		_, err := kvstore.Change(ctx, m.js, schema.DefaultFleet, func(c *kvstore.FleetConfig) { c.Retention.FailedSeconds += 86400 })
		return err
	})
	refs := m.refs(ctx)
	m.behind = refs[len(refs)-1]
	require.NotEqual(m.tb, m.before, m.behind)
}

// ask asks one thing, and looks at how it failed.
func (m *minority) ask(what string, ask func(ctx context.Context) error) {
	begun := time.Now()
	err := ask(m.tb.Context())
	took := time.Since(begun)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.slow = max(m.slow, took)
	var service *schema.ServiceError
	var failed *exec.ExitError
	switch {
	case err == nil:
		m.wrong = append(m.wrong, what+": was answered")
	case took > patience:
		m.wrong = append(m.wrong, fmt.Sprintf("%s: %v after %s", what, err, took))
	case errors.As(err, &failed):
		m.said[strings.Join(strings.Fields(what)[:2], " ")+fmt.Sprintf(": exit %d", failed.ExitCode())]++
	case errors.As(err, &service) && service.Code == schema.CodeUnavailable:
		m.said[what+": unavailable"]++
	case what == "claim" && errors.Is(err, publisher.ErrNothing):
		m.said[what+": nothing"]++ // it transfers nothing, and returns no run
	case errors.Is(err, publisher.ErrUnresolved):
		m.said[what+": unresolved"]++
	case errors.Is(err, publisher.ErrUnavailable), errors.Is(err, publisher.ErrNoService):
		m.said[what+": not available"]++
	case errors.Is(err, publisher.ErrBlob), errors.Is(err, kvstore.ErrUnavailable): // a leader that was cut off may have no such blob, which proves nothing
		m.said[what+": no"]++
	default:
		m.wrong = append(m.wrong, fmt.Sprintf("%s: %v", what, err))
	}
}

// askAll asks everything that answers, at once.
func (m *minority) askAll(ctx context.Context, wave int) {
	m.tb.Helper()
	taken, fleet := m.taken.ID(), m.fleet
	questions := map[string]func(ctx context.Context) error{
		"head":  func(ctx context.Context) error { _, err := fleet.Head(ctx, taken); return err },
		"state": func(ctx context.Context) error { _, err := fleet.Get(ctx, taken); return err },
		"events": func(ctx context.Context) error {
			return fleet.Events(ctx, taken, func(schema.Record) error { return nil })
		},
		"head at": func(ctx context.Context) error {
			_, err := fleet.HeadAt(ctx, taken, schema.Point{Kind: schema.PointTurn})
			return err
		},
		"unknown": func(ctx context.Context) error { _, err := fleet.Head(ctx, m.begun); return err },
		"history": func(ctx context.Context) error { _, err := fleet.History(ctx, taken); return err },
		"plan":    func(ctx context.Context) error { _, err := fleet.Plan(ctx, taken); return err },
		"offers":  func(ctx context.Context) error { _, err := fleet.Offers(ctx, taken); return err },
		"list":    func(ctx context.Context) error { _, err := fleet.List(ctx, schema.ListRequest{}); return err },
		"list children": func(ctx context.Context) error {
			_, err := fleet.List(ctx, schema.ListRequest{Parent: taken})
			return err
		},
		"list running": func(ctx context.Context) error {
			_, err := fleet.List(ctx, schema.ListRequest{Status: []schema.Status{schema.StatusRunning}})
			return err
		},
		"takeover": func(ctx context.Context) error {
			_, err := Resume(ctx, m.record, fleet.Executor(), fleet, taken)
			return err
		},
		"claim": func(ctx context.Context) error {
			_, err := Takeover(m.record, checker.Op{Actor: fleet.Executor(), Executor: fleet.Executor(), Detail: checker.DetailClaim}, func() (*publisher.Run, error) {
				return fleet.Claim(ctx, publisher.ClaimSpec{})
			})
			return err
		},
		"start": func(ctx context.Context) error {
			_, err := m.tryStart(ctx, fleet, fmt.Sprintf("never-%s-%d", taken, wave))
			return err
		},
		"same": func(ctx context.Context) error { _, err := m.tryStart(ctx, fleet, m.begun); return err },
		"mark": func(ctx context.Context) error {
			_, err := fleet.Mark(ctx, taken, fmt.Sprintf("here-%d", wave), "judge", false)
			return err
		},
		"input": func(ctx context.Context) error {
			return fleet.Input(ctx, taken, publisher.Input{InterruptID: "none", EventID: "none", By: "judge"})
		},
		"settle": func(ctx context.Context) error {
			_, err := fleet.Settle(ctx, taken, schema.SettleRequest{CallKey: schema.CallKey{ToolCallID: "none", Turn: 1}, CallEpoch: 1, How: schema.SettledRerun, By: "judge"})
			return err
		},
		"publish to the run that was taken": func(ctx context.Context) error {
			ctx, cancel := context.WithTimeout(ctx, askedFor)
			defer cancel()
			return m.say(ctx, m.taken, "late")
		},
		"publish to its own run": func(ctx context.Context) error {
			ctx, cancel := context.WithTimeout(ctx, askedFor)
			defer cancel()
			return m.say(ctx, m.own, "unanswered")
		},
		"blob of behind": func(ctx context.Context) error { _, err := fleet.Blob(ctx, m.behind); return err },
		"connect": func(ctx context.Context) error {
			other, err := publisher.Connect(ctx, publisher.Config{Conn: fleet.Conn(), Executor: "another", Agent: unknownAgent, RequestTimeout: askedFor})
			if err != nil {
				return err
			}
			defer func() { _ = other.Close(ctx) }()
			// The fleet's settings may come from a leader that does not know yet that it is none. Of its runs nothing comes.
			_, err = other.Head(ctx, taken)
			return err
		},
	}
	lines := []string{"runs ls --status running", "runs get " + taken, "events --all --no-follow " + taken, "verify " + taken}
	if testbin.Full(m.tb) {
		lines = append(lines,
			"runs ls", "runs history "+taken, "runs get --at turn:0 "+taken, "plan "+taken, "fleet show",
			"fleet retention", "cleanup --dry-run --max-age 1d", "backup "+filepath.Join(m.tb.TempDir(), "backup"))
	}
	for _, line := range lines {
		questions["waymark "+line] = func(ctx context.Context) error { return m.command(ctx, line) }
	}
	var asked sync.WaitGroup
	for what, question := range questions {
		asked.Go(func() { m.ask(what, question) })
	}
	asked.Wait()
	// The content of a name never changes: it may be returned or not, but nothing else instead.
	content, err := fleet.Blob(ctx, m.before)
	if err == nil {
		require.Contains(m.tb, string(content), "large before ")
	} else {
		require.True(m.tb, errors.Is(err, publisher.ErrUnavailable) || errors.Is(err, publisher.ErrBlob), "%v", err)
	}
}

// command has waymark do something on the minority's side.
func (m *minority) command(ctx context.Context, line string) error {
	args := append(strings.Fields(line), "--nats", m.urls, "--timeout", askedFor.String())
	cmd := exec.CommandContext(ctx, waymarkBinary, args...)
	cmd.Env = testbin.Environment("WAYMARK_STATE_DIR="+m.tb.TempDir(), "NATS_USER="+m.user, "NATS_PASSWORD="+m.password)
	said, err := cmd.CombinedOutput()
	failed, ok := errors.AsType[*exec.ExitError](err)
	if ok && failed.ExitCode() != 3 {
		return fmt.Errorf("exit code %d: %s", failed.ExitCode(), said)
	}
	return err
}

// notReadyByItself waits until a daemon reports itself that its server accepts no writes.
func (r *round) notReadyByItself(ctx context.Context, daemon *process) {
	r.tb.Helper()
	address := regexp.MustCompile(`http://127[.:0-9]+`).FindString(daemon.said)
	require.NotEmpty(r.tb, address, daemon.said)
	r.eventually(daemon.name+" is ready on the minority's side", func() error {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, address+"/readyz", nil)
		r.must(err)
		answer, err := http.DefaultClient.Do(request)
		r.must(err)
		body, err := io.ReadAll(answer.Body)
		r.must(errors.Join(err, answer.Body.Close()))
		if answer.StatusCode != http.StatusServiceUnavailable || !strings.Contains(string(body), "no leader") {
			return fmt.Errorf("it says %d: %s", answer.StatusCode, body)
		}
		return nil
	})
}

// whole reads the majority's acknowledged events on the minority's side, after the partition has healed; and its
// handles learn what became of them.
func (m *minority) whole(ctx context.Context) {
	m.tb.Helper()
	m.eventually("the run cannot be read on the side that was cut off", func() error {
		state, err := m.fleet.Get(ctx, m.taken.ID())
		if err != nil {
			return err
		}
		require.GreaterOrEqual(m.tb, state.Head.Epoch, m.epoch)
		require.GreaterOrEqual(m.tb, len(state.Messages), 3)
		return nil
	})
	m.eventually("the large field cannot be read", func() error { _, err := m.fleet.Blob(ctx, m.behind); return err })
	m.eventually("the handle that was taken is not told so", func() error {
		if err := m.say(ctx, m.taken, "too late"); !errors.Is(err, publisher.ErrFenced) {
			return fmt.Errorf("not fenced: %w", err)
		}
		return nil
	})
	m.insist(ctx, m.own, "after")
}
