package kvstore

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/waymarkio/waymark/internal/base/keyring"
	"github.com/waymarkio/waymark/schema"
)

// NewKeyring returns the ring of a fleet's keys, from its stored settings, with the connection's key as the signer,
// which uses the server's time. It does no I/O. It returns keyring.ErrSigner for a connection whose key cannot sign.
func NewKeyring(js jetstream.JetStream, fleet string) (*keyring.Ring, error) {
	signer, err := keyring.SignerOf(js.Conn())
	if err != nil {
		return nil, err
	}
	return keyring.New(fleet, KeysOf(js, fleet), signer, NewFleets(js).ServerTime), nil
}

// KeysOf returns a function that reads a fleet's keys from its settings. It returns [ErrNotFound] or [ErrStreamMissing] for
// a fleet whose settings are not stored: it may have had keys.
func KeysOf(js jetstream.JetStream, fleet string) func(context.Context) ([]schema.FleetKey, error) {
	fleets := NewFleets(js)
	return func(ctx context.Context) ([]schema.FleetKey, error) {
		s, _, err := fleets.Get(ctx, fleet)
		return s.Keys, err
	}
}

// NewReadingKeyring returns the ring of a fleet's keys for a reader, which signs nothing. It does no I/O.
func NewReadingKeyring(js jetstream.JetStream, fleet string) *keyring.Ring {
	return keyring.New(fleet, KeysOf(js, fleet), nil, nil)
}

// ReadKeys returns a fleet's keys from its current settings.
func ReadKeys(ctx context.Context, js jetstream.JetStream, fleet string) (*schema.Keys, error) {
	return NewReadingKeyring(js, fleet).Keys(ctx)
}

// AddKey lets a daemon's public key sign the fleet's control events, after schema.KeyDelay, and returns the new
// settings. It changes nothing for a key that signs already. It returns [ErrSettings] for a key that is no public key
// of a NATS user, or was retired.
func (f *Fleets) AddKey(ctx context.Context, fleet, key string) (schema.FleetSettings, error) {
	return f.changeKeys(ctx, fleet, func(s *schema.FleetSettings, effect time.Time) error {
		i := keyIndex(s, key)
		switch {
		case i >= 0 && s.Keys[i].Until != "":
			return fmt.Errorf("%w: key %s was retired at %s: make another one", ErrSettings, key, s.Keys[i].Until)
		case i >= 0:
			return nil
		}
		s.Keys = append(slices.Clone(s.Keys), schema.FleetKey{Key: key, Since: schema.FormatTime(effect)})
		return nil
	})
}

// RetireKey ends a key's time after schema.KeyDelay: events that it signed before stay valid. It changes nothing for
// a retired key. It returns [ErrSettings] for a key that the fleet does not have, and for its last signing key.
func (f *Fleets) RetireKey(ctx context.Context, fleet, key string) (schema.FleetSettings, error) {
	return f.changeKeys(ctx, fleet, func(s *schema.FleetSettings, effect time.Time) error {
		i := keyIndex(s, key)
		switch {
		case i < 0:
			return fmt.Errorf("%w: fleet %s has no key %.80q", ErrSettings, fleet, key)
		case s.Keys[i].Until != "":
			return nil
		case !slices.ContainsFunc(s.Keys, func(k schema.FleetKey) bool { return k.Key != key && k.Until == "" }):
			return fmt.Errorf("%w: %s is the last key of fleet %s that signs: add another one first", ErrSettings, key, fleet)
		}
		s.Keys = slices.Clone(s.Keys)
		// A key retired before it took effect never signed.
		if since, err := time.Parse(time.RFC3339Nano, s.Keys[i].Since); err == nil && since.After(effect) {
			effect = since
		}
		s.Keys[i].Until = schema.FormatTime(effect)
		return nil
	})
}

// keyIndex is the index of a key, -1 for none.
func keyIndex(s *schema.FleetSettings, key string) int {
	return slices.IndexFunc(s.Keys, func(k schema.FleetKey) bool { return k.Key == key })
}

// changeKeys changes a fleet's keys. change gets the time, by the server's clock, at which the change takes effect. A
// change that was stored so late that readers may not know it by then is postponed, and returned as [ErrKeysLate].
func (f *Fleets) changeKeys(ctx context.Context, fleet string, change func(s *schema.FleetSettings, effect time.Time) error) (schema.FleetSettings, error) {
	now, err := f.ServerTime(ctx)
	if err != nil {
		return schema.FleetSettings{}, err
	}
	effect := now.Add(schema.KeyDelay)
	next, changed, err := f.putSettings(ctx, fleet, func(s *schema.FleetSettings) error { return change(s, effect) })
	var late error
	for err == nil && changed {
		if now, err = f.ServerTime(ctx); err != nil {
			return next, fmt.Errorf("keys of fleet %s were changed as of %s, and may have been stored too late: look with: waymark fleet keys: %w",
				fleet, schema.FormatTime(effect), err)
		}
		if effect.Sub(now) >= schema.KeysFresh {
			break
		}
		was, is := schema.FormatTime(effect), schema.FormatTime(now.Add(schema.KeyDelay))
		effect = now.Add(schema.KeyDelay)
		next, changed, err = f.putSettings(ctx, fleet, func(s *schema.FleetSettings) error {
			putOff(s, was, is)
			return nil
		})
		switch {
		case err != nil:
			err = fmt.Errorf("%w: fleet %s: it takes effect at %s, and could not be postponed to %s: %w", ErrKeysLate, fleet, was, is, err)
		case changed:
			late = fmt.Errorf("%w: fleet %s: it was to take effect at %s, and is postponed to %s", ErrKeysLate, fleet, was, is)
		}
	}
	return next, errors.Join(late, err)
}

// putOff changes the times of keys from one to the other.
func putOff(s *schema.FleetSettings, from, to string) {
	s.Keys = slices.Clone(s.Keys)
	for i := range s.Keys {
		for _, at := range []*string{&s.Keys[i].Since, &s.Keys[i].Until} {
			if *at == from {
				*at = to
			}
		}
	}
}

// putSettings stores the changed settings of a fleet, and reports whether they differ.
func (f *Fleets) putSettings(ctx context.Context, fleet string, change func(*schema.FleetSettings) error) (next schema.FleetSettings, changed bool, err error) {
	for range provisionTries {
		s, rev, err := f.Get(ctx, fleet)
		if err != nil {
			return s, false, err
		}
		next := s
		if err := change(&next); err != nil || reflect.DeepEqual(&next, &s) {
			return next, false, err
		}
		if err := CheckSettings(&next); err != nil {
			return s, false, err
		}
		if err := f.put(ctx, &next, rev); !errors.Is(err, ErrConflict) {
			return next, err == nil, err
		}
	}
	return schema.FleetSettings{}, false, fmt.Errorf("fleet %s: its settings keep changing: %w", fleet, ErrConflict)
}

// ServerTime returns the time by the clock of the server that stores the settings.
func (f *Fleets) ServerTime(ctx context.Context) (time.Time, error) {
	return ServerTime(ctx, f.bucket.js, f.bucket.stream)
}

// ServerTime returns the time by the clock of a stream's leader, which stamps its messages. It is behind by the
// answer's latency, never ahead.
func ServerTime(ctx context.Context, js jetstream.JetStream, stream string) (time.Time, error) {
	info, err := streamInfo(ctx, js, stream)
	if err == nil && info.TimeStamp.IsZero() {
		err = fmt.Errorf("%w: the state of stream %s does not have it", ErrUnavailable, stream)
	}
	if err != nil {
		return time.Time{}, fmt.Errorf("time of the server: %w", err)
	}
	return info.TimeStamp, nil
}

// firstKeys are those of a new fleet: the key of the provisioning connection, from the fleet's beginning.
func firstKeys(js jetstream.JetStream) ([]schema.FleetKey, error) {
	signer, err := keyring.SignerOf(js.Conn())
	if err != nil || signer == nil {
		return nil, err
	}
	return []schema.FleetKey{{Key: signer.Name}}, nil
}
