package access

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/waymarkio/waymark/schema"
)

// Account is the input for the configuration of a fleet's accounts.
type Account struct {
	// Fleet name. Required.
	Fleet string
	// Shards of the fleet, now or later: their names are in the permissions. At least 1.
	Shards int
	// Storage is how many bytes of disk the fleet may use on all servers together, copies counted. 0 is no limit.
	Storage int64
	// Connections is how many connections each role may have on all servers together. 0 is [DefaultConnections].
	Connections int64
	// Keys are the users' public NKeys, by role. A role without a key has no user.
	Keys map[Role][]string
	// Owners are the names of the keys' owners, by key. They become comments of the configuration.
	Owners map[string]string
	// SeparateDuties removes an executor's rights from operators: no key can both ask and approve.
	SeparateDuties bool
	// VerifySubjects are further subjects on which executors ask tools about calls in doubt, and tools answer.
	VerifySubjects []string
	// Ending: the daemon's key may delete the streams of its account. Otherwise no key may.
	Ending bool
}

// Limits of an account besides its storage.
const (
	// FollowMemory is the memory for in-memory consumers.
	FollowMemory = 64 << 20
	// accountConsumers bounds the consumers of an account: each replica of the daemon has a handful for each shard.
	accountConsumers = 64
	// streamingThreshold is how long an answer of several messages may pause. The server keeps each such request until
	// then, also if its answer was one message.
	streamingThreshold = "1m"
	// DefaultConnections is how many connections each account may have unless [Account.Connections] says otherwise.
	// The shipped servers have room for those of ten fleets.
	DefaultConnections = 250
	// ClientSubscriptions is how many subscriptions a client's connection may have.
	ClientSubscriptions = 1000
	// ObserverPayload is the most bytes of an observer's request: each server on its way reads all of it, even if the
	// daemon refuses it.
	ObserverPayload = 64 << 10
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
		return fmt.Errorf("limits of fleet %s are %d bytes and %d connections: neither can be negative", a.Fleet, a.Storage, a.Connections)
	}
	for role := range a.Keys {
		if !slices.Contains(Roles(), role) {
			return fmt.Errorf("fleet %s has no role %q", a.Fleet, role)
		}
	}
	for _, owner := range a.Owners {
		if err := schema.CheckName("owner of a key", owner); err != nil {
			return err
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

// Config is the part of the server's configuration with the fleet's accounts: the content of its accounts block.
func (a Account) Config() (string, error) {
	if err := a.Validate(); err != nil {
		return "", err
	}
	w := &writer{}
	w.line("# Fleet %s, %s. Made by: waymark fleet add %s", a.Fleet, shardsText(a.Shards), a.Fleet)
	if a.SeparateDuties {
		w.line("# Separate duties: operators start no runs and publish no events.")
	}
	w.line("# Public keys only. Change it by that command, not by hand, and reload the servers.")
	w.blank()
	w.open("%s {", AccountOf(Daemon, a.Fleet))
	a.store(w)
	w.close()
	for _, role := range ClientRoles() {
		w.blank()
		w.open("%s {", AccountOf(role, a.Fleet))
		a.clients(w, role)
		w.close()
	}
	return w.String(), nil
}

func (a Account) store(w *writer) {
	w.open("jetstream {")
	if a.Storage > 0 {
		w.line("max_file: %d", a.Storage)
	}
	w.line("max_memory: %d", FollowMemory)
	w.line("max_streams: %d", Streams(a.Shards))
	w.line("max_consumers: %d", accountConsumers*a.Shards)
	w.close()
	w.line("limits { max_connections: %d, max_leafnodes: 0 }", cmp.Or(a.Connections, DefaultConnections))
	a.users(w, Daemon)
	w.open("exports: [")
	for _, g := range a.grants() {
		accounts := make([]string, 0, len(g.roles))
		for _, role := range g.roles {
			accounts = append(accounts, AccountOf(role, a.Fleet))
		}
		to := strings.Join(accounts, ", ")
		switch g.kind {
		case stream:
			w.line("{ stream: %q, accounts: [%s] }", g.subject, to)
		case streaming:
			w.line("{ service: %q, accounts: [%s], response: stream, threshold: %q }", g.serverSubject(), to, streamingThreshold)
		default:
			w.line("{ service: %q, accounts: [%s] }", g.serverSubject(), to)
		}
	}
	w.closeList()
}

// clients writes the account of a role. It imports only what the role may do: an answer enters the account on the
// reply subject that the client chose, whatever the client's permissions, and any import would forward it.
func (a Account) clients(w *writer, role Role) {
	w.open("mappings: {")
	for _, m := range a.mappings() {
		w.line("%q: %q", m[0], m[1])
	}
	w.close()
	payload := ""
	if role == Observer {
		payload = fmt.Sprintf(", max_payload: %d", ObserverPayload)
	}
	w.line("limits { max_connections: %d, max_subscriptions: %d, max_leafnodes: 0%s }", cmp.Or(a.Connections, DefaultConnections), ClientSubscriptions, payload)
	a.users(w, role)
	if role == Executor && len(a.VerifySubjects) > 0 {
		// Tools answer with an executor's key.
		w.open("exports: [")
		for _, subject := range a.VerifySubjects {
			w.line("{ service: %q, accounts: [%s] }", subject, AccountOf(Operator, a.Fleet))
		}
		w.closeList()
	}
	store := AccountOf(Daemon, a.Fleet)
	w.open("imports: [")
	for _, g := range a.grants() {
		switch {
		case !slices.Contains(g.roles, role):
		case g.kind == stream:
			w.line("{ stream: { account: %s, subject: %q } }", store, g.subject)
		case g.api:
			w.line("{ service: { account: %s, subject: %q }, to: %q }", store, g.serverSubject(), APIPrefix+g.subject)
		case g.verb:
			w.line("{ service: { account: %s, subject: %q }, share: true }", store, g.subject)
		default:
			w.line("{ service: { account: %s, subject: %q } }", store, g.subject)
		}
	}
	if role == Operator {
		for _, subject := range a.VerifySubjects {
			w.line("{ service: { account: %s, subject: %q } }", AccountOf(Executor, a.Fleet), subject)
		}
	}
	w.closeList()
}

// serverSubject is the subject on which the daemon, or the server, receives it.
func (g *grant) serverSubject() string {
	if g.api {
		return serverAPI + g.subject
	}
	return g.subject
}

func (a Account) users(w *writer, role Role) {
	r := a.Rights(role)
	if role == Executor || role == Operator {
		r.Publish = append(r.Publish, a.VerifySubjects...)
	}
	if role == Executor && len(a.VerifySubjects) > 0 {
		// A tool answers an operator on _R_: allow_responses, which is meant for that, refused some answers on a cluster.
		r.Subscribe, r.Publish = append(r.Subscribe, a.VerifySubjects...), append(r.Publish, "_R_.>")
	}
	w.open("users: [")
	for _, key := range a.Keys[role] {
		w.line("# %s, whose client must use the inbox prefix %s", strings.TrimSpace(string(role)+" "+a.Owners[key]), InboxPrefix(role))
		w.open("{ nkey: %s, permissions {", key)
		w.open("publish {")
		w.list("allow", r.Publish)
		w.close()
		w.open("subscribe {")
		w.list("allow", r.Subscribe)
		w.close()
		w.depth--
		w.line("} }")
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
