//go:build unix

package nemesis_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/waymarkio/waymark/internal/harness/checker"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// probeRun is the run that is recovered all the time, to measure for how long recoveries do not work.
const probeRun = "probe"

// probeEvery is the pause between two recoveries, and between two reads.
const probeEvery = 50 * time.Millisecond

// probeTimeout is how long the prober waits for an answer before it asks again: outages are measured no finer.
const probeTimeout = 2 * time.Second

// prober is the operator: it recovers one run all the time, and reads the others.
type prober struct {
	world *world
	rnd   *rand.Rand
	stop  context.CancelFunc
	work  sync.WaitGroup
	n     atomic.Int64
	// last is when a recovery worked last, recovered how many did.
	last      atomic.Int64
	recovered atomic.Int64
	// runs that are known from executors' records.
	mu   sync.Mutex
	runs []string
}

// probe starts the prober.
func (w *world) probe() *prober {
	w.tb.Helper()
	ctx, stop := context.WithCancel(w.tb.Context())
	p := &prober{world: w, rnd: rand.New(rand.NewPCG(w.seed, 3)), stop: stop} //nolint:gosec // chooses the reads
	fleet := w.fleet("prober", 0, probeTimeout)
	w.eventually("the probe cannot be started", func() error {
		token := checker.Token("prober", 0)
		op := w.record.Begin(checker.Op{Actor: "prober", Kind: checker.Publish, Run: probeRun, Epoch: 1, Sequence: 1, Token: token, Detail: schema.RunStarted})
		_, err := fleet.Start(ctx, publisher.RunSpec{ID: probeRun, Task: token})
		w.record.End(op, func(op *checker.Op) { Ended(op, err) })
		return err
	})
	p.last.Store(time.Now().UnixNano())
	p.work.Go(func() { p.recover(ctx, fleet) })
	for i := range 2 {
		reader := w.fleet(fmt.Sprintf("reader-%d", i), i%w.scale.servers, probeTimeout)
		p.work.Go(func() { p.read(ctx, reader) })
	}
	return p
}

// end stops it, and waits until it has.
func (p *prober) end() {
	p.stop()
	p.work.Wait()
}

// recover takes the probe over, writes a boundary, and does so again.
func (p *prober) recover(ctx context.Context, fleet *publisher.Fleet) {
	tick := time.NewTicker(probeEvery)
	defer tick.Stop()
	for ctx.Err() == nil {
		// Errors are in the history.
		if run, err := Resume(ctx, p.world.record, "prober", fleet, probeRun); err == nil {
			p.last.Store(time.Now().UnixNano())
			p.recovered.Add(1)
			token := checker.Token("prober", int(p.n.Add(1)))
			_ = Publish(ctx, p.world.record, checker.Op{Actor: "prober", Token: token, Detail: schema.MessageAdded}, run, func(ctx context.Context) error {
				return run.AddMessage(ctx, schema.Message{Role: schema.RoleUser, Parts: []schema.Part{schema.Text(token)}})
			})
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
}

// read reads one run after the other.
func (p *prober) read(ctx context.Context, fleet *publisher.Fleet) {
	tick := time.NewTicker(probeEvery)
	defer tick.Stop()
	for ctx.Err() == nil {
		id := p.some()
		op := p.world.record.Begin(checker.Op{Actor: fleet.Executor(), Kind: checker.Read, Run: id})
		head, err := fleet.Head(ctx, id)
		p.world.record.End(op, func(op *checker.Op) {
			Ended(op, err)
			if err == nil {
				answer := checker.AnswerOf(&head, true)
				op.Answer = &answer
			}
			if errors.Is(err, publisher.ErrRunNotFound) {
				op.Outcome, op.Answer = checker.OK, checker.Absent()
			}
			if _, incomplete := errors.AsType[*publisher.IncompleteError](err); incomplete {
				op.Outcome = checker.OK // the answer itself; the checker decides whether it is true
				answer := checker.AnswerOf(&head, false)
				op.Answer = &answer
			}
		})
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
}

// some is a run that is known.
func (p *prober) some() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.runs) == 0 || p.rnd.IntN(4) == 0 {
		return probeRun
	}
	return p.runs[p.rnd.IntN(len(p.runs))]
}

// know adds runs.
func (p *prober) know(runs []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.runs = runs
}
