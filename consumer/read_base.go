package consumer

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/waymarkio/waymark/schema"
)

// baseOf reads the base of a run that is a fork, and finds where the fork began; forks counts how far down it is. What is not
// as it was then is damage.
func (rd *reader) baseOf(ctx context.Context, run string, base *schema.BaseRef, forks int) (*reading, *moment, error) {
	gone := func(why string) error {
		return fail(schema.CodeDamaged, "Restore run "+base.Run+" from a backup; view head shows where the fork stands.",
			"run %s is a fork of run %s, %s", run, base.Run, why)
	}
	if forks == schema.MaxBases {
		return nil, nil, gone("which stands on too many others")
	}
	r, err := rd.proven(ctx, rd.shards(base.Run), base.Run, mode{content: true})
	if errors.Is(err, ErrNoRun) {
		return nil, nil, gone("which is no longer there")
	}
	if err != nil {
		return nil, nil, err
	}
	m, r, err := rd.locate(ctx, r, base.Place())
	var told *schema.ServiceError
	switch {
	case errors.As(err, &told):
		return nil, nil, gone("of which " + told.Message)
	case err != nil:
		return nil, nil, err
	case m.head.Digest != base.Digest || m.head.Position.ID != base.Position.ID:
		return nil, nil, gone("which is not what it was there")
	}
	return r, m, nil
}

const (
	// groundsKept is how long a base that was found counts as there: the tries of one takeover come within it.
	groundsKept = 5 * time.Minute
	// mostGrounds bounds the bases that are remembered.
	mostGrounds = 4096
)

// grounds remembers the bases that were found, so that the next try at a fork of a long chain goes on where the one before ran out of time.
type grounds struct {
	mu    sync.Mutex
	found map[schema.BaseRef]ground
}

// ground is a base that was found, and what that one stands on.
type ground struct {
	at   time.Time
	base *schema.BaseRef
}

func (g *grounds) get(ref schema.BaseRef, now time.Time) (ground, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	found, ok := g.found[ref]
	return found, ok && now.Sub(found.at) < groundsKept
}

func (g *grounds) put(ref schema.BaseRef, base *schema.BaseRef, now time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.found == nil || len(g.found) >= mostGrounds {
		g.found = make(map[schema.BaseRef]ground)
	}
	g.found[ref] = ground{now, base}
}

// grounded makes sure that all that a fork stands on is there: before the fork is taken over by somebody who reads it next.
func (rd *reader) grounded(ctx context.Context, run string, base *schema.BaseRef) error {
	for forks := 0; base != nil; forks++ {
		found, ok := rd.grounds.get(*base, time.Now())
		if !ok || forks == schema.MaxBases { // the error of a chain that is too long is made there
			_, m, err := rd.baseOf(ctx, run, base, forks)
			if err != nil {
				return err
			}
			found.base = m.head.Base
			rd.grounds.put(*base, found.base, time.Now())
		}
		run, base = base.Run, found.base
	}
	return nil
}

// graft gives a state the content that a fork has of its base, and the base of that one; forks counts how far down. A run that
// is no fork needs none. The sink's budget is for all of them together.
func (rd *reader) graft(ctx context.Context, to *stateSink, run string, base *schema.BaseRef, forks int) error {
	if base == nil {
		return nil
	}
	r, m, err := rd.baseOf(ctx, run, base, forks)
	if err != nil {
		return err
	}
	own := to.state
	to.state, to.last = schema.NewState(rd.fleet, base.Run), 0
	to.state.Expect(m.head.Superseded)
	defer func() { to.state, to.last = own, 0 }()
	if err := rd.graft(ctx, to, base.Run, m.head.Base, forks+1); err != nil {
		return err
	}
	if err := rd.contentTo(ctx, r, m, to); err != nil {
		return err
	}
	own.Graft(to.state)
	return nil
}
