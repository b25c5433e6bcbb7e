package kvstore

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/waymarkio/waymark/schema"
)

// LeaseFormat is the format version of stored leases.
const LeaseFormat = 1

// Limits of a lease's time to live.
const (
	// DefaultLeaseTTL is the time to live when none is given.
	DefaultLeaseTTL = 10 * time.Second
	// MinLeaseTTL and MaxLeaseTTL bound it, one's own and what is read of others.
	MinLeaseTTL = 100 * time.Millisecond
	MaxLeaseTTL = 10 * time.Minute
)

// leaseValue is a lease as stored. No time of a clock is in it: observers judge by how long they themselves
// have seen the revision unchanged.
type leaseValue struct {
	Format int `json:"format"`
	// Holder is empty when the lease was released.
	Holder string `json:"holder"`
	// Nonce is of one [Lease] value: it tells one's own put, whose answer got lost, from that of a namesake.
	Nonce string         `json:"nonce"`
	TTLms int64          `json:"ttl_ms"`
	Extra jsontext.Value `json:",embed"`
}

// LeaseConfig describes a lease.
type LeaseConfig struct {
	// Name of the lease: tokens of A-Z a-z 0-9 _ - with dots between. Required; see [FoldLease].
	Name string
	// Holder is shown to others; the name of the process. Required.
	Holder string
	// TTL is how long others wait after the last renewal that they saw; 0 means [DefaultLeaseTTL]. Renew
	// about three times within it.
	TTL time.Duration
}

// FoldLease is the name of the lease of a shard's fold worker.
func FoldLease(n schema.Names) string { return fmt.Sprintf("fold.%s.%d", n.Fleet, n.Shard) }

// Defaults returns the configuration with the defaults in place of zeros.
func (c LeaseConfig) Defaults() LeaseConfig {
	if c.TTL == 0 {
		c.TTL = DefaultLeaseTTL
	}
	return c
}

// Validate names the field that is out of range.
func (c LeaseConfig) Validate() error {
	if err := checkLeaseName(c.Name); err != nil {
		return err
	}
	if err := schema.CheckName("holder", c.Holder); err != nil {
		return err
	}
	if ttl := c.Defaults().TTL; ttl < MinLeaseTTL || ttl > MaxLeaseTTL {
		return fmt.Errorf("ttl of lease %s is %s, use %s to %s", c.Name, ttl, MinLeaseTTL, MaxLeaseTTL)
	}
	return nil
}

// Lease says who does a piece of work, so that nobody does it twice in vain. It is no lock: the work itself
// is guarded by compare-and-set on what it writes. A Lease has one owner and is not safe for concurrent use.
//
//	free ──Acquire──▶ held ──Renew──▶ held
//	  ▲                │ └──somebody else took it──▶ lost (ErrLeaseLost)
//	  └────Release─────┘
//
// Times are passed in and must carry Go's monotonic clock reading, as those of time.Now do: they are only
// ever compared with each other, never with another machine's.
type Lease struct {
	bucket bucket
	cfg    LeaseConfig
	nonce  string

	// held is the revision that is ours; 0 when the lease is not.
	held schema.Revision
	// renewed is when the last successful acquire or renew began.
	renewed time.Time
	// seen is the last revision of somebody else, since when it has been unchanged.
	seen  schema.Revision
	since time.Time
}

// NewLease returns a lease that is not held yet. It does no I/O.
func NewLease(js jetstream.JetStream, cfg LeaseConfig) (*Lease, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	return &Lease{bucket: newBucket(js, schema.LeaseBucket), cfg: cfg.Defaults(), nonce: rand.Text()}, nil
}

// checkLeaseName accepts tokens of names with dots between.
func checkLeaseName(name string) error {
	start := 0
	for i := 0; i <= len(name); i++ {
		if i < len(name) && name[i] != '.' {
			continue
		}
		if token := name[start:i]; !schema.ValidName(token) {
			return fmt.Errorf("lease %.80q: %w", name, &schema.NameError{What: "token", Name: token})
		}
		start = i + 1
	}
	return nil
}

// Acquire takes the lease if it is free, or if its holder was not seen to renew it for its time to live: so
// the first call on a held lease only begins to watch, and returns [ErrHeld] as a [*HeldError]. Call it
// again at intervals well below the time to live. now is the time before the call. On a lease that one
// holds it renews.
func (l *Lease) Acquire(ctx context.Context, now time.Time) error {
	return l.AcquireAfter(ctx, now, 0)
}

// AcquireAfter is Acquire for who should not be the first to take the lease: one that is free, or whose holder fell silent,
// is left to others for the time given, and taken then.
func (l *Lease) AcquireAfter(ctx context.Context, now time.Time, others time.Duration) error {
	if l.held != 0 {
		return l.Renew(ctx, now)
	}
	e, err := l.bucket.getFresh(ctx, l.cfg.Name)
	free := errors.Is(err, ErrNotFound)
	if err != nil && !free {
		return l.wrap("acquire", err)
	}
	v := leaseValue{Holder: "nobody"}
	if !free {
		v, err = decodeLease(e.value)
		switch {
		case errors.Is(err, schema.ErrFormat):
			return l.wrap("acquire", err)
		case err != nil:
			// Nobody can renew what nobody can read, but its writer may yet: wait like for any other.
			v = leaseValue{Holder: "(unreadable)", TTLms: l.cfg.TTL.Milliseconds()}
		case v.Nonce == l.nonce:
			// Our own put, whose answer got lost.
			return l.take(ctx, now, e.rev)
		case v.Holder == "":
			free, v.Holder = true, "nobody"
		}
	}
	if l.seen != e.rev || l.since.IsZero() {
		l.seen, l.since = e.rev, now
	}
	patience := others
	if !free {
		patience += l.patience(v)
	}
	if now.Sub(l.since) < patience {
		return &HeldError{Lease: l.cfg.Name, Holder: v.Holder}
	}
	return l.take(ctx, now, e.rev)
}

// patience is how long the lease of another must stand still: its time to live, within bounds, and not
// less than ours, so that a slow clock of one is no advantage to the other.
func (l *Lease) patience(v leaseValue) time.Duration {
	ms := min(max(v.TTLms, 0), MaxLeaseTTL.Milliseconds())
	return max(time.Duration(ms)*time.Millisecond, l.cfg.TTL)
}

func (l *Lease) take(ctx context.Context, now time.Time, rev schema.Revision) error {
	next, err := l.put(ctx, l.cfg.Holder, rev)
	if errors.Is(err, ErrConflict) {
		// Somebody was faster, just now.
		l.since = time.Time{}
		return &HeldError{Lease: l.cfg.Name, Holder: "another replica"}
	}
	if err != nil {
		return l.wrap("acquire", err)
	}
	l.held, l.renewed, l.since = next, now, time.Time{}
	return nil
}

// Renew tells the others that the holder is alive. now is the time before the call. [ErrLeaseLost] means
// that somebody else holds it; after any other error the lease is ours as long as [Lease.Valid] says so, and
// Renew is to be called again.
func (l *Lease) Renew(ctx context.Context, now time.Time) error {
	if l.held == 0 {
		return l.wrap("renew", ErrLeaseLost)
	}
	next, err := l.put(ctx, l.cfg.Holder, l.held)
	if errors.Is(err, ErrConflict) {
		next, err = l.putAgain(ctx, l.cfg.Holder)
	}
	if err != nil {
		return l.wrap("renew", err)
	}
	l.held, l.renewed = next, now
	return nil
}

// putAgain puts over what stands there, if that is an earlier renewal of our own whose answer got lost.
func (l *Lease) putAgain(ctx context.Context, holder string) (schema.Revision, error) {
	e, err := l.bucket.getFresh(ctx, l.cfg.Name)
	if err != nil && !errors.Is(err, ErrNotFound) {
		return 0, err
	}
	if err == nil {
		if v, err := decodeLease(e.value); err == nil && v.Nonce == l.nonce && v.Holder != "" {
			next, err := l.put(ctx, holder, e.rev)
			if !errors.Is(err, ErrConflict) {
				return next, err
			}
		}
	}
	l.held = 0
	return 0, ErrLeaseLost
}

// Valid reports whether nobody else can have taken the lease by now: it was acquired or renewed less than
// 7/8 of its time to live ago. The rest is for clocks that run at different speeds.
func (l *Lease) Valid(now time.Time) bool {
	return l.held != 0 && now.Sub(l.renewed) < l.cfg.TTL-l.cfg.TTL/8
}

// Stands makes sure, from the leader, that nobody else has taken the lease: whoever takes it does so before it begins the work.
// Read the revision of what is to be replaced, then call this, then put by compare-and-set: that fails if anybody who holds
// the lease since has put there. It returns [ErrLeaseLost], and may be called beside the other methods.
func (l *Lease) Stands(ctx context.Context) error {
	e, err := l.bucket.getFresh(ctx, l.cfg.Name)
	if errors.Is(err, ErrNotFound) {
		return l.wrap("look at", ErrLeaseLost)
	}
	if err != nil {
		return l.wrap("look at", err)
	}
	if v, err := decodeLease(e.value); err != nil || v.Nonce != l.nonce {
		return l.wrap("look at", errors.Join(ErrLeaseLost, err))
	}
	return nil
}

// Release gives the lease up, so that the next Acquire of anybody gets it at once. It returns
// [ErrLeaseLost] if it was not ours any more.
func (l *Lease) Release(ctx context.Context) error {
	if l.held == 0 {
		return l.wrap("release", ErrLeaseLost)
	}
	rev := l.held
	l.held = 0
	_, err := l.put(ctx, "", rev)
	if errors.Is(err, ErrConflict) { // a renewal that was given up on the way may have arrived
		_, err = l.putAgain(ctx, "")
	}
	if err != nil {
		return l.wrap("release", err)
	}
	return nil
}

func (l *Lease) put(ctx context.Context, holder string, rev schema.Revision) (schema.Revision, error) {
	v := leaseValue{Format: LeaseFormat, Holder: holder, Nonce: l.nonce, TTLms: l.cfg.TTL.Milliseconds()}
	if holder == "" {
		v.Nonce = "" // a lease given up is nobody's, not even ours
	}
	b, err := json.Marshal(v, json.Deterministic(true))
	if err != nil {
		return 0, err
	}
	return l.bucket.put(ctx, l.cfg.Name, b, rev)
}

func (l *Lease) wrap(verb string, err error) error {
	return fmt.Errorf("%s lease %s: %w", verb, l.cfg.Name, err)
}

func decodeLease(b []byte) (leaseValue, error) {
	var v leaseValue
	if err := json.Unmarshal(b, &v); err != nil {
		return v, fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	if v.Format != LeaseFormat {
		return v, fmt.Errorf("format %d: %w", v.Format, schema.ErrFormat)
	}
	return v, nil
}

// Holder returns who holds a lease by name, for people; "" when it is free. Whether the holder is alive
// only its renewals tell.
func Holder(ctx context.Context, js jetstream.JetStream, name string) (string, error) {
	if err := checkLeaseName(name); err != nil {
		return "", err
	}
	b := newBucket(js, schema.LeaseBucket)
	e, err := b.getFresh(ctx, name)
	if errors.Is(err, ErrNotFound) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("lease %s: %w", name, err)
	}
	v, err := decodeLease(e.value)
	if err != nil {
		return "", fmt.Errorf("lease %s: %w", name, err)
	}
	return v.Holder, nil
}
