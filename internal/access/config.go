package access

import (
	"fmt"
	"slices"
	"strings"

	"github.com/waymarkio/waymark/schema"
)

// Account says what the configuration of a fleet's two accounts is made of.
type Account struct {
	// Fleet name. Required.
	Fleet string
	// Shards that the fleet has, or may get: their names are in the permissions. At least 1.
	Shards int
	// Storage is how many bytes of disk the fleet may use on all servers together, copies counted. 0 is no limit.
	Storage int64
	// Connections is how many the clients of the fleet may have together. 0 is no limit.
	Connections int64
	// Keys are the users' public NKeys, by role. A role without a key has no user.
	Keys map[Role][]string
	// VerifySubjects are further subjects on which executors ask tools about calls in doubt, and tools answer.
	VerifySubjects []string
}

// Limits of an account beside its storage.
const (
	// followMemory is room for consumers that are kept in memory.
	followMemory = 64 << 20
	// accountConsumers bounds the consumers of an account: each replica of the daemon has a handful for each shard.
	accountConsumers = 64
	// streamingThreshold is how long an answer of several messages may pause.
	streamingThreshold = "10m"
)

// Validate names the field that is out of range.
func (a Account) Validate() error {
	if err := schema.CheckName("fleet", a.Fleet); err != nil {
		return err
	}
	if a.Shards < 1 {
		return fmt.Errorf("fleet %s has %d shards, at least 1 is needed", a.Fleet, a.Shards)
	}
	if a.Storage < 0 || a.Connections < 0 {
		return fmt.Errorf("limits of fleet %s are %d bytes and %d connections, use 0 for none", a.Fleet, a.Storage, a.Connections)
	}
	for role := range a.Keys {
		if !slices.Contains(Roles(), role) {
			return fmt.Errorf("fleet %s has no role %q", a.Fleet, role)
		}
	}
	for _, s := range a.VerifySubjects {
		if strings.ContainsAny(s, "\"'\\ \t\r\n{}[],;#=") || strings.HasPrefix(s, "$") || strings.HasPrefix(s, "waymark.") || strings.HasPrefix(s, "_") ||
			s == "" || strings.HasPrefix(s, ">") || strings.HasPrefix(s, "*") {
			return fmt.Errorf("verify subject %.80q is not one of the tools' own: use such as tools.>", s)
		}
	}
	return nil
}

// Config is the part of the server's configuration with the fleet's accounts: the inside of its accounts block.
func (a Account) Config() (string, error) {
	if err := a.Validate(); err != nil {
		return "", err
	}
	w := &writer{}
	w.line("# Fleet %s, %s. Made by: waymark fleet add %s", a.Fleet, shardsText(a.Shards), a.Fleet)
	w.line("# Public keys only. Change it by that command, not by hand, and reload the servers.")
	w.blank()
	w.open("%s {", StoreAccount(a.Fleet))
	a.store(w)
	w.close()
	w.blank()
	w.open("%s {", ClientAccount(a.Fleet))
	a.clients(w)
	w.close()
	return w.String(), nil
}

func (a Account) store(w *writer) {
	w.open("jetstream {")
	if a.Storage > 0 {
		w.line("max_file: %d", a.Storage)
	}
	w.line("max_memory: %d", followMemory)
	w.line("max_streams: %d", streams(a.Shards))
	w.line("max_consumers: %d", accountConsumers*a.Shards)
	w.close()
	w.line("limits { max_leafnodes: 0 }")
	a.users(w, Daemon)
	client := ClientAccount(a.Fleet)
	w.open("exports: [")
	for _, g := range grants(a.Fleet, a.Shards) {
		switch g.kind {
		case stream:
			w.line("{ stream: %q, accounts: [%s] }", g.subject, client)
		case streaming:
			w.line("{ service: %q, accounts: [%s], response: stream, threshold: %q }", g.serverSubject(), client, streamingThreshold)
		default:
			w.line("{ service: %q, accounts: [%s] }", g.serverSubject(), client)
		}
	}
	w.closeList()
}

func (a Account) clients(w *writer) {
	w.line("mappings: { %q: %q }", serverAPI+">", APIPrefix+">")
	if a.Connections > 0 {
		w.line("limits { max_connections: %d, max_leafnodes: 0 }", a.Connections)
	} else {
		w.line("limits { max_leafnodes: 0 }")
	}
	a.users(w, Observer, Executor, Operator)
	store := StoreAccount(a.Fleet)
	w.open("imports: [")
	for _, g := range grants(a.Fleet, a.Shards) {
		switch {
		case g.kind == stream:
			w.line("{ stream: { account: %s, subject: %q } }", store, g.subject)
		case g.api:
			w.line("{ service: { account: %s, subject: %q }, to: %q }", store, g.serverSubject(), APIPrefix+g.subject)
		default:
			w.line("{ service: { account: %s, subject: %q } }", store, g.subject)
		}
	}
	w.closeList()
}

// serverSubject is the subject where the daemon, or the server, takes it.
func (g *grant) serverSubject() string {
	if g.api {
		return serverAPI + g.subject
	}
	return g.subject
}

func (a Account) users(w *writer, roles ...Role) {
	w.open("users: [")
	for _, role := range roles {
		r := RightsOf(role, a.Fleet, a.Shards)
		if role == Executor || role == Operator {
			r.Publish = append(r.Publish, a.VerifySubjects...)
			r.Subscribe = append(r.Subscribe, a.VerifySubjects...)
		}
		for _, key := range a.Keys[role] {
			w.line("# %s, whose client must use the inbox prefix %s", role, InboxPrefix(role))
			w.open("{ nkey: %s, permissions {", key)
			w.open("publish {")
			w.list("allow", r.Publish)
			if len(r.NotPublish) > 0 {
				w.list("deny", r.NotPublish)
			}
			w.close()
			w.open("subscribe {")
			w.list("allow", r.Subscribe)
			w.close()
			w.depth--
			w.line("} }")
		}
	}
	w.closeList()
}

// writer writes an indented configuration.
type writer struct {
	strings.Builder
	depth int
}

func (w *writer) blank() { w.WriteByte('\n') }

func (w *writer) line(format string, args ...any) {
	w.WriteString(strings.Repeat("  ", w.depth))
	_, _ = fmt.Fprintf(w, format, args...) // a strings.Builder takes everything
	w.WriteByte('\n')
}

func (w *writer) open(format string, args ...any) {
	w.line(format, args...)
	w.depth++
}

func (w *writer) close() {
	w.depth--
	w.line("}")
}

func (w *writer) closeList() {
	w.depth--
	w.line("]")
}

func (w *writer) list(name string, items []string) {
	w.open("%s: [", name)
	for _, s := range items {
		w.line("%q", s)
	}
	w.closeList()
}
