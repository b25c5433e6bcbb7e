package keyring

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nkeys"

	"github.com/waymarkio/waymark/schema"
)

// ErrKeys comes when a fleet's keys are invalid or unreadable. The message says what is wrong; waymark fleet keys ls
// shows them.
var ErrKeys = errors.New("keys of the fleet")

// ErrSigner comes when a connection may not sign: the fleet has keys, and the connection's is not among them. The
// message names the key and the next step.
var ErrSigner = errors.New("control events cannot be signed")

// ErrRead comes when the fleet's keys could not be read: nothing is folded with older ones. Try again.
var ErrRead = errors.New("the fleet's keys could not be read")

// patience bounds one read of the settings.
const patience = 5 * time.Second

// Parse returns the keys of a fleet's settings.
func Parse(fleet string, list []schema.FleetKey) (*schema.Keys, error) {
	if len(list) > schema.MaxKeys {
		return nil, fmt.Errorf("%w: %d keys, %d are the most", ErrKeys, len(list), schema.MaxKeys)
	}
	keys := make([]schema.Key, len(list))
	for i, k := range list {
		public, err := nkeys.Decode(nkeys.PrefixByteUser, []byte(k.Key))
		if err != nil {
			return nil, fmt.Errorf("%w: %.80q is no public key of a NATS user (U…): %w", ErrKeys, k.Key, err)
		}
		keys[i] = schema.Key{Name: k.Key, Public: public}
		for text, to := range map[string]*int64{k.Since: &keys[i].Since, k.Until: &keys[i].Until} {
			if text == "" {
				continue
			}
			at, err := time.Parse(time.RFC3339Nano, text)
			if err != nil {
				return nil, fmt.Errorf("%w: %s: %w", ErrKeys, k.Key, err)
			}
			*to = at.UnixNano()
		}
	}
	parsed, err := schema.NewKeys(fleet, keys)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrKeys, err)
	}
	return parsed, nil
}

// Ring holds the keys of a fleet. It may be used from several goroutines.
type Ring struct {
	fleet  string
	read   func(context.Context) ([]schema.FleetKey, error)
	signer *Signer
	clock  func(context.Context) (time.Time, error)
	fresh  time.Duration
	turn   chan struct{}

	mu   sync.Mutex
	keys *schema.Keys
	// at is when the read that returned them began.
	at time.Time
	// said is the server's time, for the signer, and heard its arrival.
	said, heard time.Time
}

// New returns the ring of a fleet. read reads its keys from its settings, from their leader; nil keys mean a fleet
// without keys. signer is that of a daemon, which signs with the server's time from clock. Both are nil for a ring
// that signs nothing.
func New(fleet string, read func(context.Context) ([]schema.FleetKey, error), signer *Signer, clock func(context.Context) (time.Time, error)) *Ring {
	return &Ring{fleet: fleet, read: read, signer: signer, clock: clock, fresh: schema.KeysFresh, turn: make(chan struct{}, 1)}
}

// Keys returns the fleet's keys, read at most schema.KeysFresh ago: call it once the event to fold is there. It
// returns [ErrRead] or [ErrKeys].
func (r *Ring) Keys(ctx context.Context) (*schema.Keys, error) {
	if keys := r.current(); keys != nil {
		return keys, nil
	}
	select {
	case r.turn <- struct{}{}:
		defer func() { <-r.turn }()
	case <-ctx.Done():
		return nil, fmt.Errorf("fleet %s: %w: %w", r.fleet, ErrRead, context.Cause(ctx))
	}
	if keys := r.current(); keys != nil {
		return keys, nil // another caller has read them
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	began := time.Now()
	list, err := r.read(ctx)
	if err != nil {
		return nil, fmt.Errorf("fleet %s: %w: %w", r.fleet, ErrRead, err)
	}
	return r.set(list, began)
}

// Set gives the ring the keys of a read of the settings that began at a time.
func (r *Ring) Set(list []schema.FleetKey, began time.Time) error {
	_, err := r.set(list, began)
	return err
}

func (r *Ring) set(list []schema.FleetKey, began time.Time) (*schema.Keys, error) {
	keys, err := Parse(r.fleet, list)
	if err != nil {
		return nil, fmt.Errorf("fleet %s: %w", r.fleet, err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.keys.Any() && !keys.Any() {
		// The last signing key cannot be retired: these are not the fleet's settings.
		return nil, fmt.Errorf("fleet %s: %w: it had keys and has none now: restore its settings from a backup", r.fleet, ErrKeys)
	}
	if r.keys == nil || began.After(r.at) {
		r.keys, r.at = keys, began
	}
	return r.keys, nil
}

// current returns the keys, or nil if they are too old. Either clock may stand still while a process is stopped.
func (r *Ring) current() *schema.Keys {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.keys == nil || time.Since(r.at) >= r.fresh || time.Now().Round(0).Sub(r.at.Round(0)) >= r.fresh {
		return nil
	}
	return r.keys
}

// Sign signs a control event for the place after a run's digest. Without a signer it leaves the event unchanged in a
// fleet without keys, and returns [ErrSigner] in a fleet with keys; it also does so if the signer's key does not
// belong to the fleet, is not in effect yet, or its end is near.
func (r *Ring) Sign(ctx context.Context, e *schema.Event, digest string) error {
	keys, err := r.Keys(ctx)
	if err != nil {
		return err
	}
	now, err := r.served(ctx, keys)
	if err != nil {
		return err
	}
	if err := r.signer.May(keys, now); err != nil {
		return fmt.Errorf("fleet %s: %w", r.fleet, err)
	}
	if r.signer == nil {
		return nil
	}
	return e.Sign(r.signer.Name, digest, r.signer.sign)
}

// CheckSigner reports whether the ring's signer may sign, like [Ring.Sign], and after how long: until then its key is
// not in effect.
func (r *Ring) CheckSigner(ctx context.Context) (wait time.Duration, err error) {
	keys, err := r.Keys(ctx)
	if err != nil {
		return 0, err
	}
	now, err := r.served(ctx, keys)
	if err != nil {
		return 0, err
	}
	if r.signer != nil && r.signer.early(keys, now) {
		key, _ := keys.Key(r.signer.Name)
		begins := time.Unix(0, key.Since)
		now, wait = begins, begins.Sub(now)
	}
	if err := r.signer.May(keys, now); err != nil {
		return 0, fmt.Errorf("fleet %s: %w", r.fleet, err)
	}
	return wait, nil
}

// served is the time by the server's clock, as reported at most schema.KeysFresh ago. It is behind by the answer's
// latency, never ahead. It is not read if no time is needed to sign.
func (r *Ring) served(ctx context.Context, keys *schema.Keys) (time.Time, error) {
	if r.signer == nil || !keys.Any() {
		return time.Time{}, nil
	}
	r.mu.Lock()
	said, heard := r.said, r.heard
	r.mu.Unlock()
	if said.IsZero() || time.Since(heard) >= r.fresh || time.Now().Round(0).Sub(heard.Round(0)) >= r.fresh {
		ctx, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		var err error
		if said, err = r.clock(ctx); err != nil {
			return said, fmt.Errorf("fleet %s: %w: %w", r.fleet, ErrRead, err)
		}
		heard = time.Now()
		r.mu.Lock()
		r.said, r.heard = said, heard
		r.mu.Unlock()
	}
	return said.Add(time.Since(heard)), nil
}

// Signer is the ring's signer; nil for none.
func (r *Ring) Signer() *Signer { return r.signer }
