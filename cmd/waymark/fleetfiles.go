package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/nats-io/nkeys"

	"github.com/waymarkio/waymark/internal/access"
	"github.com/waymarkio/waymark/kvstore"
)

// fleetFiles is what a fleet's files are made of: fleet-NAME.json keeps it, so that a later run changes only what it names.
type fleetFiles struct {
	Fleet       string   `json:"fleet"`
	URL         string   `json:"url"`
	CA          string   `json:"ca,omitzero"`
	Shards      int      `json:"shards"`
	Replicas    int      `json:"replicas"`
	Quota       int64    `json:"quota_bytes"`
	Storage     int64    `json:"storage_bytes,omitzero"`
	Connections int64    `json:"connections,omitzero"`
	Verify      []string `json:"verify_subjects,omitzero"`
}

// storageFactor is how much more than its log a fleet may store by default, for segments, checkpoints and blobs;
// storageRest is for what does not grow with it, such as dead letters.
const (
	storageFactor = 4
	storageRest   = 1 << 30
)

// write makes the fleet's files, or what is missing of them.
func (c fleetAddCmd) write(a *app, done *fleetAdded) (*fleetFiles, error) {
	dir, err := filepath.Abs(c.Dir)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	settings := filepath.Join(dir, "fleet-"+c.Name+".json")
	f := &fleetFiles{Fleet: c.Name, Shards: 1, Replicas: 1, Quota: kvstore.DefaultQuotaBytes}
	switch b, err := os.ReadFile(settings); { //nolint:gosec // the directory is the user's own
	case err == nil:
		if err := json.Unmarshal(b, f, json.RejectUnknownMembers(true)); err != nil || f.Fleet != c.Name {
			return nil, fail(exitDamaged, "restore it, or choose another directory", "%s does not describe fleet %s: %v", settings, c.Name, err)
		}
	case !errors.Is(err, fs.ErrNotExist):
		return nil, err
	}
	if err := c.merge(a, f); err != nil {
		return nil, err
	}
	account := access.Account{
		Fleet: f.Fleet, Shards: f.Shards, Storage: f.storage(), Connections: f.Connections, VerifySubjects: f.Verify,
		Keys: make(map[access.Role][]string),
	}
	done.Contexts = make(map[access.Role]string)
	for _, role := range access.Roles() {
		base := filepath.Join(dir, c.Name+"-"+string(role))
		key, err := ensureKey(base + ".nk")
		if err != nil {
			return nil, err
		}
		account.Keys[role] = []string{key}
		context, err := json.Marshal(map[string]string{
			"description": "Waymark, " + string(role) + " of fleet " + c.Name, "url": f.URL, "ca": f.CA, "nkey": base + ".nk",
			"inbox_prefix": access.InboxPrefix(role),
		}, json.Deterministic(true), jsontext.WithIndent("  "))
		if err != nil {
			return nil, err
		}
		done.Contexts[role] = base + ".json"
		if _, err := replaceFile(base+".json", append(context, '\n')); err != nil {
			return nil, err
		}
	}
	config, err := account.Config()
	if err != nil {
		return nil, &failure{code: exitUsage, what: err.Error(), hint: a.prompt.command("fleet add --help"), err: err}
	}
	done.Config, done.Shards = filepath.Join(dir, "fleet-"+c.Name+".conf"), f.Shards
	if done.Written, err = replaceFile(done.Config, []byte(config)); err != nil {
		return nil, err
	}
	b, err := json.Marshal(f, json.Deterministic(true), jsontext.WithIndent("  "))
	if err != nil {
		return nil, err
	}
	_, err = replaceFile(settings, append(b, '\n'))
	return f, err
}

// merge puts what flags and environment name into f.
func (c fleetAddCmd) merge(a *app, f *fleetFiles) error {
	conn := a.cli.Conn
	if conn.NATS == "" {
		conn.NATS = a.getenv("NATS_URL")
	}
	if conn.TLSCA == "" {
		conn.TLSCA = a.getenv("NATS_CA")
	}
	if conn.NATS != "" {
		f.URL = conn.NATS
	}
	if conn.TLSCA != "" {
		ca, err := filepath.Abs(conn.TLSCA)
		if err != nil {
			return err
		}
		f.CA = ca
	}
	if f.URL == "" {
		return fail(exitUsage, "name them with --nats, such as tls://nats-1:4222,tls://nats-2:4222", "the addresses of the servers are not known")
	}
	for to, from := range map[*int]int{&f.Shards: c.Shards, &f.Replicas: c.Replicas} {
		if from < 0 {
			return fail(exitUsage, "use a number of 1 or more", "--shards and --replicas cannot be %d", from)
		}
		if from != 0 {
			*to = from
		}
	}
	for to, from := range map[*int64]int64{&f.Quota: int64(c.Quota), &f.Storage: int64(c.Storage), &f.Connections: c.Connections} {
		if from != 0 {
			*to = from
		}
	}
	if len(c.Verify) > 0 {
		f.Verify = slices.Clone(c.Verify)
	}
	return nil
}

// storage is the account's limit in bytes, copies counted.
func (f *fleetFiles) storage() int64 {
	switch {
	case f.Storage > 0:
		return f.Storage
	case f.Quota <= 0:
		return 0
	}
	return int64(f.Replicas) * (storageFactor*int64(f.Shards)*f.Quota + storageRest)
}

// ensureKey returns the public key of the seed in a file, which it makes if it is not there.
func ensureKey(file string) (public string, err error) {
	seed, err := os.ReadFile(file) //nolint:gosec // the directory is the user's own
	var pair nkeys.KeyPair
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if pair, err = nkeys.CreateUser(); err != nil {
			return "", fmt.Errorf("making a key: %w", err)
		}
		defer pair.Wipe()
		if seed, err = pair.Seed(); err != nil {
			return "", fmt.Errorf("making a key: %w", err)
		}
		if err := os.WriteFile(file, append(seed, '\n'), 0o600); err != nil {
			return "", err
		}
	case err != nil:
		return "", err
	default:
		if pair, err = nkeys.FromSeed(bytes.TrimSpace(seed)); err != nil {
			return "", fail(exitDamaged, "restore it, or remove it and a new key is made", "%s holds no NKey seed: %v", file, err)
		}
		defer pair.Wipe()
	}
	return pair.PublicKey()
}

// replaceFile writes a file unless that is its content already. A reader sees the old or the new one, whole.
func replaceFile(file string, content []byte) (changed bool, err error) {
	old, err := os.ReadFile(file) //nolint:gosec // the directory is the user's own
	if err == nil && bytes.Equal(old, content) {
		return false, nil
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	next := file + ".new"
	if err := os.WriteFile(next, content, 0o600); err != nil {
		return false, err
	}
	return true, os.Rename(next, file)
}
