//go:build waymark_failpoints

package chaos_test

import (
	"fmt"
	"math/rand/v2"

	"github.com/waymarkio/waymark/internal/base/failpoint"
)

// plan is made from a seed.
type plan struct {
	seed            uint64
	executors, runs int
	// batch and seal are the fold worker's batch and segment sizes in events.
	batch int
	seal  int64
	// stale: replicas answer, and may lag. deletable: the log can be damaged. purges: sealed events are purged.
	stale, deletable, purges bool
	// forget: at the end the checkpoints are deleted, and must come back.
	forget bool
	// shards that the runs are spread over; 0 is 1.
	shards int
	// claims: runs of silent executors are orphaned, some executors leave their runs, and others claim them.
	claims bool
	// keyed: the fleet has keys, and its daemons sign.
	keyed bool
	steps []step
}

// stepKind is the kind of a step.
type stepKind int

const (
	burst stepKind = iota + 1
	forge
	crash
	pause
	resume
	second
	stopOne
	restart
	loseBucket
	loseMessage
	loseAnswer
	freeze
	thaw
	damage
	// Steps without a weight: silence waits until a run is orphaned, stands until a daemon is stopped at its
	// failpoint, settle until the fold has caught up. goOn releases the stopped daemon, waits until it has finished
	// or abandoned the interrupted action, and checks that nothing has gone back.
	silence
	stands
	settle
	goOn
)

// step is one thing, or several side by side.
type step struct {
	kind stepKind
	// acts of a burst: at most one for each executor.
	acts []act
	// what, run and pick of a forgery; executor of the lost messages; point and nth of a failpoint.
	what     string
	run      string
	pick     uint64
	executor int
	point    failpoint.Point
	nth      int
}

// act is the action of one executor in a burst.
type act struct {
	executor int
	run      string
	// what is start, step, take, claim, leave, head, events, hold, rescue, end-turn, call-again or answer-again.
	what   string
	times  int
	choice int
}

// profile changes the mix of a plan. The zero profile is the ordinary mix.
type profile struct {
	// Weights of steps besides bursts; nil is the ordinary mix.
	weights map[stepKind]int
	// points of crashes and pauses; nil is all of the daemon's.
	points []failpoint.Point
	// forgeries of the adversary; nil is all of them.
	forgeries []string
	// keyed: the fleet has keys, and its daemons sign. Such a plan restarts no server.
	keyed bool
	// stale, deletable and purges of every plan; otherwise by chance.
	stale, deletable, purges bool
	// steps of a plan; 0 is 14 to 30. runs; 0 is 1 to 3.
	steps, runs int
	seal        int64
	// reads and takes are weights of the acts.
	reads, takes int
}

var ordinary = map[stepKind]int{
	burst: 60, forge: 10, crash: 9, pause: 4, resume: 4, second: 2, stopOne: 3, restart: 1, loseBucket: 1, loseMessage: 4, loseAnswer: 5, freeze: 5, thaw: 2,
}

// daemonPoints are those of fold worker, service and purger.
func daemonPoints() []failpoint.Point {
	var list []failpoint.Point
	for _, p := range failpoint.Points() {
		if p != failpoint.BeforePublish && p != failpoint.AfterPublish {
			list = append(list, p)
		}
	}
	return list
}

func newPlan(seed uint64, f profile) *plan {
	rng := rand.New(rand.NewPCG(seed, 0x9e3779b97f4a7c15)) //nolint:gosec // a schedule, no secret
	p := &plan{
		seed: seed, executors: 2 + rng.IntN(2), runs: 1 + rng.IntN(3), batch: 1 + rng.IntN(16), seal: 3 + rng.Int64N(8),
		stale: rng.IntN(6) == 0, purges: rng.IntN(3) > 0, forget: rng.IntN(8) == 0,
	}
	p.keyed = f.keyed
	p.stale, p.deletable, p.purges = p.stale || f.stale, f.deletable, p.purges || f.purges
	if f.deletable {
		p.purges, p.forget = false, true // a repeated fold finds the damage
	}
	if f.runs > 0 {
		p.runs = f.runs
	}
	if f.seal > 0 {
		p.seal = f.seal
	}
	weights := f.weights
	if weights == nil {
		weights = ordinary
	}
	points, forged := f.points, f.forgeries
	if points == nil {
		points = daemonPoints()
	}
	if forged == nil {
		forged = forgeries
	}
	run := func() string { return fmt.Sprintf("run-%d", 1+rng.IntN(p.runs)) }
	for i := range p.runs {
		p.steps = append(p.steps, step{kind: burst, acts: []act{{executor: i % p.executors, run: fmt.Sprintf("run-%d", i+1), what: "start", times: 1}}})
	}
	steps := f.steps
	if steps == 0 {
		steps = 14 + rng.IntN(17)
	}
	total := 0
	for k := burst; k <= damage; k++ {
		total += weights[k]
	}
	for range steps {
		s := step{run: run(), pick: rng.Uint64(), executor: rng.IntN(p.executors), nth: 1 + rng.IntN(3), what: forged[rng.IntN(len(forged))], point: points[rng.IntN(len(points))]}
		n := rng.IntN(total)
		for k := burst; k <= damage; k++ {
			if n -= weights[k]; n < 0 {
				s.kind = k
				break
			}
		}
		if s.kind == burst {
			s.acts = bursts(rng, p, &f, run)
		}
		p.steps = append(p.steps, s)
	}
	if f.weights == nil {
		p.widen()
	}
	return p
}

// widen spreads the runs over shards, and lets executors leave and claim. It draws from its own numbers, so that the
// rest of a seed's plan is the same without it.
func (p *plan) widen() {
	rng := rand.New(rand.NewPCG(p.seed, 0x5851f42d4c957f2d)) //nolint:gosec // a schedule, no secret
	p.shards = []int{1, 1, 1, 2, 2, 3}[rng.IntN(6)]
	if p.claims = rng.IntN(3) == 0; !p.claims {
		return
	}
	var steps []step
	for i, s := range p.steps {
		if i > p.runs && rng.IntN(6) == 0 {
			steps = append(steps, step{kind: silence}, step{kind: burst, acts: []act{{executor: rng.IntN(p.executors), what: "claim", times: 1}}})
		}
		for n := range s.acts {
			switch a := &s.acts[n]; {
			case a.what == "start":
			case rng.IntN(4) == 0:
				a.what, a.times = "claim", 1
			case a.what == "step" && rng.IntN(6) == 0:
				a.what, a.times = "leave", 1
			}
		}
		steps = append(steps, s)
	}
	p.steps = steps
}

func bursts(rng *rand.Rand, p *plan, f *profile, run func() string) []act {
	reads, takes := f.reads, f.takes
	if reads == 0 {
		reads = 3
	}
	if takes == 0 {
		takes = 2
	}
	var acts []act
	for x := range p.executors {
		if rng.IntN(3) == 0 {
			continue
		}
		a := act{executor: x, run: run(), choice: rng.IntN(1 << 16), times: 1}
		switch n := rng.IntN(10 + reads + takes); {
		case n < 10:
			a.what, a.times = "step", 1+rng.IntN(5)
		case n < 10+takes:
			a.what = "take"
		default:
			a.what = []string{"head", "events"}[rng.IntN(2)]
		}
		acts = append(acts, a)
	}
	return acts
}
