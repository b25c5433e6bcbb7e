package consumer

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
	// announceEvery is how often a replica says that it is there.
	announceEvery = time.Second
	// presence is the silence after which a replica counts as gone: three announcements, well below the time to live of
	// a lease, so that the others know who is next when a lease runs out.
	presence = 3 * announceEvery
	// settling is how long a replica that came must stay before shards are handed over to it, and how long an assignment
	// must stand.
	settling = 2 * time.Second
	// handOverGap is the least time between two hand-overs of a replica: one shard after the other.
	handOverGap = 250 * time.Millisecond
	// handOverAgain is how long a shard is kept by who had to take it back because its replica did not fold it.
	handOverAgain = time.Minute
	// maxPeers bounds the replicas that are known; more are not counted.
	maxPeers = 64
	// maxSeen bounds the executors that one announcement names.
	maxSeen = 512
	// maxAnnouncement is the largest announcement that is read, in bytes.
	maxAnnouncement = 256 << 10
)

// Balance is how the replicas of a daemon share the shards of a fleet. Each says once a second over core NATS that it is
// there, and each computes by itself who is to fold what; see assign. It only says who should ask for a lease first, and
// who should give one up: that a shard is folded once goes by lease and compare-and-set alone, and who hears nobody
// folds whatever is free.
//
//	a replica comes ──settled──▶ others hand shards over: commit, release, tell ──▶ it takes them at once
//	a replica stops: release, tell ──▶ those who are next take them at once
//	a replica is killed ──silence──▶ it is not counted ──lease runs out──▶ those who are next take them
//	a replica is paused for less than the lease ──▶ nothing moves
//	who is next does not take a shard ──one more time to live──▶ anybody does, and keeps it for a while
//
// Announcements also name the executors that a replica saw alive by their events alone, so that an executor that never
// heartbeats is alive for the folders of all its runs.
//
// A nil *Balance stands for a daemon that has no replicas: every shard is its own. All methods may be called at any time
// from any goroutine.
type Balance struct {
	fleet, name, id string
	nc              *nats.Conn
	heartbeats      *Heartbeats
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

// peer is another replica.
type peer struct {
	name string
	// first is since when it has been heard without a break, and last when it was.
	first, last time.Time
}

// shardStand is how this replica stands to a shard.
type shardStand struct {
	// wake tells the folder to ask for the lease now.
	wake chan struct{}
	// other is since when the shard is another's.
	other time.Time
	// to is who it was handed over to, and keep until when it is not handed over again.
	to   string
	keep time.Time
}

// announcement is what replicas tell each other.
type announcement struct {
	Holder string `json:"holder"`
	// ID tells one start of a replica from others under its name.
	ID string `json:"id"`
	// Leaving: the replica stops now.
	Leaving bool `json:"leaving,omitzero"`
	// Freed shards, whose lease was just released.
	Freed []int `json:"freed,omitzero"`
	// Seen are executors that were seen alive by their events and not by heartbeats.
	Seen []seenExecutor `json:"seen,omitzero"`
}

type seenExecutor struct {
	Executor string `json:"executor"`
	Instance string `json:"instance,omitzero"`
}

// NewBalance returns the share of a replica in a fleet's shards. name is the holder of its leases. Call Run to take part;
// before, every shard is its own.
func NewBalance(fleet, name string, shards int, nc *nats.Conn, heartbeats *Heartbeats, now func() time.Time, log zerolog.Logger) *Balance {
	b := &Balance{
		fleet: fleet, name: name, id: name + "." + rand.Text(), nc: nc, heartbeats: heartbeats, now: now,
		log: log.With().Str(logkey.Fleet, fleet).Logger(), peers: make(map[string]*peer),
	}
	b.Grow(shards)
	return b
}

// Grow sets the number of shards, which never falls.
func (b *Balance) Grow(shards int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for len(b.stands) < shards {
		b.stands = append(b.stands, shardStand{wake: make(chan struct{}, 1)})
	}
	b.shards, b.counted = len(b.stands), nil
	b.assign()
}

// Replicas counts those that share the shards, this one included.
func (b *Balance) Replicas() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.counted)
}

// Run takes part until ctx ends, and then says that it leaves. It returns nil then.
func (b *Balance) Run(ctx context.Context) error {
	sub, err := b.nc.Subscribe(schema.ReplicaSubject(b.fleet), b.heard)
	if err != nil {
		return fmt.Errorf("listen to %s: %w", schema.ReplicaSubject(b.fleet), err)
	}
	defer func() { _ = sub.Unsubscribe() }() // fails only on a closed connection
	b.mu.Lock()
	b.began = b.now()
	b.mu.Unlock()
	b.announce(announcement{})
	tick := time.NewTicker(announceEvery)
	defer tick.Stop()
	for at := b.now(); ; {
		select {
		case <-ctx.Done():
			b.announce(announcement{Leaving: true})
			return nil
		case <-tick.C:
		}
		now := b.now()
		b.tick(now, now.Sub(at) > presence-announceEvery)
		at = now
		b.announce(announcement{Seen: b.heartbeats.takeUnheard()})
	}
}

// tick looks who is gone. late says that this replica itself was stopped: what the others said meanwhile may not have
// been read yet.
func (b *Balance) tick(now time.Time, late bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for id, p := range b.peers {
		switch {
		case late:
			p.last = now
		case now.Sub(p.last) > presence:
			delete(b.peers, id)
			b.log.Info().Str("replica", p.name).Msg("replica is gone")
		}
	}
	b.assign()
}

// announce tells the others. What is not sent is said a second later.
func (b *Balance) announce(a announcement) {
	a.Holder, a.ID = b.name, b.id
	body, err := json.Marshal(&a)
	if err == nil {
		err = b.nc.Publish(schema.ReplicaSubject(b.fleet), body)
	}
	if err != nil {
		b.log.Debug().Err(err).Msg("replica not announced")
	}
}

// heard takes what another replica says.
func (b *Balance) heard(m *nats.Msg) {
	var a announcement
	if len(m.Data) > maxAnnouncement {
		return
	}
	if err := json.Unmarshal(m.Data, &a); err != nil || !schema.ValidName(a.Holder) || a.ID == "" || len(a.ID) > 2*schema.MaxName {
		b.log.Debug().Err(err).Msg("announcement of a replica cannot be read")
		return
	}
	if a.ID == b.id {
		return
	}
	b.heartbeats.heardElsewhere(a.Seen)
	b.mu.Lock()
	defer b.mu.Unlock()
	now, p := b.now(), b.peers[a.ID]
	switch {
	case a.Leaving:
		if p != nil {
			delete(b.peers, a.ID)
			b.log.Info().Str("replica", a.Holder).Msg("replica leaves")
		}
	case p != nil:
		p.last = now
	case len(b.peers) < maxPeers:
		b.peers[a.ID] = &peer{name: a.Holder, first: now, last: now}
		b.log.Info().Str("replica", a.Holder).Msg("replica is there")
	}
	b.assign()
	for _, i := range a.Freed {
		if i >= 0 && i < len(b.stands) {
			b.wake(i)
		}
	}
}

// settled reports whether a replica counts: it has stayed for a while, or was there before this one.
func (b *Balance) settled(p *peer, now time.Time) bool {
	return now.Sub(p.first) >= settling || p.first.Sub(b.began) < settling
}

// assign computes who is to fold what, if the replicas that count changed. Under b.mu.
func (b *Balance) assign() {
	now, counted := b.now(), []string{b.id}
	for id, p := range b.peers {
		if b.settled(p, now) {
			counted = append(counted, id)
		}
	}
	slices.Sort(counted)
	if slices.Equal(counted, b.counted) {
		return
	}
	b.counted, b.owners = counted, assign(b.fleet, b.shards, counted)
	mine := 0
	for i := range b.stands {
		s := &b.stands[i]
		if b.owners[i] != b.id {
			if s.other.IsZero() {
				s.other = now
			}
			continue
		}
		mine++
		s.other = time.Time{}
		b.wake(i)
	}
	b.log.Info().Int("replicas", len(counted)).Int("mine", mine).Int("shards", b.shards).Msg("shards are shared anew")
}

// wake tells the folder of a shard to look at the lease. Under b.mu.
func (b *Balance) wake(shard int) {
	select {
	case b.stands[shard].wake <- struct{}{}:
	default:
	}
}

// mine reports whether the shard is this replica's to fold.
func (b *Balance) mine(shard int) bool {
	if b == nil {
		return true
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.owners[shard] == b.id
}

// await waits until it is time to look at the shard's lease again.
func (b *Balance) await(ctx context.Context, shard int, most time.Duration) error {
	if b == nil {
		return pause.For(ctx, most)
	}
	b.mu.Lock()
	wake := b.stands[shard].wake
	b.mu.Unlock()
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

// took notes that this replica took the shard's lease. If it is another's, who did not take it although it was handed
// over, it stays here for a while.
func (b *Balance) took(shard int) {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	s := &b.stands[shard]
	if owner := b.owners[shard]; owner != b.id && owner == s.to {
		s.keep = b.now().Add(handOverAgain)
		b.log.Warn().Int(logkey.Shard, shard).Str("replica", b.nameOf(owner)).Msg("shard was handed over and not taken; it stays here for a while")
	}
	s.to = ""
}

// handOver reports whether the shard is to be given up now to the replica that should have it.
func (b *Balance) handOver(shard int) bool {
	if b == nil {
		return false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	s, now := &b.stands[shard], b.now()
	if s.other.IsZero() || now.Sub(s.other) < settling || now.Before(s.keep) || now.Sub(b.handed) < handOverGap {
		return false
	}
	b.handed, s.to = now, b.owners[shard]
	b.log.Info().Int(logkey.Shard, shard).Str("replica", b.nameOf(s.to)).Msg("shard is handed over")
	return true
}

func (b *Balance) nameOf(id string) string {
	if p := b.peers[id]; p != nil {
		return p.name
	}
	return id
}

// freed tells the others that a lease was released.
func (b *Balance) freed(shard int) {
	if b != nil {
		b.announce(announcement{Freed: []int{shard}})
	}
}
