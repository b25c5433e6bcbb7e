package bench

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go"

	"github.com/waymarkio/waymark/internal/base/pause"
	"github.com/waymarkio/waymark/schema"
)

const (
	// lagRuns share the rate, in boundaries a second.
	lagRuns = 16
	lagRate = 400
	// lagWait bounds the wait for the last checkpoints: a republished copy can be lost.
	lagWait = 30 * time.Second
)

// lagCase measures the distance between log and checkpoints while nothing is overloaded.
func lagCase() Case {
	return Case{
		Name:  "lag",
		About: "From a boundary's acknowledgement to the checkpoint that holds it, at 400 boundaries a second of 16 runs. Times are those lags.",
		Variants: func(o Options) []Variant {
			runs := o.Pick(o.Runs, lagRuns, 4)
			// About four seconds a round.
			turns := o.Pick(o.Turns, max(1, 4*lagRate/TurnBoundaries/runs), 2)
			return []Variant{{
				Parameters: map[string]any{"runs": runs, "turns": turns, "rate": lagRate},
				Setup:      func(ctx context.Context, w *World) (*Trial, error) { return lagTrial(ctx, w, runs, turns) },
			}}
		},
	}
}

func lagTrial(ctx context.Context, w *World, runs, turns int) (*Trial, error) {
	f, err := w.Fleet(ctx, "executor")
	if err != nil {
		return nil, err
	}
	players, err := StartRuns(ctx, f, "run", runs, FullTurn)
	if err != nil {
		return nil, err
	}
	nc, err := w.Connect("watch")
	if err != nil {
		return nil, err
	}
	watch := foldWatch{acked: make(map[string][]reached), folded: make(map[string][]reached)}
	for _, shard := range w.shards {
		if _, err := nc.Subscribe(shard.Names.CheckpointSubject("*"), func(m *nats.Msg) { watch.saw(m.Data) }); err != nil {
			return nil, err
		}
	}
	if err := nc.Flush(); err != nil {
		return nil, err
	}
	return &Trial{
		Rounds: min(w.Options.Rounds, 3),
		Ours: func(ctx context.Context, _ int) (Sample, error) {
			began := time.Now()
			beat := time.Duration(runs) * time.Second / lagRate
			paced := make([]Turner, runs)
			for i, p := range players {
				// The beats of the runs follow each other evenly.
				paced[i] = &pacedPlayer{Player: p, watch: &watch, beat: beat, next: began.Add(beat * time.Duration(i) / time.Duration(runs))}
			}
			if _, err := Together(ctx, paced, turns); err != nil {
				return Sample{}, err
			}
			n := runs * turns * TurnBoundaries
			s := Sample{Elapsed: time.Since(began), Boundaries: int64(n), Payload: int64(runs * turns * TurnPayload)}
			err := w.Await(ctx, lagWait, "the last checkpoints", func() (bool, error) {
				s.Latencies = watch.lags()
				return len(s.Latencies) == n, nil
			})
			clear(watch.acked)
			return s, err
		},
		Verify: func(ctx context.Context) error { return w.Verify(ctx, WroteBy(players...)) },
	}, nil
}

// pacedPlayer publishes a boundary at each beat, and notes its acknowledgement.
type pacedPlayer struct {
	*Player
	watch *foldWatch
	beat  time.Duration
	next  time.Time
}

func (p *pacedPlayer) Turn(ctx context.Context, do func(context.Context, Step) error) error {
	return p.Player.Turn(ctx, func(ctx context.Context, step Step) error {
		if err := pause.For(ctx, time.Until(p.next)); err != nil {
			return err
		}
		p.next = p.next.Add(p.beat)
		err := do(ctx, step)
		p.watch.note(p.watch.acked, p.Run.ID(), p.Run.Head().Sequence)
		return err
	})
}

// foldWatch has the times at which sequences of runs were acknowledged, and at which they were in a republished checkpoint.
type foldWatch struct {
	mu            sync.Mutex
	acked, folded map[string][]reached
}

type reached struct {
	sequence schema.Sequence
	at       time.Time
}

func (f *foldWatch) note(list map[string][]reached, run string, sequence schema.Sequence) {
	now := time.Now()
	f.mu.Lock()
	defer f.mu.Unlock()
	list[run] = append(list[run], reached{sequence, now})
}

func (f *foldWatch) saw(data []byte) {
	var checkpoint struct {
		Run      string          `json:"run"`
		Sequence schema.Sequence `json:"sequence"`
	}
	if err := json.Unmarshal(data, &checkpoint); err == nil { // a lag that is not seen fails the case
		f.note(f.folded, checkpoint.Run, checkpoint.Sequence)
	}
}

// lags returns the time from each acknowledgement to the first checkpoint with its sequence, 0 where the checkpoint was seen
// before, and nothing for those without a checkpoint.
func (f *foldWatch) lags() (all []time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for run, acked := range f.acked {
		for _, a := range acked {
			i := slices.IndexFunc(f.folded[run], func(c reached) bool { return c.sequence >= a.sequence })
			if i >= 0 {
				all = append(all, max(0, f.folded[run][i].at.Sub(a.at)))
			}
		}
	}
	return all
}
