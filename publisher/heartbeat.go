package publisher

import (
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go"

	"github.com/waymarkio/waymark/schema"
)

// departPatience is how long Close waits until the server has the last heartbeat.
const departPatience = time.Second

// hand holds the active runs of this process: notices concern them, and heartbeats count them. Start, Resume and Claim
// add a run. It is removed when it ended, was interrupted, or its handle ended. The zero value is ready.
type hand struct {
	mu   sync.Mutex
	runs map[string][]*Run
	// asked counts the starts and takeovers in progress by run. Heartbeats name these runs as held, although their epoch
	// may be unknown.
	asked map[string]int
}

// begin notes a start or takeover in progress, until done is called. alone: no other one of the run is in progress.
func (h *hand) begin(run string) (alone bool, done func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.asked == nil {
		h.asked = make(map[string]int)
	}
	h.asked[run]++
	return h.asked[run] == 1, func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		if h.asked[run]--; h.asked[run] == 0 {
			delete(h.asked, run)
		}
	}
}

func (h *hand) take(r *Run, epoch schema.Epoch) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.runs == nil {
		h.runs = make(map[string][]*Run)
	}
	r.takenIn = epoch
	h.runs[r.id] = append(h.runs[r.id], r)
}

func (h *hand) remove(r *Run) {
	h.mu.Lock()
	defer h.mu.Unlock()
	// A caller of of may hold the slice: replace it, do not change it.
	var rest []*Run
	for _, o := range h.runs[r.id] {
		if o != r {
			rest = append(rest, o)
		}
	}
	if h.runs[r.id] = rest; rest == nil {
		delete(h.runs, r.id)
	}
}

// of returns the handles of a run; more than one when it was taken over within the process.
func (h *hand) of(run string) []*Run {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.runs[run]
}

// held are the runs that this process holds, starts or takes over; nil if they are too many for a heartbeat.
func (h *hand) held() []schema.HeldRun {
	h.mu.Lock()
	defer h.mu.Unlock()
	held := make(map[schema.HeldRun]struct{})
	for run := range h.asked {
		held[schema.HeldRun{Run: run}] = struct{}{}
	}
	for id, runs := range h.runs {
		for _, r := range runs {
			held[schema.HeldRun{Run: id, Epoch: r.takenIn}] = struct{}{}
		}
	}
	if len(held) > schema.MaxHeld {
		return nil
	}
	return append(make([]schema.HeldRun, 0, len(held)), slices.Collect(maps.Keys(held))...)
}

// holder adds a handle's run to the active runs and removes it. The next heartbeat no longer names a removed run: if the
// log still gives it to this process, it is orphaned.
func (f *Fleet) holder(r *Run) func(in, attended bool, epoch schema.Epoch) {
	return func(in, attended bool, epoch schema.Epoch) {
		if in {
			f.hand.take(r, epoch)
			return
		}
		f.hand.remove(r)
		if attended && len(f.hand.of(r.id)) == 0 {
			f.presence.hurry()
		}
	}
}

// publishLast publishes a run's interruption and releases the run.
func (r *Run) publishLast(ctx context.Context, last error, d draft) error {
	_, err := r.publishAnd(ctx, last, d)
	return err
}

// appear starts heartbeats and listens for notices: from now on this process is an executor, not only a reader.
func (f *Fleet) appear() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.stopped {
		return ErrStopped
	}
	if f.alive {
		return nil
	}
	sub, err := f.nc.Subscribe(schema.NoticeSubject(f.cfg.Fleet, f.cfg.Executor), f.noticed)
	if err != nil {
		return fmt.Errorf("listening for notices: %w: %w", ErrUnavailable, err)
	}
	// Delivered at most once: an executor that misses it finds the change when it next reads the fleet's keys.
	changes, err := f.nc.Subscribe(schema.SettingsSubject(f.cfg.Fleet), f.changed)
	if err != nil {
		return errors.Join(fmt.Errorf("listening for changes of the fleet: %w: %w", ErrUnavailable, err), sub.Unsubscribe())
	}
	f.alive, f.notices, f.changes = true, sub, changes
	if f.cfg.Heartbeat >= 0 {
		f.beaten = make(chan struct{})
		go func() {
			defer close(f.beaten)
			f.presence.beat(f.life)
		}()
	}
	return nil
}

// pace is the interval of heartbeats.
func (f *Fleet) pace() time.Duration {
	if f.cfg.Heartbeat > 0 {
		return f.cfg.Heartbeat
	}
	return f.settings.Load().Heartbeat()
}

// changed reads the fleet's settings again, with the pauses; the heartbeat interval follows the silence timeout. The
// subscription calls it for one announcement after the other.
func (f *Fleet) changed(*nats.Msg) {
	f.mu.Lock()
	if f.stopped {
		f.mu.Unlock()
		return
	}
	f.background.Add(1)
	f.mu.Unlock()
	defer f.background.Done()
	was := f.pace()
	if err := f.insist(f.life, schema.FleetBucket, f.cfg.TryTimeout, f.readSettings); err != nil {
		f.cfg.Logger.Debug().Err(err).Str("executor", f.cfg.Executor).Msg("could not read the fleet's changed settings")
		return
	}
	if f.pace() != was {
		f.presence.hurry()
	}
}

// depart announces that the executor has stopped working. Nothing was begun after stopped was set.
func (f *Fleet) depart() error {
	f.background.Wait()
	if !f.alive {
		return nil
	}
	if f.beaten != nil {
		<-f.beaten
		if f.presence.heartbeat(true) && f.closed == nil {
			// The caller may close the connection next, with the heartbeat still buffered. A daemon that misses it
			// notices the silence.
			if err := f.nc.FlushTimeout(departPatience); err != nil {
				f.cfg.Logger.Debug().Err(err).Str("executor", f.cfg.Executor).Msg("last heartbeat not confirmed")
			}
		}
	}
	if err := errors.Join(f.notices.Unsubscribe(), f.changes.Unsubscribe()); err != nil && !f.nc.IsClosed() {
		return fmt.Errorf("closing fleet %s: notices: %w", f.cfg.Fleet, err)
	}
	return nil
}

// presence sends this executor's heartbeats over core NATS.
type presence struct {
	*Fleet

	// key signs heartbeats.
	key ed25519.PrivateKey
	// news makes the next heartbeat due at once.
	news chan struct{}

	mu    sync.Mutex
	beats uint64
	// claimed are the agents whose runs this handle has asked for.
	claimed []string
}

// beat publishes heartbeats until life ends or the connection is closed for good.
func (p *presence) beat(life context.Context) {
	changed := p.nc.StatusChanged(nats.CONNECTED, nats.CLOSED)
	defer p.nc.RemoveStatusListener(changed)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-changed:
			// Reconnected: tell the daemon at once.
		case <-p.news:
		case <-life.Done():
			return
		}
		if p.nc.IsClosed() {
			return
		}
		p.heartbeat(false)
		// The jitter spreads the heartbeats of executors that were started together.
		pace := p.pace()
		timer.Reset(pace - rand.N(pace/8+1)) //nolint:gosec // jitter
	}
}

// claims makes heartbeats name the agents of a claim, too; none stand for every agent.
func (p *presence) claims(agents []string) {
	if len(agents) == 0 {
		agents = []string{schema.AnyAgent}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, agent := range agents {
		if !slices.Contains(p.claimed, agent) && len(p.claimed) <= schema.MaxClaimed {
			p.claimed = append(slices.Clip(p.claimed), agent)
			p.hurry()
		}
	}
}

// claimsNone makes heartbeats name no agent until the next claim.
func (p *presence) claimsNone() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.claimed = nil
	p.hurry()
}

// hurry makes a heartbeat due at once.
func (p *presence) hurry() {
	select {
	case p.news <- struct{}{}:
	default: // it is due already
	}
}

// heartbeat publishes one. Without a connection it is dropped, not sent later.
func (p *presence) heartbeat(leaving bool) bool {
	p.mu.Lock()
	p.beats++
	count, agents := p.beats, p.claimed
	p.mu.Unlock()
	if len(agents) > schema.MaxClaimed {
		agents = nil
	}
	m := nats.NewMsg(schema.HeartbeatSubject(p.cfg.Fleet, p.cfg.Executor))
	var err error
	m.Data, err = json.Marshal(&schema.Heartbeat{
		Executor: p.cfg.Executor, Instance: p.instance, IntervalMS: p.pace().Milliseconds(),
		Time: schema.FormatTime(p.cfg.Now()), Leaving: leaving,
		Held: p.hand.held(), Agents: agents, Build: p.versions.build, Versions: p.versions.all(agents), Beat: count, Overdue: p.works.overdue(),
	})
	if err == nil {
		m.Header.Set(schema.HeaderSignature, schema.SignHeartbeat(p.key, m.Subject, m.Data))
		err = p.nc.PublishMsg(m)
	}
	if err != nil {
		p.cfg.Logger.Debug().Err(err).Str("executor", p.cfg.Executor).Msg("heartbeat not sent")
	}
	return err == nil
}

// Context returns a context that ends when work on the run should stop. Its cause is [ErrCancelRequested] after a
// request to cancel the run, the error that ended the handle ([ErrFenced] and the others), [ErrStopped] when the fleet
// is closed, or the cause of parent. It ends as soon as the daemon's notice arrives, without a publish. To finish up
// after a request to cancel, use [context.WithoutCancel]. Call cancel when you no longer need the context.
func (r *Run) Context(parent context.Context) (ctx context.Context, cancel context.CancelFunc) {
	ctx, with := context.WithCancelCause(parent)
	stops := make([]func() bool, 0, 2)
	for _, of := range []context.Context{r.ledger.halt, r.fleet.life} {
		if of.Err() != nil {
			with(context.Cause(of))
			continue
		}
		stops = append(stops, context.AfterFunc(of, func() { with(context.Cause(of)) }))
	}
	return ctx, func() {
		for _, stop := range stops {
			stop()
		}
		with(context.Canceled)
	}
}
