package publisher

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/waymarkio/waymark/internal/runlog"
	"github.com/waymarkio/waymark/schema"
)

const (
	// defaultGroupFrom is the number of runs waiting at once from which a group may be worth an atomic batch.
	defaultGroupFrom = 16
	// groupQuiet is how long a group goes on waiting for those who were in the one before, from the last who came: they
	// publish again in a moment, and without it they would only be in every other group. groupLinger bounds the wait.
	groupQuiet  = 250 * time.Microsecond
	groupLinger = 3 * time.Millisecond
	// groupEvents and groupBytes bound one group.
	groupEvents = 512
	groupBytes  = 4 << 20
	// groupEvictions is how many members that spoil a batch are sent away from it, one after the other, before all of
	// them go singly.
	groupEvictions = 4
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
	names schema.Names
	pace  pace
	// active counts those who are in send.
	active int
	// waiting are those who are to go with the next batch, in the order in which they came. If there are any, somebody
	// leads.
	waiting []*waiter
	leading bool
	// expect is how many can be expected to come again soon.
	expect int
	// want is how many the leader waits for, 0 when it does not, and came is signalled when they are there.
	want int
	came chan struct{}
}

// waiter is one run with its messages: the first carries the compare-and-set for all of them.
type waiter struct {
	run  string
	msgs []*nats.Msg
	// taken: it is in a batch that is being sent.
	taken bool
	// signal brings the answer, or the lead.
	signal chan signal
}

type signal struct {
	lead   bool
	answer answer
}

// alone is the answer kind of those who must send by themselves. It is never seen outside of the group and those who
// called it.
const alone answerKind = -1

func newGroup(f *Fleet) *group { return &group{fleet: f, lanes: make(map[string]*lane)} }

// lane returns the lane of a stream. Under group.mu.
func (g *group) lane(names schema.Names) *lane {
	stream := names.EventStream()
	l := g.lanes[stream]
	if l == nil {
		l = &lane{names: names, came: make(chan struct{}, 1), pace: pace{least: g.fleet.cfg.GroupFrom}}
		g.lanes[stream] = l
	}
	return l
}

// send publishes one message of a run, in a group when enough others wait. again says that this message was tried
// before: it goes alone then, because a batch is never sent twice, and one member that is stored already spoils it for
// all. meanwhile is called while there is nothing to do but to wait.
func (g *group) send(ctx context.Context, names schema.Names, run string, m *nats.Msg, again bool, meanwhile func()) answer {
	if again || g.fleet.cfg.GroupFrom < 0 {
		return g.fleet.send(ctx, m, meanwhile)
	}
	g.mu.Lock()
	l := g.lane(names)
	l.active++
	defer g.leave(l)
	if active := l.active; active < l.pace.from() {
		l.pace.passed(active)
		g.mu.Unlock()
		began := time.Now()
		a := g.fleet.send(ctx, m, meanwhile)
		if a.kind == acked {
			g.measured(l, (*pace).single, time.Since(began)/time.Duration(active))
		}
		return a
	}
	a := g.join(ctx, l, &waiter{run: run, msgs: []*nats.Msg{m}}, meanwhile)
	if a.kind == alone {
		return g.fleet.send(ctx, m, nil)
	}
	return a
}

// sendTogether publishes the messages of a run as one atomic batch, or as a part of one with those of other runs. The
// place of an acked answer is that of the last; after any other answer the messages must be resolved singly.
func (g *group) sendTogether(ctx context.Context, names schema.Names, run string, msgs []*nats.Msg, meanwhile func()) answer {
	if g.fleet.cfg.GroupFrom < 0 {
		return g.fleet.sendBatch(context.WithoutCancel(ctx), msgs, meanwhile)
	}
	g.mu.Lock()
	l := g.lane(names)
	l.active++
	defer g.leave(l)
	return g.join(ctx, l, &waiter{run: run, msgs: msgs}, meanwhile)
}

func (g *group) leave(l *lane) {
	g.mu.Lock()
	defer g.mu.Unlock()
	l.active--
}

func (g *group) measured(l *lane, what func(*pace, time.Duration), d time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	what(&l.pace, d)
}

// join waits for the next batch, or leads it. It is called with group.mu held, and gives it up.
func (g *group) join(ctx context.Context, l *lane, w *waiter, meanwhile func()) answer {
	w.signal = make(chan signal, 2)
	l.waiting = append(l.waiting, w)
	if !l.leading {
		l.leading = true
		g.mu.Unlock()
		return g.lead(ctx, l, meanwhile)
	}
	if l.want > 0 && len(l.waiting) >= l.want {
		l.want = 0
		select {
		case l.came <- struct{}{}:
		default:
		}
	}
	g.mu.Unlock()
	meanwhile()
	return g.follow(ctx, l, w)
}

func nothing() {}

// follow waits for the answer, or leads when told to.
func (g *group) follow(ctx context.Context, l *lane, w *waiter) answer {
	select {
	case s := <-w.signal:
		if s.lead {
			return g.lead(ctx, l, nothing)
		}
		return s.answer
	case <-ctx.Done():
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if w.taken {
		return answer{kind: silent, err: context.Cause(ctx)}
	}
	if i := slices.Index(l.waiting, w); i >= 0 {
		l.waiting = slices.Delete(l.waiting, i, i+1)
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
func (g *group) lead(ctx context.Context, l *lane, meanwhile func()) answer {
	g.linger(ctx, l)
	g.mu.Lock()
	members := l.take()
	worth := len(members) >= l.pace.from()
	l.expect = len(members) + len(l.waiting)
	g.mu.Unlock()
	for _, w := range members {
		worth = worth || len(w.msgs) > 1
	}
	mine := answer{kind: alone}
	tell := func(w *waiter, a answer) {
		if w == members[0] {
			mine = a
		} else {
			w.signal <- signal{answer: a}
		}
	}
	rest := members
	if worth {
		rest = g.sendMembers(ctx, l, members, meanwhile, tell)
	} else {
		meanwhile()
	}
	for _, w := range rest {
		tell(w, answer{kind: alone})
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	l.pass()
	return mine
}

// sendMembers sends members as one batch and tells each its answer. Those that spoil the batch for the others go
// alone; it returns those of whom nothing is stored and who were told nothing.
func (g *group) sendMembers(ctx context.Context, l *lane, members []*waiter, meanwhile func(), tell func(*waiter, answer)) []*waiter {
	// The batch is everybody's: it does not end with the leader's context.
	ctx = context.WithoutCancel(ctx)
	rest := slices.Clone(members)
	for range groupEvictions + 1 {
		var msgs []*nats.Msg
		for _, w := range rest {
			msgs = append(msgs, w.msgs...)
		}
		if len(msgs) < 2 {
			return rest
		}
		began := time.Now()
		a := g.fleet.sendBatch(ctx, msgs, meanwhile)
		meanwhile = nothing
		switch a.kind {
		case acked:
			g.measured(l, (*pace).batch, time.Since(began))
			seq := a.seq - schema.StreamSequence(len(msgs))
			for _, w := range rest {
				seq += schema.StreamSequence(len(w.msgs))
				tell(w, answer{kind: acked, seq: seq})
			}
			return nil
		case silent:
			for _, w := range rest {
				tell(w, a)
			}
			return nil
		case wrongLast:
			// Refused as a whole: nothing of it is stored, and what is left of it may go as another.
			i := g.spoiler(ctx, l, rest, a.seq)
			if i < 0 {
				return rest
			}
			tell(rest[i], answer{kind: alone})
			rest = slices.Delete(rest, i, i+1)
		default:
			return rest
		}
	}
	return rest
}

// spoiler returns the index of the member whose run's last message is the one at that place, or -1. A batch's refusal
// names no member, but the place that it found. What is found is a hint: the member is resolved by itself, and the
// others are judged by the server again.
func (g *group) spoiler(ctx context.Context, l *lane, members []*waiter, at schema.StreamSequence) int {
	if at == 0 {
		return -1
	}
	ctx, cancel := context.WithTimeout(ctx, g.fleet.cfg.TryTimeout)
	defer cancel()
	rec, found, err := runlog.At(ctx, g.fleet.js, l.names, at)
	if err != nil || !found {
		return -1
	}
	e, err := schema.Decode(rec.Header, rec.Body)
	if err != nil {
		return -1
	}
	return slices.IndexFunc(members, func(w *waiter) bool { return w.run == e.Subject })
}

// linger waits a moment for those who are expected, as long as they come.
func (g *group) linger(ctx context.Context, l *lane) {
	defer func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		l.want = 0
		select {
		case <-l.came:
		default:
		}
	}()
	var timer *time.Timer
	for began, seen := time.Now(), 0; ; {
		g.mu.Lock()
		here := len(l.waiting)
		l.want = min(max(l.expect, l.active), groupEvents)
		if here >= l.want || l.want < l.pace.from() {
			l.want = 0
		}
		over := l.want == 0 || here == seen || time.Since(began) >= groupLinger
		g.mu.Unlock()
		if over {
			return
		}
		seen = here
		if timer == nil {
			timer = time.NewTimer(groupQuiet)
			defer timer.Stop()
		} else {
			timer.Reset(groupQuiet)
		}
		select {
		case <-l.came:
		case <-timer.C:
		case <-ctx.Done():
			return
		}
	}
}

// take removes the members of the next batch. Under group.mu.
func (l *lane) take() []*waiter {
	n, events, bytes := 0, 0, 0
	for n < len(l.waiting) {
		w := l.waiting[n]
		events += len(w.msgs)
		for _, m := range w.msgs {
			bytes += len(m.Data)
		}
		if n > 0 && (events > groupEvents || bytes > groupBytes) {
			break
		}
		w.taken = true
		n++
	}
	members := slices.Clone(l.waiting[:n])
	l.waiting = slices.Delete(l.waiting, 0, n)
	return members
}
