package liveness

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
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
	// maxInstances bounds the instances of all executors.
	maxInstances = 1 << 16
	// maxHeartbeat is the largest accepted heartbeat, in bytes: 16 KiB, 128 bytes for each run or agent, 1 KiB for each
	// piece of overdue work, and the versions.
	maxHeartbeat = 16<<10 + (schema.MaxHeld+schema.MaxClaimed)*128 + schema.MaxOverdue<<10 + schema.MaxVersionsBytes
	// maxHeld bounds the remembered runs and agents of all instances. partBytes of versions count as one.
	maxHeld   = 1 << 18
	partBytes = 128
	// maxOverdue bounds the remembered overdue work of all instances.
	maxOverdue = 1 << 14
	// maxInterval is the longest accepted interval of an executor, so that no executor is trusted for days.
	maxInterval = 10 * time.Minute
	// surelyGone is the silence after which every executor counts as dead, whatever its interval, and is forgotten.
	surelyGone = 3 * maxInterval
	// heartbeatsWaiting is the number of heartbeats that wait to be read; more are lost, which is noticed.
	heartbeatsWaiting = 1 << 13
	// awakeEvery is how often the daemon checks whether it was paused.
	awakeEvery = time.Second
	// lateTicks is the number of missed ticks after which the daemon counts as having been paused.
	lateTicks = 3
	// ticksPerSilence is the smallest number of ticks per silence of a fleet.
	ticksPerSilence = 5
)

// HeartbeatStats counts heartbeats. Every field may be read at any time.
type HeartbeatStats struct {
	// Received heartbeats that were valid, Refused invalid ones, and Lost ones that came too fast.
	Received, Refused, Lost atomic.Int64
}

// Heartbeats is the table of a fleet's executors: when each instance last sent a heartbeat, by the daemon's clock, and
// the runs and the overdue work that it lists. All parts of a daemon share it.
//
// It is bounded: beyond 65,536 instances the one that has been silent for longest is forgotten, and counts as never
// seen. The instances may list at most 262,144 runs together.
type Heartbeats struct {
	fleet string
	nc    *nats.Conn
	runs  *LiveRuns
	now   func() time.Time
	log   zerolog.Logger
	stats HeartbeatStats
	// silence is the fleet's setting; 0 if it has none.
	silence atomic.Int64

	mu sync.Mutex
	// executors by name, with their instances, of which there are so many.
	executors map[string]map[string]*instanceLife
	instances int
	// steady is since when no heartbeat was missed; zero while Run does not listen.
	steady time.Time
	lost   int
	// held counts the runs and agents that all instances list, and overdue their overdue work.
	held, overdue int
	sub           *nats.Subscription
	// awake is when Run was last seen to run, by the machine's clock; zero while it does not run.
	awake time.Time
	// onHold: no executor counts as silent; see [Heartbeats.Hold].
	onHold bool
}

// instanceLife is the state of one instance of an executor. Without a name the instance is "".
type instanceLife struct {
	executor, instance string
	// seen is when its last heartbeat came.
	seen time.Time
	// interval is its stated interval.
	interval time.Duration
	// leaving: its last heartbeat said so.
	leaving bool
	// held are the runs that its last heartbeat listed; nil if it lists none.
	held map[string]schema.Epoch
	// build that its last heartbeat names.
	build string
	// agents whose runs it claims, by its last heartbeat; nil if it does not say.
	agents []string
	// versions of those agents. claims is the size of agents and versions, which counts towards maxHeld.
	versions map[string]schema.Version
	claims   int
	// overdue is the overdue work in its last heartbeat.
	overdue []schema.Overdue
	// count of its last heartbeat, if it signs them.
	count uint64
}

// names reports whether the instance lists the run as its own in this epoch.
func (l *instanceLife) names(run string, epoch schema.Epoch) bool {
	at, ok := l.held[run]
	return ok && (at == 0 || at == epoch)
}

// silence is how long the instance may be silent, given the fleet's setting.
func (l *instanceLife) silence(fleet time.Duration) time.Duration { return max(fleet, 3*l.interval) }

// alive reports whether the instance neither leaves nor is silent for too long.
func (l *instanceLife) alive(now time.Time, fleet time.Duration) bool {
	return !l.leaving && now.Sub(l.seen) < l.silence(fleet)
}

// NewHeartbeats returns an empty table of the executors of live runs. Call Run to listen.
func NewHeartbeats(fleet string, nc *nats.Conn, runs *LiveRuns, now func() time.Time, log zerolog.Logger) *Heartbeats {
	return &Heartbeats{
		fleet: fleet, nc: nc, runs: runs, now: now, log: log.With().Str(logkey.Fleet, fleet).Logger(),
		executors: make(map[string]map[string]*instanceLife),
	}
}

// Stats returns the counters.
func (h *Heartbeats) Stats() *HeartbeatStats { return &h.stats }

// SetSilence sets how long executors of the fleet may be silent; 0 means each sweeper's own setting.
func (h *Heartbeats) SetSilence(d time.Duration) { h.silence.Store(int64(d)) }

// Silence returns that setting, 0 for none.
func (h *Heartbeats) Silence() time.Duration { return time.Duration(h.silence.Load()) }

// every is an interval of looks at the time: five fit into the fleet's silence. So a pause of the daemon that its late
// ticks do not show leaves room for a heartbeat within the silence.
func (h *Heartbeats) every(most time.Duration) time.Duration {
	if asked := h.Silence(); asked > 0 {
		return min(most, asked/ticksPerSilence)
	}
	return most
}

// Run listens until ctx ends and returns nil, or an error if the connection was closed before.
func (h *Heartbeats) Run(ctx context.Context) error {
	msgs := make(chan *nats.Msg, heartbeatsWaiting)
	status := h.nc.StatusChanged(nats.CONNECTED, nats.DISCONNECTED, nats.RECONNECTING, nats.CLOSED)
	defer h.nc.RemoveStatusListener(status)
	subject := schema.HeartbeatSubject(h.fleet, "*")
	sub, err := h.nc.ChanSubscribe(subject, msgs)
	if err != nil {
		return fmt.Errorf("listen to %s: %w", subject, err)
	}
	defer func() {
		h.setSteady(nil, time.Time{})
		_ = sub.Unsubscribe() // fails only on a closed connection
	}()
	if h.nc.IsConnected() {
		h.setSteady(sub, h.now())
	}
	h.wakeful(time.Now())
	defer h.wakeful(time.Time{})
	every := h.every(awakeEvery)
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			h.wakeful(time.Now())
			if now := h.every(awakeEvery); now != every {
				every = now
				tick.Reset(every)
			}
		case s := <-status:
			switch s {
			case nats.CONNECTED:
				h.setSteady(sub, h.now())
			case nats.CLOSED:
				return fmt.Errorf("heartbeats of fleet %s: %w", h.fleet, nats.ErrConnectionClosed)
			default:
				h.setSteady(sub, time.Time{})
			}
		case m := <-msgs:
			h.take(m)
		}
	}
}

// wakeful records that heartbeats are being read. If they were not for some ticks, because the daemon was paused, some
// may still be unread. The daemon's own clock does not show that if a test sets it.
func (h *Heartbeats) wakeful(at time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.noteStop(at)
	h.awake = at
	h.forgetGone()
}

// noteStop is called under h.mu.
func (h *Heartbeats) noteStop(at time.Time) {
	if !h.awake.IsZero() && at.Sub(h.awake) > lateTicks*h.every(awakeEvery) {
		h.awake = at
		h.reset("the daemon was stopped or slow")
	}
}

// reset lets the silence of all executors count from now. Under h.mu.
func (h *Heartbeats) reset(why string) {
	if !h.steady.IsZero() {
		h.steady = h.now()
		h.log.Info().Str(logkey.Reason, why).Msg("silence timers reset")
	}
}

func (h *Heartbeats) setSteady(sub *nats.Subscription, at time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.sub, h.steady = sub, at
}

// Hold counts no executor as silent until release is called. A test that moves the daemon's clock first lets the live
// executors send a heartbeat; then it knows since when none was missed, however slow the machine is.
func (h *Heartbeats) Hold() (release func(steady time.Time)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.onHold = true
	return func(steady time.Time) {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.onHold = false
		if !h.steady.IsZero() {
			h.steady, h.awake = steady, time.Now()
		}
	}
}

// Living are the instances that are alive, by the fleet's silence: the last heartbeat of each, by the daemon's clock,
// and its interval.
func (h *Heartbeats) Living(fleet time.Duration) map[Holder]Beat {
	h.mu.Lock()
	defer h.mu.Unlock()
	living := make(map[Holder]Beat)
	for _, own := range h.executors {
		for _, l := range own {
			if l.alive(h.now(), fleet) {
				living[Holder{Executor: l.executor, Instance: l.instance}] = Beat{At: l.seen, Every: l.interval}
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
	if h.sub != nil {
		lost, _ := h.sub.Dropped() // fails only on a closed connection
		if lost > h.lost {
			h.stats.Lost.Add(int64(lost - h.lost))
			h.lost = lost
			h.reset("heartbeats came faster than they were read")
		}
	}
	h.noteStop(time.Now())
	return h.steady, !h.steady.IsZero() && !h.onHold
}

// errHeartbeat wraps the reason why a heartbeat is refused.
var errHeartbeat = errors.New("invalid heartbeat")

// take reads one message. An invalid heartbeat is counted and ignored.
func (h *Heartbeats) take(m *nats.Msg) {
	if err := h.executor(m); err != nil {
		h.stats.Refused.Add(1)
		h.log.Debug().Err(err).Str("subject", m.Subject).Msg("heartbeat refused")
		return
	}
	h.stats.Received.Add(1)
}

func (h *Heartbeats) executor(m *nats.Msg) error {
	var b schema.Heartbeat
	if len(m.Data) > maxHeartbeat {
		return fmt.Errorf("%w: %d bytes, at most %d", errHeartbeat, len(m.Data), maxHeartbeat)
	}
	if err := json.Unmarshal(m.Data, &b); err != nil {
		return fmt.Errorf("%w: %w", errHeartbeat, err)
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
	if len(b.Build) > schema.MaxBuild {
		return fmt.Errorf("%w: its build has %d bytes, at most %d", errHeartbeat, len(b.Build), schema.MaxBuild)
	}
	if len(b.Held) > schema.MaxHeld {
		return fmt.Errorf("%w: it lists %d runs, at most %d", errHeartbeat, len(b.Held), schema.MaxHeld)
	}
	for _, held := range b.Held {
		if err := schema.CheckName("run", held.Run); err != nil {
			return fmt.Errorf("%w: %w", errHeartbeat, err)
		}
	}
	if err := schema.CheckHeartbeat(b.Instance, m.Subject, m.Data, m.Header.Get(schema.HeaderSignature)); err != nil {
		return fmt.Errorf("%w: executor %s: %w", errHeartbeat, b.Executor, err)
	}
	return h.record(&b)
}

// record replaces what is known of an instance by its heartbeat. A repeated one of an instance that signs is refused. A
// list that is refused leaves the heartbeat a sign of life.
func (h *Heartbeats) record(b *schema.Heartbeat) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if _, signs := schema.InstanceKey(b.Instance); signs {
		if l := h.executors[b.Executor][b.Instance]; l != nil && b.Beat <= l.count || b.Beat == 0 {
			return fmt.Errorf("%w: number %d of instance %s came before", errHeartbeat, b.Beat, b.Instance)
		}
	}
	l := h.touch(b.Executor, b.Instance)
	l.interval = time.Duration(cmp.Or(b.IntervalMS, schema.DefaultHeartbeatMS)) * time.Millisecond
	l.leaving, l.count, l.build = b.Leaving, b.Beat, b.Build
	return errors.Join(h.setHeld(l, b.Held), h.setAgents(l, b.Agents, b.Versions), h.setOverdue(l, b.Overdue))
}

// setHeld replaces the list of an instance's runs; nil means that it lists none. Without room for a list the instance
// counts as one that lists none. Otherwise one executor could fill the memory. Under h.mu.
func (h *Heartbeats) setHeld(l *instanceLife, runs []schema.HeldRun) error {
	h.held -= len(l.held)
	l.held = nil
	if runs == nil {
		return nil
	}
	held := make(map[string]schema.Epoch, len(runs))
	for _, r := range runs {
		held[r.Run] = r.Epoch
	}
	if err := h.room(len(held), l.executor); err != nil {
		return err
	}
	l.held = held
	return nil
}

// room counts n more runs or agents of an executor. If there is no room, it forgets the instances that are gone. Under
// h.mu.
func (h *Heartbeats) room(n int, executor string) error {
	if h.held+n > maxHeld {
		h.forgetGone()
	}
	if h.held+n > maxHeld {
		return fmt.Errorf("%w: executor %s lists %d runs or agents, but the fleet's instances list %d already, at most %d", errHeartbeat, executor, n, h.held, maxHeld)
	}
	h.held += n
	return nil
}

// setAgents replaces the agents whose runs an instance claims. An instance with an invalid list, or without room for it,
// counts as one that does not say. Under h.mu.
func (h *Heartbeats) setAgents(l *instanceLife, agents []string, versions map[string]schema.Version) error {
	h.held -= l.claims
	l.agents, l.versions, l.claims = nil, nil, 0
	if len(agents) > schema.MaxClaimed {
		return fmt.Errorf("%w: executor %s lists %d agents, at most %d", errHeartbeat, l.executor, len(agents), schema.MaxClaimed)
	}
	for _, agent := range agents {
		if err := schema.CheckName("agent", agent); err != nil && agent != schema.AnyAgent {
			return fmt.Errorf("%w: %w", errHeartbeat, err)
		}
	}
	slices.Sort(agents)
	agents = slices.Compact(agents)
	for agent, v := range versions {
		if !slices.Contains(agents, agent) {
			return fmt.Errorf("%w: executor %s has a version of agent %.64q, which it does not claim", errHeartbeat, l.executor, agent)
		}
		if err := schema.Check(&v); err != nil {
			return fmt.Errorf("%w: executor %s: version of agent %s: %w", errHeartbeat, l.executor, agent, err)
		}
	}
	text, err := json.Marshal(versions)
	if err != nil {
		return fmt.Errorf("%w: versions of executor %s: %w", errHeartbeat, l.executor, err)
	}
	if len(text) > schema.MaxVersionsBytes {
		return fmt.Errorf("%w: executor %s has %d bytes of versions, at most %d", errHeartbeat, l.executor, len(text), schema.MaxVersionsBytes)
	}
	claims := len(agents) + len(text)/partBytes
	if err := h.room(claims, l.executor); err != nil {
		return err
	}
	l.agents, l.versions, l.claims = agents, versions, claims
	return nil
}

// forgetGone forgets the instances that are certainly gone. Under h.mu.
func (h *Heartbeats) forgetGone() {
	for _, own := range h.executors {
		for _, l := range own {
			if h.now().Sub(l.seen) >= surelyGone {
				h.forget(l)
			}
		}
	}
}

// touch returns the instance, seen now. Under h.mu.
func (h *Heartbeats) touch(executor, instance string) *instanceLife {
	l := h.executors[executor][instance]
	if l == nil {
		if h.instances >= maxInstances {
			h.makeRoom()
		}
		l = &instanceLife{executor: executor, instance: instance}
		if h.executors[executor] == nil {
			h.executors[executor] = make(map[string]*instanceLife, 1)
		}
		h.executors[executor][instance] = l
		h.instances++
	}
	l.seen = h.now()
	return l
}

// makeRoom forgets the instance that has been silent for longest. It may be alive, and a flood of invented names must
// not orphan its runs: all silence timers reset. Under h.mu.
func (h *Heartbeats) makeRoom() {
	h.forgetGone()
	if h.instances < maxInstances {
		return
	}
	var first *instanceLife
	for _, own := range h.executors {
		for _, l := range own {
			if first == nil || l.seen.Before(first.seen) {
				first = l
			}
		}
	}
	h.forget(first)
	h.reset("too many instances of executors")
}

func (h *Heartbeats) forget(l *instanceLife) {
	h.held -= len(l.held) + l.claims
	h.overdue -= len(l.overdue)
	h.instances--
	own := h.executors[l.executor]
	delete(own, l.instance)
	if len(own) == 0 {
		delete(h.executors, l.executor)
	}
}

// last returns the state of a run's executor: of the instance that the run names or, if it names none, of the
// instance whose silence ends last, preferring one that does not leave. It is false if it was never seen.
func (h *Heartbeats) last(executor, instance string, fleet time.Duration) (instanceLife, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	own := h.executors[executor]
	if instance != "" {
		if l := own[instance]; l != nil {
			return *l, true
		}
		return instanceLife{}, false
	}
	var best *instanceLife
	for _, l := range own {
		switch {
		case best == nil, !l.leaving && best.leaving,
			l.leaving == best.leaving && l.seen.Add(l.silence(fleet)).After(best.seen.Add(best.silence(fleet))):
			best = l
		}
	}
	if best == nil {
		return instanceLife{}, false
	}
	return *best, true
}

// Alive counts the live executors, given the fleet's silence.
func (h *Heartbeats) Alive(fleet time.Duration) int {
	names := make(map[string]struct{})
	for holder := range h.Living(fleet) {
		names[holder.Executor] = struct{}{}
	}
	return len(names)
}
