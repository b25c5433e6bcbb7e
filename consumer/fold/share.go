package fold

import (
	"sync"
	"time"
)

// Share spreads the shards of a fleet over the replicas of its daemon. It needs no messages between them: a replica
// learns from the leases which replica holds which shard. All fold workers of a process use one Share.
//
//	a lease is free ──delay that grows with the leases that this replica holds──▶ taken
//	another replica holds two more than this one ──▶ this one asks for one in the lease itself
//	the holder renews, finds the request, and still holds two more ──▶ it commits and releases the shard
//
// So the numbers of two replicas differ by one at most after a while. A replica that stops releases its leases, and
// those of a dead or paused one expire. Share only decides which replica takes a lease first; lease and
// compare-and-set ensure that a shard is folded once.
//
// A nil *Share is for a daemon without other replicas: it takes each lease at once and hands none over.
type Share struct {
	name string
	// step is the delay for each lease held, and patience how long a request for a lease or a hand-over may take.
	step, patience time.Duration
	now            func() time.Time
	// turn is held during a try for a free lease: the next one knows its result.
	turn sync.Mutex

	mu sync.Mutex
	// holders of the leases as last seen, by shard; empty for a free one.
	holders []string
	// gave is when a shard was last handed over.
	gave []time.Time
	// asked is when this replica last asked for a shard; zero if it took one since.
	asked time.Time
}

const (
	// defaultLeaseTTL is the default of [Config].LeaseTTL.
	defaultLeaseTTL = 5 * time.Second
	// shareSteps is the number of delays within a lease's time to live.
	shareSteps = 20
	// mostSteps bounds the delay, so that a replica that is alone takes many shards in a short time.
	mostSteps = 16
)

// NewShare returns the share of a replica in a fleet with a number of shards. name is the holder of its leases; two
// replicas need two names. ttl is the time to live of the leases; 0 means the default of [Config].
func NewShare(name string, shards int, ttl time.Duration, now func() time.Time) *Share {
	if ttl == 0 {
		ttl = defaultLeaseTTL
	}
	return &Share{name: name, step: ttl / shareSteps, patience: ttl, now: now, holders: make([]string, shards), gave: make([]time.Time, shards)}
}

// delay is how long a free lease is left to other replicas.
func (s *Share) delay(shard int) time.Duration {
	if s == nil {
		return 0
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.gave[shard].IsZero() && s.now().Sub(s.gave[shard]) < s.patience {
		return s.patience
	}
	return time.Duration(min(s.count(s.name), mostSteps)) * s.step
}

// try calls acquire, one call at a time, so that each knows the leases that this replica holds.
func (s *Share) try(acquire func() error) error {
	if s == nil {
		return acquire()
	}
	s.turn.Lock()
	defer s.turn.Unlock()
	return acquire()
}

// saw notes the holder of a shard's lease; empty for a free one.
func (s *Share) saw(shard int, holder string) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.holders[shard] = holder
	if holder == s.name {
		s.asked, s.gave[shard] = time.Time{}, time.Time{}
	}
}

// asks reports whether this replica should ask the holder of a lease for it: the holder has at least two shards more.
// It asks for one shard at a time.
func (s *Share) asks(holder string) bool {
	if s == nil {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	if !s.asked.IsZero() && now.Sub(s.asked) < s.patience || s.count(holder) < s.count(s.name)+2 {
		return false
	}
	s.asked = now
	return true
}

// unasked takes the last asks back: the request was not stored.
func (s *Share) unasked() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked = time.Time{}
}

// yields reports whether this replica hands a shard over to another one that asked for it.
func (s *Share) yields(shard int, to string) bool {
	if s == nil || to == "" || to == s.name {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.count(s.name) < s.count(to)+2 {
		return false
	}
	s.holders[shard], s.gave[shard] = "", s.now()
	return true
}

// count is called under s.mu.
func (s *Share) count(holder string) (n int) {
	for _, h := range s.holders {
		if h == holder {
			n++
		}
	}
	return n
}
