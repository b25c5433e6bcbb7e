package liveness

import (
	"cmp"
	"container/list"
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go"
	"github.com/rs/zerolog"

	"github.com/waymarkio/waymark/consumer/internal/logkey"
	"github.com/waymarkio/waymark/schema"
)

// Bounds on the remembered state of executors.
const (
	// maxInstances bounds the instances of all executors; the one that has been silent for longest is forgotten
	// first.
	maxInstances = 1 << 16
	// maxOwnInstances bounds those of one executor that are remembered although they are certainly gone.
	maxOwnInstances = 64
	// maxHeartbeat is the largest accepted heartbeat, in bytes: 16 KiB, 128 bytes for each run, and 1 KiB for each
	// piece of overdue work.
	maxHeartbeat = 16<<10 + schema.MaxHeld*128 + schema.MaxOverdue<<10
	// maxHeld bounds the remembered runs of all instances.
	maxHeld = 1 << 18
	// maxOverdue bounds the remembered overdue work of all instances.
	maxOverdue = 1 << 14
	// maxInterval is the longest accepted interval of an executor, so that no executor is trusted for days.
	maxInterval = 10 * time.Minute
	// surelyGone is the silence after which every executor counts as dead, whatever its interval.
	surelyGone = 3 * maxInterval
	// agentInterval is the interval of the Synadia Agent Protocol if a heartbeat does not state it.
	agentInterval = 30 * time.Second
	// heartbeatsWaiting is the number of heartbeats that wait to be read; more are lost, which is noticed.
	heartbeatsWaiting = 1 << 13
	// awakeEvery is how often the daemon checks whether it was paused.
	awakeEvery = time.Second
)

// HeartbeatStats counts heartbeats. Every field may be read at any time.
type HeartbeatStats struct {
	// Received heartbeats that were valid, Refused invalid ones, and Lost ones that came too fast.
	Received, Refused, Lost atomic.Int64
}

// Heartbeats is when each executor of a fleet was last seen alive, by the daemon's clock: by its heartbeats over core
// NATS, including those of the Synadia Agent Protocol, and by its accepted events, which the daemon's fold workers
// report. All fold workers of a daemon share it.
//
// It is bounded: beyond 65,536 instances the one that has been silent for longest is forgotten, and counts as never
// seen. The instances may list at most 262,144 runs together.
type Heartbeats struct {
	fleet string
	nc    *nats.Conn
	now   func() time.Time
	log   zerolog.Logger
	stats HeartbeatStats
	// silence is the fleet's setting; 0 if it has none.
	silence atomic.Int64

	mu sync.Mutex
	// executors by name; each has at least one instance.
	executors map[string]map[string]*list.Element
	// recent has an *instanceLife each, last seen first.
	recent *list.List
	// steady is since when no heartbeat was missed; zero while Run does not listen.
	steady time.Time
	lost   int
	// held counts the runs that all instances list.
	held int
	// overdue counts the overdue work of all instances.
	overdue int
	subs    []*nats.Subscription
	// awake is when Run was last seen to run, by the machine's clock; zero while it does not run.
	awake time.Time
	// onHold: no executor counts as silent; see [Heartbeats.Hold].
	onHold bool
}

// instanceLife is the state of one instance of an executor. Without a name the instance is "".
type instanceLife struct {
	executor, instance string
	seen               time.Time
	// beaten is when its last heartbeat came; zero for none.
	beaten time.Time
	// interval is its stated interval; 0 if only its events were seen.
	interval time.Duration
	// left is when it said that it leaves; zero if it did not.
	left time.Time
	// held are the runs that its last heartbeat listed; nil if it lists none.
	held map[string]schema.Epoch
	// overdue is the overdue work in its last heartbeat.
	overdue []schema.Overdue
	// count of its last heartbeat, if it signs them.
	count uint64
}

// unheard reports whether the instance is known only by its events: no heartbeat came yet, or none any more.
func (l *instanceLife) unheard() bool {
	return l.beaten.IsZero() || l.seen.Sub(l.beaten) > 2*l.interval
}

// names reports whether the instance lists the run as its own in this epoch.
func (l *instanceLife) names(run string, epoch schema.Epoch) bool {
	at, ok := l.held[run]
	return ok && (at == 0 || at == epoch)
}

// NewHeartbeats returns an empty table. Call Run to listen.
func NewHeartbeats(fleet string, nc *nats.Conn, now func() time.Time, log zerolog.Logger) *Heartbeats {
	return &Heartbeats{
		fleet: fleet, nc: nc, now: now, log: log.With().Str(logkey.Fleet, fleet).Logger(),
		executors: make(map[string]map[string]*list.Element), recent: list.New(),
	}
}

// Stats returns the counters.
func (h *Heartbeats) Stats() *HeartbeatStats { return &h.stats }

// SetSilence sets how long executors of the fleet may be silent; 0 means each sweeper's own setting.
func (h *Heartbeats) SetSilence(d time.Duration) { h.silence.Store(int64(d)) }

// Silence returns that setting, 0 for none.
func (h *Heartbeats) Silence() time.Duration { return time.Duration(h.silence.Load()) }

// Run listens until ctx ends and returns nil, or an error if the connection was closed before.
func (h *Heartbeats) Run(ctx context.Context) error {
	msgs := make(chan *nats.Msg, heartbeatsWaiting)
	status := h.nc.StatusChanged(nats.CONNECTED, nats.DISCONNECTED, nats.RECONNECTING, nats.CLOSED)
	defer h.nc.RemoveStatusListener(status)
	var subs []*nats.Subscription
	defer func() {
		h.setSteady(nil, time.Time{})
		for _, sub := range subs {
			_ = sub.Unsubscribe() // fails only on a closed connection
		}
	}()
	for _, subject := range []string{schema.HeartbeatSubject(h.fleet, "*"), schema.AgentHeartbeats} {
		sub, err := h.nc.ChanSubscribe(subject, msgs)
		if err != nil {
			return fmt.Errorf("listen to %s: %w", subject, err)
		}
		subs = append(subs, sub)
	}
	if h.nc.IsConnected() {
		h.setSteady(subs, h.now())
	}
	h.wakeful(time.Now())
	defer h.wakeful(time.Time{})
	tick := time.NewTicker(awakeEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			h.wakeful(time.Now())
		case s := <-status:
			switch s {
			case nats.CONNECTED:
				h.setSteady(subs, h.now())
			case nats.CLOSED:
				return fmt.Errorf("heartbeats of fleet %s: %w", h.fleet, nats.ErrConnectionClosed)
			default:
				h.setSteady(subs, time.Time{})
			}
		case m := <-msgs:
			h.take(m)
		}
	}
}

// wakeful records that heartbeats are being read. If they were not for some seconds, because the daemon was paused,
// some may still be unread. The daemon's own clock does not show that if a test sets it.
func (h *Heartbeats) wakeful(at time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.noteStop(at)
	h.awake = at
}

// noteStop is called under h.mu.
func (h *Heartbeats) noteStop(at time.Time) {
	if !h.awake.IsZero() && !h.steady.IsZero() && at.Sub(h.awake) > lateTicks*awakeEvery {
		h.steady = h.now()
	}
}

func (h *Heartbeats) setSteady(subs []*nats.Subscription, at time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.subs, h.steady = subs, at
}

// Hold counts no executor as silent until release is called. A test that moves the daemon's clock first lets the live
// executors send a heartbeat.
func (h *Heartbeats) Hold() (release func()) {
	set := func(onHold bool) {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.onHold = onHold
	}
	set(true)
	return func() { set(false) }
}

// Living are the instances with heartbeats that are not silent for too long, by the fleet's silence: the last
// heartbeat of each, by the daemon's clock, and its interval.
func (h *Heartbeats) Living(fleet time.Duration) map[Holder]Beat {
	h.mu.Lock()
	defer h.mu.Unlock()
	living := make(map[Holder]Beat)
	for executor, own := range h.executors {
		for instance, el := range own {
			l := lifeOf(el)
			if !l.beaten.IsZero() && l.left.IsZero() && h.now().Sub(l.seen) < l.silence(fleet) {
				living[Holder{Executor: executor, Instance: instance}] = Beat{At: l.beaten, Every: l.interval}
			}
		}
	}
	return living
}

// Beat is the last heartbeat of an instance, and its interval.
type Beat struct {
	At    time.Time
	Every time.Duration
}

// Steady is since when no heartbeat can have been missed: not before the last reconnect, and not before heartbeats
// came faster than they were read. It is false while Run does not listen, and while they are on hold.
func (h *Heartbeats) Steady() (time.Time, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	lost := 0
	for _, sub := range h.subs {
		n, _ := sub.Dropped() // fails only on a closed connection
		lost += n
	}
	if lost > h.lost {
		h.stats.Lost.Add(int64(lost - h.lost))
		h.lost, h.steady = lost, h.now()
	}
	h.noteStop(time.Now())
	return h.steady, !h.steady.IsZero() && !h.onHold
}

// errHeartbeat wraps the reason why a heartbeat is refused.
var errHeartbeat = errors.New("invalid heartbeat")

// take reads one message. An invalid heartbeat is counted and ignored.
func (h *Heartbeats) take(m *nats.Msg) {
	var err error
	if strings.HasPrefix(m.Subject, "agents.") {
		err = h.agent(m)
	} else {
		err = h.executor(m)
	}
	if err != nil {
		h.stats.Refused.Add(1)
		h.log.Debug().Err(err).Str("subject", m.Subject).Msg("heartbeat refused")
		return
	}
	h.stats.Received.Add(1)
}

func (h *Heartbeats) executor(m *nats.Msg) error {
	var b schema.Heartbeat
	if err := readHeartbeat(m.Data, &b); err != nil {
		return err
	}
	if err := schema.CheckName("executor", b.Executor); err != nil {
		return err
	}
	if m.Subject != schema.HeartbeatSubject(h.fleet, b.Executor) {
		return fmt.Errorf("%w: it is one of executor %s", errHeartbeat, b.Executor)
	}
	if b.Instance != "" {
		if err := schema.CheckName("instance", b.Instance); err != nil {
			return err
		}
	}
	if b.IntervalMS < 0 || b.IntervalMS > maxInterval.Milliseconds() {
		return fmt.Errorf("%w: interval_ms is %d, use 1 to %d", errHeartbeat, b.IntervalMS, maxInterval.Milliseconds())
	}
	interval := time.Duration(b.IntervalMS) * time.Millisecond
	interval = cmp.Or(interval, schema.DefaultHeartbeatMS*time.Millisecond)
	if len(b.Held) > schema.MaxHeld {
		return fmt.Errorf("%w: it lists %d runs, at most %d", errHeartbeat, len(b.Held), schema.MaxHeld)
	}
	if err := schema.CheckHeartbeat(b.Instance, m.Subject, m.Data, m.Header.Get(schema.HeaderSignature)); err != nil {
		return fmt.Errorf("%w: executor %s: %w", errHeartbeat, b.Executor, err)
	}
	if err := h.counted(&b); err != nil {
		return err
	}
	h.beat(b.Executor, b.Instance, interval, b.Leaving)
	return errors.Join(h.setHeld(b.Executor, b.Instance, b.Held), h.setOverdue(b.Executor, b.Instance, b.Overdue))
}

// counted refuses a signed heartbeat that was received before.
func (h *Heartbeats) counted(b *schema.Heartbeat) error {
	if _, signs := schema.InstanceKey(b.Instance); !signs {
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	last := uint64(0)
	if el := h.executors[b.Executor][b.Instance]; el != nil {
		last = lifeOf(el).count
	}
	if b.Beat <= last {
		return fmt.Errorf("%w: it is number %d of instance %s, which has sent number %d", errHeartbeat, b.Beat, b.Instance, last)
	}
	h.touch(b.Executor, b.Instance).count = b.Beat
	return nil
}

func (h *Heartbeats) agent(m *nats.Msg) error {
	var b schema.AgentHeartbeat
	if err := readHeartbeat(m.Data, &b); err != nil {
		return err
	}
	if err := schema.CheckName("instance_id", b.InstanceID); err != nil {
		return err
	}
	if b.IntervalS < 0 || math.IsNaN(b.IntervalS) || b.IntervalS > maxInterval.Seconds() {
		return fmt.Errorf("%w: interval_s is %g, use up to %g", errHeartbeat, b.IntervalS, maxInterval.Seconds())
	}
	interval := time.Duration(b.IntervalS * float64(time.Second))
	interval = cmp.Or(interval, agentInterval)
	h.beat(b.InstanceID, "", interval, false)
	return nil
}

func readHeartbeat(data []byte, into any) error {
	if len(data) > maxHeartbeat {
		return fmt.Errorf("%w: %d bytes, at most %d", errHeartbeat, len(data), maxHeartbeat)
	}
	if err := json.Unmarshal(data, into); err != nil {
		return fmt.Errorf("%w: %w", errHeartbeat, err)
	}
	return nil
}

// beat records a heartbeat.
func (h *Heartbeats) beat(executor, instance string, interval time.Duration, leaving bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	l := h.touch(executor, instance)
	l.interval, l.left, l.beaten = interval, time.Time{}, l.seen
	if leaving {
		l.left = l.seen
	}
}

// setHeld replaces the list of an instance's runs; nil means that it lists none. Without room for a list the instance
// counts as one that lists none; the heartbeat is still a sign of life. Otherwise one executor could fill the memory.
func (h *Heartbeats) setHeld(executor, instance string, runs []schema.HeldRun) error {
	var held map[string]schema.Epoch
	if runs != nil {
		held = make(map[string]schema.Epoch, len(runs))
	}
	for _, r := range runs {
		held[r.Run] = r.Epoch
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	l := h.touch(executor, instance)
	h.held -= len(l.held)
	l.held = nil
	if h.held+len(held) > maxHeld {
		h.forgetGone()
	}
	if h.held+len(held) > maxHeld {
		return fmt.Errorf("%w: executor %s lists %d runs, but the fleet's instances list %d already, at most %d", errHeartbeat, executor, len(runs), h.held, maxHeld)
	}
	h.held += len(held)
	l.held = held
	return nil
}

// forgetGone forgets the instances that are certainly gone. Under h.mu.
func (h *Heartbeats) forgetGone() {
	for el := h.recent.Back(); el != nil && h.now().Sub(lifeOf(el).seen) >= surelyGone; el = h.recent.Back() {
		h.forget(el)
	}
}

// Signs records signs of life. They do not undo that an instance leaves: events folded now may have been published
// before.
func (h *Heartbeats) Signs(of map[Holder]struct{}) {
	if len(of) == 0 {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for s := range of {
		if _, signs := schema.InstanceKey(s.Instance); signs {
			continue // any executor of the fleet can begin a run in its name: only its signed heartbeats count
		}
		h.touch(s.Executor, s.Instance)
	}
}

// touch returns the instance, seen now.
func (h *Heartbeats) touch(executor, instance string) *instanceLife {
	own := h.executors[executor]
	el := own[instance]
	if el == nil {
		// A name shared by many processes is no reason to count any of them as dead.
		if len(own) >= maxOwnInstances {
			if first := oldest(own); h.now().Sub(lifeOf(first).seen) >= surelyGone {
				h.forget(first)
			}
		}
		if h.recent.Len() >= maxInstances {
			if first := h.recent.Back(); h.now().Sub(lifeOf(first).seen) < surelyGone && !h.steady.IsZero() {
				// It may be alive, and a flood of invented names must not orphan its runs: all silence timers reset.
				h.steady = h.now()
			}
			h.forget(h.recent.Back())
		}
		el = h.recent.PushFront(&instanceLife{executor: executor, instance: instance})
		if own = h.executors[executor]; own == nil {
			own = make(map[string]*list.Element, 1)
			h.executors[executor] = own
		}
		own[instance] = el
	}
	h.recent.MoveToFront(el)
	l := lifeOf(el)
	l.seen = h.now()
	return l
}

func lifeOf(el *list.Element) *instanceLife {
	l, _ := el.Value.(*instanceLife) // the list has no other values
	return l
}

func oldest(own map[string]*list.Element) *list.Element {
	var first *list.Element
	for _, el := range own {
		if first == nil || lifeOf(el).seen.Before(lifeOf(first).seen) {
			first = el
		}
	}
	return first
}

func (h *Heartbeats) forget(el *list.Element) {
	l := lifeOf(el)
	h.recent.Remove(el)
	h.held -= len(l.held)
	h.overdue -= len(l.overdue)
	own := h.executors[l.executor]
	delete(own, l.instance)
	if len(own) == 0 {
		delete(h.executors, l.executor)
	}
}

// silence is how long the instance may be silent, given the fleet's setting.
func (l *instanceLife) silence(fleet time.Duration) time.Duration { return max(fleet, 3*l.interval) }

// last returns the state of a run's executor: of the instance that the run names or, if it names none, of the
// instance whose silence ends last, preferring one that does not leave. It is false if it was never seen.
func (h *Heartbeats) last(executor, instance string, fleet time.Duration) (instanceLife, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	own := h.executors[executor]
	if instance != "" {
		el, ok := own[instance]
		if !ok {
			return instanceLife{}, false
		}
		return *lifeOf(el), true
	}
	var best instanceLife
	for _, el := range own {
		l := lifeOf(el)
		stays, bestStays := l.left.IsZero(), best.left.IsZero()
		switch {
		case best.seen.IsZero(), stays && !bestStays,
			stays == bestStays && l.seen.Add(l.silence(fleet)).After(best.seen.Add(best.silence(fleet))):
			best = *l
		}
	}
	return best, !best.seen.IsZero()
}

// Alive counts the live executors, given the fleet's silence.
func (h *Heartbeats) Alive(fleet time.Duration) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	now, n := h.now(), 0
	for _, own := range h.executors {
		for _, el := range own {
			if l := lifeOf(el); l.left.IsZero() && now.Sub(l.seen) < l.silence(fleet) {
				n++
				break
			}
		}
	}
	return n
}
