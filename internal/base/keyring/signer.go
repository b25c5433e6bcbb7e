package keyring

import (
	"fmt"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"

	"github.com/waymarkio/waymark/schema"
)

// Signer signs with the key by which a connection proves itself to the server.
type Signer struct {
	// Name is the public key, as NATS writes it (U…).
	Name string
	sign func([]byte) ([]byte, error)
}

// SignerOf returns the signer of a connection: its NKey, or the key of its credentials file. It is nil for a
// connection with only password, token or certificate, which has no key.
func SignerOf(nc *nats.Conn) (*Signer, error) {
	opts := &nc.Opts
	if opts.SignatureCB == nil {
		return nil, nil
	}
	name := opts.Nkey
	if name == "" && opts.UserJWT != nil {
		text, err := opts.UserJWT()
		if err != nil {
			return nil, fmt.Errorf("%w: read the credentials: %w", ErrSigner, err)
		}
		claims, err := jwt.DecodeUserClaims(text)
		if err != nil {
			return nil, fmt.Errorf("%w: read the credentials: %w", ErrSigner, err)
		}
		name = claims.Subject
	}
	if name == "" {
		return nil, nil
	}
	public, err := nkeys.FromPublicKey(name)
	if err != nil {
		return nil, fmt.Errorf("%w: its key %.80q: %w", ErrSigner, name, err)
	}
	s := &Signer{Name: name, sign: func(text []byte) ([]byte, error) {
		signature, err := opts.SignatureCB(text)
		if err == nil {
			// The file with the seed may have been replaced since the connection was made.
			err = public.Verify(text, signature)
		}
		return signature, err
	}}
	if _, err := s.sign([]byte("waymark probe")); err != nil {
		return nil, fmt.Errorf("%w: its seed does not belong to its key %s: %w", ErrSigner, name, err)
	}
	return s, nil
}

// stopBefore is how long before a key's end a daemon stops signing with it, so that its events are stored in time.
const stopBefore = 15 * time.Second

// May returns why a daemon may not sign at a time of the server's clock, as [ErrSigner], or nil. A nil Signer is a
// daemon without a key.
func (s *Signer) May(keys *schema.Keys, now time.Time) error {
	if !keys.Any() {
		return nil
	}
	if s == nil {
		return fmt.Errorf("%w: the fleet has keys, and the daemon connects without an NKey or credentials file: start it with --nkey FILE, --creds FILE or a context that has one", ErrSigner)
	}
	key, ok := keys.Key(s.Name)
	switch {
	case !ok:
		return fmt.Errorf("%w: its key %s is none of the fleet's", ErrSigner, s.Name)
	case s.early(keys, now):
		return fmt.Errorf("%w: its key %s takes effect at %s: try again then", ErrSigner, s.Name, schema.FormatTime(time.Unix(0, key.Since)))
	case key.Until != 0 && now.Add(stopBefore).UnixNano() >= key.Until:
		return fmt.Errorf("%w: its key %s is retired (%s): start it with another key of the fleet", ErrSigner, s.Name, schema.FormatTime(time.Unix(0, key.Until)))
	}
	return nil
}

// early reports whether the fold refuses signatures of the signer's key at a time of the server's clock, because the
// key is not in effect yet. Before the fleet's first key is in effect, nothing is refused.
func (s *Signer) early(keys *schema.Keys, now time.Time) bool {
	key, ok := keys.Key(s.Name)
	return ok && now.UnixNano() < key.Since && now.Add(stopBefore).UnixNano() >= keys.Since() && key.Since > keys.Since()
}
