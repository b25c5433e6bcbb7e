package natsd

import (
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/waymarkio/waymark/internal/base/encryption"
	"github.com/waymarkio/waymark/internal/nats/natsconn"
)

// storeKey is a file of the state directory: the store's own key, encrypted with a given key. The store's key never
// changes, so a new given key takes effect at once: the store is not written again, and an interrupted start leaves
// it unchanged.
type storeKey struct {
	// KeyID names the given key, and Wrapped is the store's key in its cipher text.
	KeyID   string `json:"key_id"`
	Wrapped []byte `json:"wrapped"`
}

const wrapPurpose = "waymark store key"

// secret is the key with which the server encrypts its store; empty for a store without encryption. It is checked
// before the server starts: a server with another key skips the streams that it cannot read, and would create new
// ones instead.
func (s *Server) secret() (string, error) {
	path, keys := s.layout.StoreKey(), s.cfg.StoreKeys
	var stored storeKey
	err := natsconn.ReadState(path, &stored)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return s.newSecret(path)
	case err != nil:
		return "", fmt.Errorf("%w: %s: %w; put it back from a copy of the directory; nothing was changed", ErrStoreKey, path, err)
	case keys == nil:
		return "", fmt.Errorf("%w: the store in %s is encrypted with key %s: give the file that has it with --store-key-file; nothing was changed",
			ErrStoreKey, s.layout.Root, stored.KeyID)
	}
	inner, err := keys.Unwrap(stored.KeyID, wrapPurpose, stored.Wrapped)
	switch {
	case errors.Is(err, encryption.ErrNoKey):
		return "", fmt.Errorf("%w: the store in %s is encrypted with key %s, which the key file does not have: add its line; "+
			"if the key is lost, restore a backup into another state directory; nothing was changed", ErrStoreKey, s.layout.Root, stored.KeyID)
	case err != nil:
		return "", fmt.Errorf("%w: key %s of the key file does not open the store in %s: %w; give the right one; nothing was changed",
			ErrStoreKey, stored.KeyID, s.layout.Root, err)
	}
	if stored.KeyID != keys.Current {
		if err := s.wrap(path, inner); err != nil {
			return "", err
		}
		s.log.logger.Info().Str("key", keys.Current).Str("before", stored.KeyID).Msg("store has a new key, the previous one is no longer needed")
	}
	return base64.StdEncoding.EncodeToString(inner), nil
}

// newSecret makes the key of a new store.
func (s *Server) newSecret(path string) (string, error) {
	store, streams := os.DirFS(s.layout.Store()), server.JetStreamStoreDir+"/*/streams/*"
	encrypted, err := fs.Glob(store, streams+"/"+server.JetStreamMetaFileKey)
	if err != nil {
		return "", err
	}
	there, err := fs.Glob(store, streams)
	switch {
	case err != nil:
		return "", err
	case len(encrypted) > 0:
		return "", fmt.Errorf("%w: the store in %s is encrypted, and %s is missing: put it back from a copy of the directory; nothing was changed", ErrStoreKey, s.layout.Root, path)
	case s.cfg.StoreKeys == nil:
		return "", nil
	case len(there) > 0:
		return "", fmt.Errorf("%w: the store in %s is not encrypted: take a backup with waymark backup, "+
			"and restore it into another state directory with --store-key-file; nothing was changed", ErrStoreKey, s.layout.Root)
	}
	inner := make([]byte, encryption.KeySize)
	_, _ = rand.Read(inner) // it never fails
	if err := s.wrap(path, inner); err != nil {
		return "", err
	}
	return base64.StdEncoding.EncodeToString(inner), nil
}

func (s *Server) wrap(path string, inner []byte) error {
	id := s.cfg.StoreKeys.Current
	wrapped, err := s.cfg.StoreKeys.Wrap(id, wrapPurpose, inner)
	if err != nil {
		return fmt.Errorf("%w: key %s: %w", ErrStoreKey, id, err)
	}
	if err := os.MkdirAll(filepath.Dir(path), dirMode); err != nil {
		return fmt.Errorf("%w: %w", natsconn.ErrUnusable, err)
	}
	return writeJSON(path, storeKey{KeyID: id, Wrapped: wrapped})
}
