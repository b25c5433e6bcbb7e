package reader

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/waymarkio/waymark/schema"
)

// baseOf reads the base of a forked run, and finds where the fork began; forks is the depth of the chain. A base that
// changed since is damage.
func (rd *Reader) baseOf(ctx context.Context, run string, base *schema.BaseRef, forks int) (*Snapshot, *Moment, error) {
	gone := func(why string) error {
		return schema.Fail(schema.CodeDamaged, "Restore run "+base.Run+" from a backup; view head shows where the fork stands.",
			"run %s is a fork of run %s, %s", run, base.Run, why)
	}
	if forks == schema.MaxBases {
		return nil, nil, gone("whose chain of bases is too long")
	}
	r, err := rd.Proven(ctx, base.Run, Content)
	if errors.Is(err, ErrNoRun) {
		return nil, nil, gone("which is no longer there")
	}
	if err != nil {
		return nil, nil, err
	}
	m, err := rd.Locate(ctx, r, base.Place())
	var told *schema.ServiceError
	switch {
	case errors.As(err, &told):
		return nil, nil, gone("of which " + told.Message)
	case err != nil:
		return nil, nil, err
	case m.Head.Digest != base.Digest || m.Head.Position.ID != base.Position.ID:
		return nil, nil, gone("which is not what it was there")
	}
	return r, m, nil
}

const (
	// knownBaseFor is how long a found base counts as present: the tries of one takeover fit into it.
	knownBaseFor = 5 * time.Minute
	// maxKnownBases bounds the bases that are remembered.
	maxKnownBases = 4096
)

// knownBases remembers the bases that were found, so that the next try at a fork with a long chain continues where
// the previous one ran out of time.
type knownBases struct {
	mu    sync.Mutex
	found map[schema.BaseRef]knownBase
}

// knownBase is a base that was found, and its own base.
type knownBase struct {
	at   time.Time
	base *schema.BaseRef
}

func (g *knownBases) get(ref schema.BaseRef, now time.Time) (knownBase, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	found, ok := g.found[ref]
	return found, ok && now.Sub(found.at) < knownBaseFor
}

func (g *knownBases) put(ref schema.BaseRef, base *schema.BaseRef, now time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.found == nil || len(g.found) >= maxKnownBases {
		g.found = make(map[schema.BaseRef]knownBase)
	}
	g.found[ref] = knownBase{now, base}
}

// CheckBases checks that all bases of a fork are present, before the fork is taken over and read.
func (rd *Reader) CheckBases(ctx context.Context, run string, base *schema.BaseRef) error {
	for forks := 0; base != nil; forks++ {
		found, ok := rd.bases.get(*base, time.Now())
		if !ok || forks == schema.MaxBases { // the walk below returns the error for a chain that is too long
			_, m, err := rd.baseOf(ctx, run, base, forks)
			if err != nil {
				return err
			}
			found.base = m.Head.Base
			rd.bases.put(*base, found.base, time.Now())
		}
		run, base = base.Run, found.base
	}
	return nil
}

// Graft gives a state the content of a fork's base, and of that base's base; forks is the depth. A run that is no
// fork needs none. The sink's budget covers all of them together.
func (rd *Reader) Graft(ctx context.Context, to *StateSink, run string, base *schema.BaseRef, forks int) error {
	if base == nil {
		return nil
	}
	r, m, err := rd.baseOf(ctx, run, base, forks)
	if err != nil {
		return err
	}
	own := to.State
	to.State, to.order = schema.NewState(rd.fleet, base.Run), schema.Order{}
	defer func() { to.State, to.order = own, schema.Order{} }()
	if err := rd.Graft(ctx, to, base.Run, m.Head.Base, forks+1); err != nil {
		return err
	}
	if _, err := rd.Part(ctx, r, m.Place(), 0, to); err != nil {
		return err
	}
	own.Graft(to.State)
	return nil
}
