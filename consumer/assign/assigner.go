package assign

import (
	"context"
	"crypto/rand"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go"
	"github.com/rs/zerolog"

	"github.com/waymarkio/waymark/consumer/internal/logkey"
	"github.com/waymarkio/waymark/internal/pause"
	"github.com/waymarkio/waymark/schema"
)

const (
	// announceEvery is the interval of a replica's announcements.
	announceEvery = time.Second
	// goneAfter is the silence after which a replica counts as gone: three announcements, well below the time to live
	// of a lease, so that the others know the next replica when a lease expires.
	goneAfter = 3 * announceEvery
	// settling is how long a new replica must stay before it gets shards, and how long an assignment must be
	// unchanged.
	settling = 2 * time.Second
	// handOverGap is the shortest time between two hand-overs by a replica: one shard after the other.
	handOverGap = 250 * time.Millisecond
	// handOverAgain is how long a replica keeps a shard that it took because the assigned replica did not fold it.
	handOverAgain = time.Minute
	// maxPeers bounds the replicas that are known; more are not counted.
	maxPeers = 64
	// MaxSeen bounds the executors in one announcement.
	MaxSeen = 512
	// maxPresence is the largest accepted announcement, in bytes.
	maxPresence = 256 << 10
)

// Assigner decides which replica of a daemon should fold which shard of a fleet. Each replica announces itself once a
// second over core NATS, and computes the assignment by itself; see assign. The assignment only decides which replica
// asks for a lease first, and which one gives its lease up. Lease and compare-and-set ensure that a shard is folded
// once. A replica that hears no other folds every shard that is free.
//
//	a replica comes ──settled──▶ others hand shards over: commit, release, announce ──▶ it takes them at once
//	a replica stops: release, announce ──▶ the next replicas take them at once
//	a replica is killed ──silence──▶ it is not counted ──lease expires──▶ the next replicas take them
//	a replica is paused for less than the lease ──▶ no shard moves
//	the next replica does not take a shard ──one more time to live──▶ any replica does, and keeps it for a while
//
// Announcements also name the executors that a replica saw alive only by their events, so that an executor without
// heartbeats is alive for the fold workers of all its runs.
//
// A nil *Assigner is for a daemon without other replicas: every shard is its own. All methods may be called at any
// time from any goroutine.
type Assigner struct {
	fleet, name, id string
	nc              *nats.Conn
	sightings       Sightings
	now             func() time.Time
	log             zerolog.Logger

	mu     sync.Mutex
	shards int
	// peers are the other replicas, by id.
	peers map[string]*peer
	// began is when the replica began to listen.
	began time.Time
	// counted are the replicas that owners was computed for, its own included.
	counted []string
	owners  []string
	stands  []shardStand
	// handed is when a shard was last handed over.
	handed time.Time
}

// Sightings exchanges the executors that one replica alone sees alive.
type Sightings interface {
	// TakeUnheard returns, once each, up to [MaxSeen] executors that this replica saw alive only by their events.
	TakeUnheard() []Seen
	// HeardElsewhere notes executors that another replica saw alive.
	HeardElsewhere(list []Seen)
}

// peer is another replica.
type peer struct {
	name string
	// first is since when it has been heard without a break, and last the latest time.
	first, last time.Time
}

// shardStand is this replica's state of a shard.
type shardStand struct {
	// wake tells the fold worker to ask for the lease now.
	wake chan struct{}
	// other is since when the shard is assigned to another replica.
	other time.Time
	// to is the replica that it was handed over to, and keep until when it is not handed over again.
	to   string
	keep time.Time
}

// presence is the announcement of a replica.
type presence struct {
	Holder string `json:"holder"`
	// ID distinguishes starts of replicas with the same name.
	ID string `json:"id"`
	// Leaving: the replica stops now.
	Leaving bool `json:"leaving,omitzero"`
	// Freed shards, whose lease was just released.
	Freed []int `json:"freed,omitzero"`
	// Seen are executors that were seen alive by their events, not by heartbeats.
	Seen []Seen `json:"seen,omitzero"`
}

// Seen is an executor that a replica saw alive only by its events.
type Seen struct {
	Executor string `json:"executor"`
	Instance string `json:"instance,omitzero"`
}

// New returns the assigner of a replica in a fleet with a number of shards. name is the holder of its leases. Call
// Run to take part; before that, every shard is its own.
func New(fleet, name string, shards int, nc *nats.Conn, sightings Sightings, now func() time.Time, log zerolog.Logger) *Assigner {
	a := &Assigner{
		fleet: fleet, name: name, id: name + "." + rand.Text(), nc: nc, sightings: sightings, now: now,
		log: log.With().Str(logkey.Fleet, fleet).Logger(), peers: make(map[string]*peer),
	}
	a.Grow(shards)
	return a
}

// Grow sets the number of shards, which never decreases.
func (a *Assigner) Grow(shards int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for len(a.stands) < shards {
		a.stands = append(a.stands, shardStand{wake: make(chan struct{}, 1)})
	}
	a.shards, a.counted = len(a.stands), nil
	a.assign()
}

// Replicas counts the replicas that share the shards, this one included.
func (a *Assigner) Replicas() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.counted)
}

// Run takes part until ctx ends, then announces that it leaves and returns nil.
func (a *Assigner) Run(ctx context.Context) error {
	sub, err := a.nc.Subscribe(schema.ReplicaSubject(a.fleet), a.heard)
	if err != nil {
		return fmt.Errorf("listen to %s: %w", schema.ReplicaSubject(a.fleet), err)
	}
	defer func() { _ = sub.Unsubscribe() }() // fails only on a closed connection
	a.mu.Lock()
	a.began = a.now()
	a.mu.Unlock()
	a.announce(presence{})
	tick := time.NewTicker(announceEvery)
	defer tick.Stop()
	for at := a.now(); ; {
		select {
		case <-ctx.Done():
			a.announce(presence{Leaving: true})
			return nil
		case <-tick.C:
		}
		now := a.now()
		a.tick(now, now.Sub(at) > goneAfter-announceEvery)
		at = now
		a.announce(presence{Seen: a.sightings.TakeUnheard()})
	}
}

// tick removes replicas that are gone. late says that this replica itself was paused: it may not have read the
// others' announcements yet.
func (a *Assigner) tick(now time.Time, late bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for id, p := range a.peers {
		switch {
		case late:
			p.last = now
		case now.Sub(p.last) > goneAfter:
			delete(a.peers, id)
			a.log.Info().Str("replica", p.name).Msg("replica is gone")
		}
	}
	a.assign()
}

// announce publishes an announcement. A failed one is repeated a second later.
func (a *Assigner) announce(p presence) {
	p.Holder, p.ID = a.name, a.id
	body, err := json.Marshal(&p)
	if err == nil {
		err = a.nc.Publish(schema.ReplicaSubject(a.fleet), body)
	}
	if err != nil {
		a.log.Debug().Err(err).Msg("replica not announced")
	}
}

// heard handles another replica's announcement.
func (a *Assigner) heard(m *nats.Msg) {
	var p presence
	if len(m.Data) > maxPresence {
		return
	}
	if err := json.Unmarshal(m.Data, &p); err != nil || !schema.ValidName(p.Holder) || p.ID == "" || len(p.ID) > 2*schema.MaxName {
		a.log.Debug().Err(err).Msg("announcement of a replica cannot be read")
		return
	}
	if p.ID == a.id {
		return
	}
	a.sightings.HeardElsewhere(p.Seen)
	a.mu.Lock()
	defer a.mu.Unlock()
	now, known := a.now(), a.peers[p.ID]
	switch {
	case p.Leaving:
		if known != nil {
			delete(a.peers, p.ID)
			a.log.Info().Str("replica", p.Holder).Msg("replica leaves")
		}
	case known != nil:
		known.last = now
	case len(a.peers) < maxPeers:
		a.peers[p.ID] = &peer{name: p.Holder, first: now, last: now}
		a.log.Info().Str("replica", p.Holder).Msg("replica is there")
	}
	a.assign()
	for _, i := range p.Freed {
		if i >= 0 && i < len(a.stands) {
			a.wake(i)
		}
	}
}

// settled reports whether a replica counts: it has stayed for a while, or was there before this one.
func (a *Assigner) settled(p *peer, now time.Time) bool {
	return now.Sub(p.first) >= settling || p.first.Sub(a.began) < settling
}

// assign computes the assignment again if the counted replicas changed. Under a.mu.
func (a *Assigner) assign() {
	now, counted := a.now(), []string{a.id}
	for id, p := range a.peers {
		if a.settled(p, now) {
			counted = append(counted, id)
		}
	}
	slices.Sort(counted)
	if slices.Equal(counted, a.counted) {
		return
	}
	a.counted, a.owners = counted, assign(a.fleet, a.shards, counted)
	mine := 0
	for i := range a.stands {
		s := &a.stands[i]
		if a.owners[i] != a.id {
			if s.other.IsZero() {
				s.other = now
			}
			continue
		}
		mine++
		s.other = time.Time{}
		a.wake(i)
	}
	a.log.Info().Int("replicas", len(counted)).Int("mine", mine).Int("shards", a.shards).Msg("shards are shared again")
}

// wake tells the fold worker of a shard to try the lease. Under a.mu.
func (a *Assigner) wake(shard int) {
	select {
	case a.stands[shard].wake <- struct{}{}:
	default:
	}
}

// Mine reports whether the shard is assigned to this replica.
func (a *Assigner) Mine(shard int) bool {
	if a == nil {
		return true
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.owners[shard] == a.id
}

// Await waits until it is time to try the shard's lease again.
func (a *Assigner) Await(ctx context.Context, shard int, most time.Duration) error {
	if a == nil {
		return pause.For(ctx, most)
	}
	a.mu.Lock()
	wake := a.stands[shard].wake
	a.mu.Unlock()
	timer := time.NewTimer(most)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timer.C:
	case <-wake:
	}
	return nil
}

// Took records that this replica took the shard's lease. If the shard was handed over to another replica that did not
// take it, it stays here for a while.
func (a *Assigner) Took(shard int) {
	if a == nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	s := &a.stands[shard]
	if owner := a.owners[shard]; owner != a.id && owner == s.to {
		s.keep = a.now().Add(handOverAgain)
		a.log.Warn().Int(logkey.Shard, shard).Str("replica", a.nameOf(owner)).Msg("shard was handed over and not taken; it stays here for a while")
	}
	s.to = ""
}

// HandOver reports whether the shard must be released now for its assigned replica.
func (a *Assigner) HandOver(shard int) bool {
	if a == nil {
		return false
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	s, now := &a.stands[shard], a.now()
	if s.other.IsZero() || now.Sub(s.other) < settling || now.Before(s.keep) || now.Sub(a.handed) < handOverGap {
		return false
	}
	a.handed, s.to = now, a.owners[shard]
	a.log.Info().Int(logkey.Shard, shard).Str("replica", a.nameOf(s.to)).Msg("shard is handed over")
	return true
}

func (a *Assigner) nameOf(id string) string {
	if p := a.peers[id]; p != nil {
		return p.name
	}
	return id
}

// Freed announces that a lease was released.
func (a *Assigner) Freed(shard int) {
	if a != nil {
		a.announce(presence{Freed: []int{shard}})
	}
}
