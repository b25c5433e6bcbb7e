package publisher

import (
	"context"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/waymarkio/waymark/schema"
)

const (
	// defaultGroupFrom is the number of runs waiting at once from which a group is worth an atomic batch.
	defaultGroupFrom = 16
	// groupLinger is how long a group waits for those who were in the one before: they publish again in a moment,
	// and without it they would only be in every other group.
	groupLinger = 500 * time.Microsecond
	// groupEvents and groupBytes bound one group.
	groupEvents = 512
	groupBytes  = 4 << 20
)

// group sends the events of runs that wait at the same moment as one atomic batch: a server that syncs every message
// syncs a batch once. It has no goroutine of its own: one of those who wait leads, and passes the lead on.
type group struct {
	fleet *Fleet
	mu    sync.Mutex
	lanes map[string]*lane
}

// lane is the group of one stream. Under group.mu.
type lane struct {
	// active counts those who are in send.
	active int
	// waiting are those who are to go with the next batch. If there are any, somebody leads.
	waiting []*waiter
	leading bool
	// expect is how many can be expected to come again soon.
	expect int
	// came is signalled to the leader for each who joins.
	came chan struct{}
}

type waiter struct {
	msg *nats.Msg
	// taken: it is in a batch that is being sent.
	taken bool
	// signal brings the answer, or the lead.
	signal chan signal
}

type signal struct {
	lead   bool
	answer answer
}

// alone is the answer kind of those who must send by themselves. It is never seen outside of send.
const alone answerKind = -1

func newGroup(f *Fleet) *group { return &group{fleet: f, lanes: make(map[string]*lane)} }

// send publishes one message of a stream, in a group when enough others wait. again says that this message was tried
// before: it goes alone then, because a batch is never sent twice, and one member that is stored already spoils it for
// all.
func (g *group) send(ctx context.Context, stream string, m *nats.Msg, again bool, meanwhile func()) answer {
	if again || g.fleet.cfg.GroupFrom < 0 {
		return g.fleet.send(ctx, m, meanwhile)
	}
	g.mu.Lock()
	l := g.lanes[stream]
	if l == nil {
		l = &lane{came: make(chan struct{}, 1)}
		g.lanes[stream] = l
	}
	l.active++
	defer func() {
		g.mu.Lock()
		l.active--
		g.mu.Unlock()
	}()
	if l.active < g.fleet.cfg.GroupFrom {
		g.mu.Unlock()
		return g.fleet.send(ctx, m, meanwhile)
	}
	w := &waiter{msg: m, signal: make(chan signal, 2)}
	l.waiting = append(l.waiting, w)
	if l.leading {
		select {
		case l.came <- struct{}{}:
		default:
		}
		g.mu.Unlock()
		meanwhile()
		return g.follow(ctx, l, w)
	}
	l.leading = true
	g.mu.Unlock()
	return g.finish(ctx, w, g.lead(ctx, l))
}

// finish sends what did not go with a batch.
func (g *group) finish(ctx context.Context, w *waiter, a answer) answer {
	if a.kind == alone {
		return g.fleet.send(ctx, w.msg, nil)
	}
	return a
}

// follow waits for the answer, or leads when told to.
func (g *group) follow(ctx context.Context, l *lane, w *waiter) answer {
	select {
	case s := <-w.signal:
		if s.lead {
			return g.finish(ctx, w, g.lead(ctx, l))
		}
		return g.finish(ctx, w, s.answer)
	case <-ctx.Done():
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if w.taken {
		return answer{kind: silent, err: context.Cause(ctx)}
	}
	for i := range l.waiting {
		if l.waiting[i] == w {
			l.waiting = append(l.waiting[:i:i], l.waiting[i+1:]...)
			break
		}
	}
	select {
	case s := <-w.signal:
		if s.lead {
			l.pass()
		}
	default:
	}
	return answer{kind: notSent, err: context.Cause(ctx)}
}

// pass hands the lead to the first who waits. Under group.mu.
func (l *lane) pass() {
	l.leading = len(l.waiting) > 0
	if l.leading {
		l.waiting[0].signal <- signal{lead: true}
	}
}

// lead sends one batch, whose first member is the leader, and returns the leader's own answer.
func (g *group) lead(ctx context.Context, l *lane) answer {
	g.linger(ctx, l)
	g.mu.Lock()
	members := l.take()
	g.mu.Unlock()

	a := answer{kind: alone}
	if len(members) >= g.fleet.cfg.GroupFrom {
		msgs := make([]*nats.Msg, len(members))
		for i, w := range members {
			msgs[i] = w.msg
		}
		// The batch is everybody's: it does not end with the leader's context.
		a = g.fleet.sendBatch(context.WithoutCancel(ctx), msgs, nil)
		if a.kind != acked && a.kind != silent {
			a = answer{kind: alone} // refused as a whole: nothing of it is stored
		}
	}

	g.mu.Lock()
	defer g.mu.Unlock()
	l.expect = len(members) + len(l.waiting)
	last := a.seq
	for i, w := range members {
		if a.kind == acked {
			// The sequence acknowledged is the last one's.
			a.seq = last - schema.StreamSequence(len(members)-1-i)
		}
		if i > 0 {
			w.signal <- signal{answer: a}
		}
	}
	l.pass()
	if a.kind == acked {
		a.seq = last - schema.StreamSequence(len(members)-1)
	}
	return a
}

// linger waits a moment for those who are expected.
func (g *group) linger(ctx context.Context, l *lane) {
	timer := time.NewTimer(groupLinger)
	defer timer.Stop()
	for {
		g.mu.Lock()
		enough := len(l.waiting) >= min(max(l.expect, l.active), groupEvents)
		g.mu.Unlock()
		if enough {
			return
		}
		select {
		case <-l.came:
		case <-timer.C:
			return
		case <-ctx.Done():
			return
		}
	}
}

// take removes the members of the next batch. Under group.mu.
func (l *lane) take() []*waiter {
	n, bytes := 0, 0
	for n < len(l.waiting) && n < groupEvents {
		if bytes += len(l.waiting[n].msg.Data); n > 0 && bytes > groupBytes {
			break
		}
		l.waiting[n].taken = true
		n++
	}
	members := l.waiting[:n:n]
	l.waiting = append([]*waiter(nil), l.waiting[n:]...)
	return members
}
