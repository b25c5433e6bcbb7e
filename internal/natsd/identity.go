package natsd

import (
	"crypto/pbkdf2"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/waymarkio/waymark/internal/statedir"
)

// identity is what stays the same over restarts: clients keep their credentials and their address.
type identity struct {
	ServerName string `json:"server_name"`
	User       string `json:"user"`
	Password   string `json:"password"`
	Port       int    `json:"port"` // of the last start; 0 before the first
}

func loadIdentity(l statedir.Layout) (identity, error) {
	var id identity
	err := statedir.ReadJSON(l.Identity(), &id)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		// Letters and digits only: in "--password TEXT" a text that begins with a dash would be taken for a flag, and shown in the error.
		id = identity{ServerName: "waymark-" + rand.Text(), User: "waymark", Password: rand.Text()}
		return id, writeJSON(l.Identity(), id)
	case err != nil:
		return identity{}, err
	case id.ServerName == "" || id.User == "" || id.Password == "" || id.Port < 0 || id.Port > 65535:
		return identity{}, fmt.Errorf("%w: %s lacks a server name, user or password, or has a bad port: remove it, and new credentials are made",
			statedir.ErrUnusable, l.Identity())
	}
	return id, nil
}

// keyCheck is a salted fingerprint of the store's encryption key. It is as slow to search through as a
// password hash, so that a stolen disk does not give a weak key away for nothing.
type keyCheck struct {
	Salt        []byte `json:"salt"`
	Iterations  int    `json:"iterations"`
	Fingerprint []byte `json:"fingerprint"`
}

const (
	keyIterations    = 600_000
	maxKeyIterations = 10 * keyIterations
)

func fingerprint(key string, salt []byte, iterations int) ([]byte, error) {
	return pbkdf2.Key(sha256.New, key, salt, iterations, sha256.Size)
}

// checkKey refuses a store that was written with another key. The server itself would start, report good
// health, and replace each stream it could not read at the next create-or-update.
func checkKey(l statedir.Layout, key string) error {
	encrypted, plain, err := storedStreams(l)
	if err != nil {
		return err
	}
	var check keyCheck
	err = statedir.ReadJSON(l.Key(), &check)
	known := err == nil
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	refuse := func(why, next string) error {
		return fmt.Errorf("%w: %s %s: %s, or set another directory with WAYMARK_STATE_DIR", ErrStoreKey, l.Store(), why, next)
	}
	switch {
	case key == "" && (known || encrypted > 0):
		return refuse("is encrypted and no key was given", "give the key it was written with")
	case key == "":
		return nil
	case plain > 0:
		return refuse(fmt.Sprintf("holds %d streams that are not encrypted", plain), "start without a key")
	case !known && encrypted > 0:
		return refuse("is encrypted, but "+l.Key()+" is gone, so the key cannot be checked", "restore that file from a backup")
	case !known:
		check = keyCheck{Salt: make([]byte, 16), Iterations: keyIterations}
		_, _ = rand.Read(check.Salt)
		if check.Fingerprint, err = fingerprint(key, check.Salt, check.Iterations); err != nil {
			return fmt.Errorf("%w: %w", ErrStoreKey, err)
		}
		return writeJSON(l.Key(), check)
	case check.Iterations < 1 || check.Iterations > maxKeyIterations:
		return fmt.Errorf("%w: %s asks for %d iterations, 1 to %d are expected: restore that file from a backup",
			statedir.ErrUnusable, l.Key(), check.Iterations, maxKeyIterations)
	}
	got, err := fingerprint(key, check.Salt, check.Iterations)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrStoreKey, err)
	}
	if subtle.ConstantTimeCompare(got, check.Fingerprint) != 1 {
		return refuse("does not match the key given", "give the key it was written with")
	}
	return nil
}

// storedStreams counts the streams on disk, by whether they are encrypted.
func storedStreams(l statedir.Layout) (encrypted, plain int, err error) {
	store := os.DirFS(l.Store()) // a pattern over the whole path would trip over brackets in it
	count := func(file string) (int, error) {
		found, err := fs.Glob(store, path.Join(server.JetStreamStoreDir, "*", "streams", "*", file))
		if err != nil {
			return 0, fmt.Errorf("%w: %w", statedir.ErrUnusable, err)
		}
		return len(found), nil
	}
	all, err := count(server.JetStreamMetaFile)
	if err != nil {
		return 0, 0, err
	}
	encrypted, err = count(server.JetStreamMetaFileKey)
	return encrypted, max(0, all-encrypted), err
}
