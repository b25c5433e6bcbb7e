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
	// MinLeaseTTL and MaxLeaseTTL bound it, for our own lease and for those read from others.
	MinLeaseTTL = 100 * time.Millisecond
	MaxLeaseTTL = 10 * time.Minute
)

// leaseValue is a stored lease. It has no clock time: observers measure how long they themselves have seen the
// revision unchanged.
type leaseValue struct {
	Format int `json:"format"`
	// Holder is empty if the lease was released.
	Holder string `json:"holder"`
	// Nonce identifies one [Lease] value: it distinguishes our own put with a lost answer from that of a process with
	// the same name.
	Nonce string `json:"nonce"`
	TTLms int64  `json:"ttl_ms"`
	// WantedBy is another process that asks the holder for the lease; the next renewal removes it.
	WantedBy string         `json:"wanted_by,omitzero"`
	Extra    jsontext.Value `json:",embed"`
}

// LeaseConfig describes a lease.
type LeaseConfig struct {
	// Name of the lease, from [FoldLease]. Required.
	Name string
	// Holder is the name of the process, shown to others. Required.
	Holder string
	// TTL is how long others wait after the last renewal that they saw. Required. Renew about three times within it.
	TTL time.Duration
}

// FoldLease is the name of the lease of a shard's fold worker.
func FoldLease(n schema.Names) string { return fmt.Sprintf("fold.%s.%d", n.Fleet, n.Shard) }

// Validate names the field that is out of range.
func (c LeaseConfig) Validate() error {
	if err := schema.CheckName("holder", c.Holder); err != nil {
		return err
	}
	if c.TTL < MinLeaseTTL || c.TTL > MaxLeaseTTL {
		return fmt.Errorf("ttl of lease %s is %s, use %s to %s", c.Name, c.TTL, MinLeaseTTL, MaxLeaseTTL)
	}
	return nil
}

// Lease elects one worker to avoid duplicate work. It is not a lock: writes are guarded by compare-and-set. A Lease
// has one owner and is not safe for concurrent use.
//
//	free ──Acquire──▶ held ──Renew──▶ held
//	  ▲                │ └──another process took it──▶ lost (ErrLeaseLost)
//	  └────Release─────┘
//
// Times are arguments and must have Go's monotonic clock reading, as from time.Now: they are only compared with each
// other, never with another machine's.
type Lease struct {
	bucket bucket
	cfg    LeaseConfig
	nonce  string

	// held is our own revision; 0 if we do not hold the lease.
	held schema.Revision
	// renewed is when the last successful acquire or renew began.
	renewed time.Time
	// seen is the last revision of another holder, and since when it was first seen.
	seen  schema.Revision
	since time.Time
	// other is the other holder's lease as last seen, and fresh whether that was its first sight after a
	// renewal.
	other leaseValue
	fresh bool
	// wanted is the process that asked for this lease before the last renewal.
	wanted string
}

// NewLease returns a lease that is not held yet. It does no I/O.
func NewLease(js jetstream.JetStream, cfg LeaseConfig) (*Lease, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	return &Lease{bucket: newBucket(js, schema.LeaseBucket), cfg: cfg, nonce: rand.Text()}, nil
}

// Acquire takes the lease if it is free, or if its holder was not seen to renew it for its time to live. So the first
// call on a held lease only begins to watch, and returns [ErrHeld] as a [*HeldError]. Call it again at intervals well
// below the time to live. now is the time before the call. A process that should not be the first to take the lease
// leaves a free one, or one whose holder fell silent, to others for the given time. On our own lease it renews.
func (l *Lease) Acquire(ctx context.Context, now time.Time, others time.Duration) error {
	if l.held != 0 {
		return l.Renew(ctx, now)
	}
	e, err := l.bucket.getFresh(ctx, l.cfg.Name)
	free := errors.Is(err, ErrNotFound)
	if err != nil && !free {
		return l.wrap("acquire", err)
	}
	v := leaseValue{Holder: "(free)"}
	if !free {
		v, err = decodeLease(e.value)
		switch {
		case errors.Is(err, schema.ErrFormat):
			return l.wrap("acquire", err)
		case err != nil:
			// No process can renew an unreadable lease, except perhaps its writer: wait as for any other.
			v = leaseValue{Holder: "(unreadable)", TTLms: l.cfg.TTL.Milliseconds()}
		case v.Nonce == l.nonce:
			// Our own put, whose answer was lost.
			return l.take(ctx, now, e.rev)
		case v.Holder == "":
			free, v.Holder = true, "(free)"
		}
	}
	l.other, l.fresh = v, l.seen != e.rev && !l.since.IsZero()
	if l.seen != e.rev || l.since.IsZero() {
		l.seen, l.since = e.rev, now
	}
	patience := others
	if !free {
		patience += l.patience(v)
	}
	if now.Sub(l.since) < patience {
		return &HeldError{Lease: l.cfg.Name, Holder: v.Holder, Free: free}
	}
	return l.take(ctx, now, e.rev)
}

// Ask asks the holder of the lease for it, after an Acquire that returned [ErrHeld]: the holder finds the request when
// it renews, and decides ([Lease.WantedBy]). It asks only a holder that renewed since the Acquire before, and that no
// other process asks: a request counts as a renewal for observers, and must not keep a dead holder's lease alive. It
// reports whether the request is stored.
func (l *Lease) Ask(ctx context.Context) (bool, error) {
	if !l.fresh || l.held != 0 || l.other.Nonce == "" || l.other.WantedBy != "" {
		return false, nil
	}
	v := l.other
	v.WantedBy = l.cfg.Holder
	b, err := json.Marshal(v, json.Deterministic(true))
	if err != nil {
		return false, l.wrap("ask for", err)
	}
	rev, err := l.bucket.put(ctx, l.cfg.Name, b, l.seen)
	switch {
	case errors.Is(err, ErrConflict):
		return false, nil // the holder renewed, or released it
	case err != nil:
		return false, l.wrap("ask for", err)
	}
	l.seen, l.fresh = rev, false
	return true, nil
}

// WantedBy is the holder name of a process that asked for this lease before its last renewal; empty for none.
func (l *Lease) WantedBy() string { return l.wanted }

// patience is how long another's lease must stay unchanged: its time to live, within bounds, and not less than ours,
// so that a slow clock of one is no advantage to the other.
func (l *Lease) patience(v leaseValue) time.Duration {
	ms := min(max(v.TTLms, 0), MaxLeaseTTL.Milliseconds())
	return max(time.Duration(ms)*time.Millisecond, l.cfg.TTL)
}

func (l *Lease) take(ctx context.Context, now time.Time, rev schema.Revision) error {
	next, err := l.put(ctx, l.cfg.Holder, rev)
	if errors.Is(err, ErrConflict) {
		// Another process was faster.
		l.since = time.Time{}
		return &HeldError{Lease: l.cfg.Name, Holder: "another replica"}
	}
	if err != nil {
		return l.wrap("acquire", err)
	}
	l.held, l.renewed, l.since = next, now, time.Time{}
	return nil
}

// Renew tells the others that the holder is alive. now is the time before the call. [ErrLeaseLost] means that another
// process holds it; after any other error the lease is ours while [Lease.Valid] says so, and Renew must be called
// again.
func (l *Lease) Renew(ctx context.Context, now time.Time) error {
	if l.held == 0 {
		return l.wrap("renew", ErrLeaseLost)
	}
	l.wanted = ""
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

// putAgain puts the lease again if the stored value is our own earlier renewal, whose answer was lost, or has the
// request of another process.
func (l *Lease) putAgain(ctx context.Context, holder string) (schema.Revision, error) {
	e, err := l.bucket.getFresh(ctx, l.cfg.Name)
	if err != nil && !errors.Is(err, ErrNotFound) {
		return 0, err
	}
	if err == nil {
		if v, err := decodeLease(e.value); err == nil && v.Nonce == l.nonce && v.Holder != "" {
			l.wanted = v.WantedBy
			next, err := l.put(ctx, holder, e.rev)
			if !errors.Is(err, ErrConflict) {
				return next, err
			}
		}
	}
	l.held = 0
	return 0, ErrLeaseLost
}

// Valid reports whether no other process can have taken the lease yet: it was acquired or renewed less than 7/8 of
// its time to live ago. The rest is for clocks that run at different speeds.
func (l *Lease) Valid(now time.Time) bool {
	return l.held != 0 && now.Sub(l.renewed) < l.cfg.TTL-l.cfg.TTL/8
}

// Release gives the lease up, so that the next Acquire of any process gets it at once. It returns [ErrLeaseLost] if
// it was not ours any more.
func (l *Lease) Release(ctx context.Context) error {
	if l.held == 0 {
		return l.wrap("release", ErrLeaseLost)
	}
	rev := l.held
	l.held = 0
	_, err := l.put(ctx, "", rev)
	if errors.Is(err, ErrConflict) { // an abandoned renewal may have arrived
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
		v.Nonce = "" // a released lease belongs to no process, not even ours
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

func decodeLease(b []byte) (leaseValue, error) { return decodeFormat[leaseValue](b, LeaseFormat) }

// Holder returns the holder of a lease, for people; "" if it is free. Only its renewals show whether the holder is
// alive.
func Holder(ctx context.Context, js jetstream.JetStream, name string) (string, error) {
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
