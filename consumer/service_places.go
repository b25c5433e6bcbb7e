package consumer

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/waymarkio/waymark/consumer/reader"
	"github.com/waymarkio/waymark/internal/eventlog"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

// places are where the runs of the fleet are. They are never changed: others take their place.
type places struct {
	// generations are the numbers of shards that runs were spread over, oldest first.
	generations []int
	shards      []*reader.Source
}

// of returns the shards that can hold a run, the likeliest first.
func (p *places) of(run string) []*reader.Source {
	shards := schema.ShardsOf(run, p.generations)
	list := make([]*reader.Source, len(shards))
	for i, shard := range shards {
		list[i] = p.shards[shard]
	}
	return list
}

// Place tells the service where runs are from now on: the generations of shards, oldest first, and the shards that came
// to those it has, in the order of their numbers. Runs stay where they began. It may be called while the service runs.
func (s *Service) Place(generations []int, added ...*kvstore.Shard) error {
	s.growing.Lock()
	defer s.growing.Unlock()
	next := &places{generations: slices.Clone(generations), shards: slices.Clone(s.places.Load().shards)}
	had := len(next.shards)
	for _, shard := range added {
		if want := schema.NamesOf(s.cfg.Fleet, len(next.shards)); shard.Names != want {
			return fmt.Errorf("%w: shard %d is %s, want %s", ErrConfig, len(next.shards), shard.Names.EventStream(), want.EventStream())
		}
		next.shards = append(next.shards, &reader.Source{Store: shard, Barrier: reader.NewBarrier(s.js, shard, s.cfg.Name, s.now, s.log, &s.stats.Stats)})
	}
	for _, n := range generations {
		if n < 1 || n > len(next.shards) {
			return fmt.Errorf("%w: Generations names %d shards, %d were given", ErrConfig, n, len(next.shards))
		}
	}
	if s.tend != nil {
		for _, src := range next.shards[had:] {
			s.tend(src)
		}
	}
	s.places.Store(next)
	return nil
}

// tendWith begins to tend the shards, those that come later included, or ends that with nil.
func (s *Service) tendWith(tend func(*reader.Source)) {
	s.growing.Lock()
	defer s.growing.Unlock()
	if s.tend = tend; tend != nil {
		for _, src := range s.places.Load().shards {
			tend(src)
		}
	}
}

// find reads the run from the first of its shards that has it, without proof. An empty reading says that none showed it.
func (s *Service) find(ctx context.Context, run string, want reader.Want) (*reader.Snapshot, error) {
	r, err := s.reader.Find(ctx, s.places.Load().of(run), run, want)
	return s.notErased(ctx, run, r, err)
}

// proven is [reader.Reader.Proven] in all shards that can hold the run. Before it says that there is none it makes sure that it
// knows all shards.
func (s *Service) proven(ctx context.Context, run string, want reader.Want) (*reader.Snapshot, error) {
	r, err := s.provenAnywhere(ctx, run, want)
	return s.notErased(ctx, run, r, err)
}

// provenAnywhere is [Service.proven] that does not ask whether the run was removed.
func (s *Service) provenAnywhere(ctx context.Context, run string, want reader.Want) (*reader.Snapshot, error) {
	asked := s.now()
	for {
		p := s.places.Load()
		r, err := s.reader.Proven(ctx, p.of(run), run, want)
		if !errors.Is(err, reader.ErrNoRun) || s.cfg.Refresh == nil {
			return r, err
		}
		if err := s.cfg.Refresh(ctx, asked); err != nil {
			return nil, fmt.Errorf("run %s: %w: which shards can hold it is not known: %w", run, eventlog.ErrStale, err)
		}
		if s.places.Load() == p {
			return r, err
		}
	}
}
