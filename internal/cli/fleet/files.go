package fleet

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/nats-io/nkeys"

	"github.com/waymarkio/waymark/internal/base/durable"
	"github.com/waymarkio/waymark/internal/cli/base"
	"github.com/waymarkio/waymark/internal/look/failure"
	"github.com/waymarkio/waymark/internal/nats/access"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

// fleetFiles is the input for a fleet's files. fleet-NAME.json stores it, so that a later run changes only the settings
// with a flag.
type fleetFiles struct {
	Fleet       string `json:"fleet"`
	URL         string `json:"url"`
	CA          string `json:"ca,omitzero"`
	Shards      int    `json:"shards"`
	Replicas    int    `json:"replicas"`
	Quota       int64  `json:"quota_bytes"`
	Connections int64  `json:"connections,omitzero"`
	// Include is the servers' file that includes the fleet's accounts, on this machine.
	Include string   `json:"include,omitzero"`
	Verify  []string `json:"verify_subjects,omitzero"`
	// Duties are separate, or joint.
	Duties string `json:"duties,omitzero"`
}

// Values of --duties.
const (
	dutiesJoint    = "joint"
	dutiesSeparate = "separate"
)

// storageRest is the room of an account beyond its streams' limits, in each copy: for leases, settings, and events that
// are on their way into a stream.
const storageRest = 256 << 20

// write creates the fleet's missing files.
func (c addCmd) write(a *base.App, done *Added) (*fleetFiles, error) {
	dir, err := filepath.Abs(c.Dir)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	settings := filepath.Join(dir, "fleet-"+c.Name+".json")
	f := &fleetFiles{Fleet: c.Name, Duties: dutiesJoint, Shards: 1, Replicas: 1, Quota: kvstore.DefaultQuotaBytes}
	switch b, err := os.ReadFile(settings); { //nolint:gosec // the directory is the user's own
	case err == nil:
		if err := json.Unmarshal(b, f, json.RejectUnknownMembers(true)); err != nil || f.Fleet != c.Name {
			return nil, failure.New(failure.Damaged, "restore it, or choose another directory", "%s does not describe fleet %s: %v", settings, c.Name, err)
		}
		if f.Duties != dutiesJoint && f.Duties != dutiesSeparate {
			return nil, failure.New(failure.Damaged, "write joint or separate there", "duties of fleet %s are %.40q in %s", c.Name, f.Duties, settings)
		}
	case !errors.Is(err, fs.ErrNotExist):
		return nil, err
	}
	if err := c.merge(a, f); err != nil {
		return nil, err
	}
	account := access.Account{
		Fleet: f.Fleet, Shards: f.Shards, Storage: f.storage(), Connections: f.Connections, VerifySubjects: f.Verify,
		SeparateDuties: f.Duties == dutiesSeparate, Ending: c.ending,
		Keys: make(map[access.Role][]string), Owners: make(map[string]string),
	}
	done.Duties, done.Contexts = f.Duties, make(map[access.Role]string)
	var stale []string
	for _, role := range access.Roles() {
		owned, gone, err := c.owners(dir, role, f, &account)
		if err != nil {
			return nil, err
		}
		done.Owners, stale = append(done.Owners, owned...), append(stale, gone...)
		base := filepath.Join(dir, c.Name+"-"+string(role))
		if len(owned) > 0 {
			// An existing shared key stays. No new one is created.
			if _, err := os.Stat(base + ".nk"); errors.Is(err, fs.ErrNotExist) {
				stale = append(stale, base+".json")
				continue
			}
		}
		key, err := f.user(base, role, string(role))
		if err != nil {
			return nil, err
		}
		account.Keys[role] = append(account.Keys[role], key)
		done.Contexts[role] = base + ".json"
	}
	config, err := account.Config()
	if err != nil {
		return nil, &failure.Error{Code: failure.Usage, What: err.Error(), Hint: a.Prompt.Command("fleet add --help"), Err: err}
	}
	done.Config, done.Shards = filepath.Join(dir, "fleet-"+c.Name+".conf"), f.Shards
	if done.Written, err = replaceFile(done.Config, []byte(config)); err != nil {
		return nil, err
	}
	b, err := json.Marshal(f, json.Deterministic(true), jsontext.WithIndent("  "))
	if err != nil {
		return nil, err
	}
	if _, err = replaceFile(settings, append(b, '\n')); err != nil {
		return nil, err
	}
	for _, context := range stale {
		switch err := os.Remove(context); {
		case err == nil:
			done.Removed = append(done.Removed, context)
		case !errors.Is(err, fs.ErrNotExist):
			return nil, err
		}
	}
	return f, nil
}

// owners creates the missing keys of a role's owners: those of the flag, and those with a context. stale are the contexts
// whose key file is gone. The daemons share one key: the fleet signs with it.
func (c addCmd) owners(dir string, role access.Role, f *fleetFiles, account *access.Account) (owned []Owner, stale []string, err error) {
	if role == access.Daemon {
		return nil, nil, nil
	}
	// Names have no dot, so no other fleet has files with this prefix.
	before := c.Name + "-" + string(role) + "."
	names := slices.Clone(c.named()[role])
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, nil, err
	}
	for _, entry := range entries {
		rest, ours := strings.CutPrefix(entry.Name(), before)
		if name, key := strings.CutSuffix(rest, ".nk"); ours && key && name != "" {
			names = append(names, name)
		}
	}
	for _, entry := range entries {
		rest, ours := strings.CutPrefix(entry.Name(), before)
		if name, context := strings.CutSuffix(rest, ".json"); ours && context && !slices.Contains(names, name) {
			stale = append(stale, filepath.Join(dir, entry.Name()))
		}
	}
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		if err := schema.CheckName(string(role), name); err != nil {
			return nil, nil, err
		}
		base := filepath.Join(dir, before+name)
		key, err := f.user(base, role, string(role)+" "+name)
		if err != nil {
			return nil, nil, err
		}
		account.Keys[role], account.Owners[key] = append(account.Keys[role], key), name
		owned = append(owned, Owner{Role: role, Name: name, Key: key, Context: base + ".json"})
	}
	return owned, stale, nil
}

// user creates the missing key base.nk and the NATS context base.json, and returns the public key.
func (f *fleetFiles) user(base string, role access.Role, who string) (string, error) {
	key, err := ensureKey(base + ".nk")
	if err != nil {
		return "", err
	}
	context, err := json.Marshal(map[string]string{
		"description": "Waymark, " + who + " of fleet " + f.Fleet, "url": f.URL, "ca": f.CA, "nkey": base + ".nk",
		"inbox_prefix": access.InboxPrefix(role),
	}, json.Deterministic(true), jsontext.WithIndent("  "))
	if err != nil {
		return "", err
	}
	_, err = replaceFile(base+".json", append(context, '\n'))
	return key, err
}

// merge applies flags and environment to f.
func (c addCmd) merge(a *base.App, f *fleetFiles) error {
	conn := a.Conn
	if conn.URL == "" {
		conn.URL = a.Getenv("NATS_URL")
	}
	if conn.CA == "" {
		conn.CA = a.Getenv("NATS_CA")
	}
	if conn.URL != "" {
		f.URL = conn.URL
	}
	if conn.CA != "" {
		ca, err := filepath.Abs(conn.CA)
		if err != nil {
			return err
		}
		f.CA = ca
	}
	if info, err := os.Stat(c.Include); err == nil && !info.IsDir() { // include refuses others
		if f.Include, err = filepath.Abs(c.Include); err != nil {
			return err
		}
	}
	if f.URL == "" {
		return failure.New(failure.Usage, "name them with --nats, such as tls://nats-1:4222,tls://nats-2:4222", "the addresses of the servers are unknown")
	}
	for to, from := range map[*int]int{&f.Shards: int(c.Shards), &f.Replicas: int(c.Replicas)} {
		if from < 0 {
			return failure.New(failure.Usage, "use a number of 1 or more", "--shards and --replicas cannot be %d", from)
		}
		if from != 0 {
			*to = from
		}
	}
	for to, from := range map[*int64]int64{&f.Quota: int64(c.Quota), &f.Connections: c.Connections} {
		if from != 0 {
			*to = from
		}
	}
	if c.Duties != "" {
		f.Duties = c.Duties
	}
	if len(c.Verify) > 0 {
		f.Verify = slices.Clone(c.Verify)
	}
	return nil
}

// storage is the account's limit in bytes, replicas included; 0 is none.
func (f *fleetFiles) storage() int64 {
	if f.Quota <= 0 {
		return 0
	}
	return int64(f.Replicas) * (kvstore.Storage(f.Shards, f.Quota, kvstore.DefaultReserveBytes) + storageRest)
}

// ensureKey returns the public key of the seed in a file. It creates a missing file.
func ensureKey(file string) (public string, err error) {
	seed, err := os.ReadFile(file) //nolint:gosec // the directory is the user's own
	var pair nkeys.KeyPair
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if pair, err = nkeys.CreateUser(); err != nil {
			return "", fmt.Errorf("creating a key: %w", err)
		}
		defer pair.Wipe()
		if seed, err = pair.Seed(); err != nil {
			return "", fmt.Errorf("creating a key: %w", err)
		}
		if err := os.WriteFile(file, append(seed, '\n'), 0o600); err != nil {
			return "", err
		}
	case err != nil:
		return "", err
	default:
		if pair, err = nkeys.FromSeed(bytes.TrimSpace(seed)); err != nil {
			return "", failure.New(failure.Damaged, "restore the file, or remove it to create a new key", "%s holds no NKey seed: %v", file, err)
		}
		defer pair.Wipe()
	}
	return pair.PublicKey()
}

const hintIncluded = "name the file that nats.conf includes for its accounts, such as /etc/waymark/fleets.conf"

// include copies a fleet's part of the configuration next to the servers' file, and adds an include line to that file
// once. It returns the file's full path; empty for none.
func include(file, part string) (full string, err error) {
	if file == "" {
		return "", nil
	}
	if full, err = filepath.Abs(file); err != nil {
		return "", err
	}
	name := filepath.Base(part)
	info, err := os.Stat(full)
	if err != nil {
		return "", &failure.Error{Code: failure.NotFound, What: err.Error(), Hint: hintIncluded, Err: err}
	}
	if info.IsDir() {
		return "", failure.New(failure.Usage, hintIncluded, "--include %s is a directory", file)
	}
	text, err := os.ReadFile(full)
	if err != nil {
		return "", err
	}
	config, err := os.ReadFile(part) //nolint:gosec // the directory is the user's own
	if err != nil {
		return "", err
	}
	copied := filepath.Join(filepath.Dir(full), name)
	if _, err := replaceFile(copied, config); err != nil {
		return "", err
	}
	// The servers may run as another user: a user that can read the file must be able to read its part.
	if err := os.Chmod(copied, info.Mode().Perm()); err != nil {
		return "", err
	}
	if regexp.MustCompile(`(?m)^[ \t]*include[ \t]+["']?` + regexp.QuoteMeta(name) + `["']?[ \t\r;]*(#.*|//.*)?$`).Match(text) {
		return full, nil
	}
	line := fmt.Sprintf("include %q\n", name)
	if len(text) > 0 && !bytes.HasSuffix(text, []byte("\n")) {
		line = "\n" + line
	}
	// Append in place, so that the file keeps its owner and mode.
	f, err := os.OpenFile(full, os.O_APPEND|os.O_WRONLY, 0) //nolint:gosec // the file is named by the user
	if err != nil {
		return "", err
	}
	_, err = f.WriteString(line)
	return full, errors.Join(err, f.Close())
}

// replaceFile writes a file unless it already has this content. A reader sees the old or the new content, never a mix.
func replaceFile(file string, content []byte) (changed bool, err error) {
	old, err := os.ReadFile(file) //nolint:gosec // the directory is the user's own
	if err == nil && bytes.Equal(old, content) {
		return false, nil
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	return true, durable.Replace(file, func(w io.Writer) error {
		_, err := w.Write(content)
		return err
	})
}
