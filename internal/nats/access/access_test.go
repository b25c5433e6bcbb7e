package access_test

import (
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/waymarkio/waymark/internal/nats/access"
	"github.com/waymarkio/waymark/schema"
)

var update = flag.Bool("update", false, "write the example again")

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// example is the fleet of the shipped file; its seeds were thrown away.
func example() access.Account {
	return access.Account{
		Fleet: "example", Shards: 2, Storage: 120 << 30, Connections: 1000, VerifySubjects: []string{"tools.>"},
		Keys: map[access.Role][]string{
			access.Daemon:   {"UBZPLLSXOQATZQKVNY5F4UVXDDQSHTEP5NW3ZVTXZB67OFPIIIDQ3A5P"},
			access.Executor: {"UARMTKAKF6436Z5RYY6U5M32BJXPIX64CVC2BTI5VADJAFAMEDWNBU4J"},
			access.Observer: {"UCZLBXUNBYTDIN5WDQGCNSUXCNGIJF3AUARKKJ7C57RT7U5ITBFWDTKJ"},
			access.Operator: {"UBOLFLU5O7I5ZMHTU2QXT5QGFGDDF4II2FCBSXFINMYGYII522VDGLFY"},
		},
	}
}

func TestServerConfig_ShippedExample_EqualsGenerated(t *testing.T) {
	t.Parallel()
	file := filepath.Join("..", "..", "..", "deploy", "nats", "three-nodes", "fleet-example.conf")
	want, err := example().Config()
	require.NoError(t, err)
	if *update {
		require.NoError(t, os.WriteFile(file, []byte(want), 0o644)) //nolint:gosec // an example is public
	}
	have, err := os.ReadFile(file)
	require.NoError(t, err, "write it with: go test ./internal/nats/access -update")
	require.Equal(t, want, string(have), "write it with: go test ./internal/nats/access -update")
}

func TestServerConfig_Generated_Loads(t *testing.T) {
	t.Parallel()
	text, err := example().Config()
	require.NoError(t, err)
	file := filepath.Join(t.TempDir(), "nats.conf")
	require.NoError(t, os.WriteFile(file, []byte("jetstream {}\naccounts {\n"+text+"\n}\n"), 0o600))
	opts, err := server.ProcessConfigFile(file)
	require.NoError(t, err)
	require.Len(t, opts.Nkeys, 4)
	require.Equal(t, len(access.Roles()), strings.Count(text, "max_connections: 1000"), "of each account")
	none := example()
	none.Connections = 0
	text, err = none.Config()
	require.NoError(t, err)
	require.Equal(t, len(access.Roles()), strings.Count(text, "max_connections: 250"))
	require.Equal(t, len(access.ClientRoles()), strings.Count(text, "max_subscriptions: 1000"))
	require.Equal(t, 1, strings.Count(text, "max_payload: 65536"), "of observers, who store nothing")
	for _, user := range opts.Nkeys {
		for _, role := range access.Roles() {
			require.Equal(t, user.Account.Name == access.AccountOf(role, "example"), user.Nkey == example().Keys[role][0], "each role has its account")
		}
		require.NotEmpty(t, user.Permissions.Publish.Allow)
		require.NotEmpty(t, user.Permissions.Subscribe.Allow)
	}
}

func TestPermissions_Roles_LeastPrivilege(t *testing.T) {
	t.Parallel()
	has := func(list []string, subject string) bool {
		return slices.ContainsFunc(list, func(pattern string) bool { return server.SubjectsCollide(pattern, subject) && covers(pattern, subject) })
	}
	n := schema.NamesOf("f", 0)
	publish := map[access.Role][]string{}
	for _, role := range access.Roles() {
		r := access.Account{Fleet: "f", Shards: 1}.Rights(role)
		publish[role] = r.Publish
		for _, list := range [][]string{r.Publish, r.Subscribe} {
			for _, subject := range list {
				require.NotContains(t, []string{">", "*", "*.>", "waymark.>", "$JS.>", "$JS.API.>", "$KV.>", "$O.>", "_INBOX.>"}, subject, "%s", role)
				if role != access.Daemon {
					require.False(t, strings.HasPrefix(subject, "$JS.API."), "%s: %s", role, subject)
					require.False(t, strings.HasPrefix(subject, "$KV."), "%s: %s", role, subject)
				}
			}
		}
		require.True(t, has(r.Subscribe, access.InboxPrefix(role)+".x"), "%s is answered", role)
		for _, other := range access.Roles() {
			if other != role {
				require.False(t, has(r.Subscribe, access.InboxPrefix(other)+".x"), "%s hears what %s is answered", role, other)
			}
		}
	}
	for _, c := range []struct {
		subject string
		roles   []access.Role
	}{
		{n.EventSubject("r"), []access.Role{access.Executor, access.Operator, access.Daemon}},
		{schema.HeartbeatSubject("f", "e"), []access.Role{access.Executor, access.Operator}},
		{schema.ServiceSubject(schema.VerbGet, "f", "r"), access.Roles()},
		{schema.ServiceSubject(schema.VerbCancel, "f", "r"), []access.Role{access.Executor, access.Operator}},
		{schema.ServiceSubject(schema.VerbSignal, "f", "r"), []access.Role{access.Executor, access.Operator}},
		{schema.ServiceSubject(schema.VerbFork, "f", "r"), []access.Role{access.Executor, access.Operator}},
		{schema.ServiceSubject(schema.VerbInput, "f", "r"), []access.Role{access.Operator}},
		{"$KV." + n.SegmentBucket() + ".r.1", []access.Role{access.Daemon}},
		{"$JS.API.STREAM.PURGE." + n.EventStream(), []access.Role{access.Daemon}},
		{"$JS.API.STREAM.MSG.DELETE." + n.EventStream(), []access.Role{access.Daemon}},
		{"$JS.API.STREAM.DELETE." + n.EventStream(), nil},
		{"$JS.API.STREAM.SNAPSHOT." + n.EventStream(), []access.Role{access.Daemon}},
		{"$JS.API.STREAM.RESTORE." + n.EventStream(), []access.Role{access.Daemon}},
		{"$JS.SNAPSHOT.ACK." + n.EventStream() + ".x.131072.1", []access.Role{access.Daemon}},
		{"$JS.API.STREAM.SNAPSHOT." + schema.NamesOf("g", 0).EventStream(), nil},
		{"$JS.API.STREAM.DELETE.KV_" + n.CheckpointBucket(), []access.Role{access.Daemon}},
		{schema.NamesOf("g", 0).EventSubject("r"), nil},
		{schema.ServiceSubject(schema.VerbGet, "g", "r"), nil},
	} {
		for _, role := range access.Roles() {
			require.Equal(t, slices.Contains(c.roles, role), has(publish[role], c.subject), "%s to %s", role, c.subject)
		}
	}
}

// No role has both the rights to request and those to approve, even after additions to the lists.
func TestRights_SeparateDuties_NoRoleAsksAndApproves(t *testing.T) {
	t.Parallel()
	rights := func(role access.Role, separate bool) []string {
		return access.Account{Fleet: "f", Shards: 2, SeparateDuties: separate}.Rights(role).Publish
	}
	observer, executor := rights(access.Observer, false), rights(access.Executor, false)
	joint, separate := rights(access.Operator, false), rights(access.Operator, true)
	require.Equal(t, observer, rights(access.Observer, true))
	require.Equal(t, executor, rights(access.Executor, true))
	var shared []string
	for _, subject := range separate {
		require.Contains(t, joint, subject)
		if slices.Contains(executor, subject) && !slices.Contains(observer, subject) {
			shared = append(shared, subject)
		}
	}
	require.Equal(t, []string{"waymark.cancel.f", "waymark.cancel.f.*"}, shared, "all that an operator shares with executors and not with observers")
	for _, subject := range []string{
		schema.NamesOf("f", 1).EventSubjects(), schema.ServiceSubject(schema.VerbRecover, "f", "*"), schema.ServiceSubject(schema.VerbClaim, "f", ""),
		schema.ServiceSubject(schema.VerbHandoff, "f", "*"), schema.ServiceSubject(schema.VerbSignal, "f", "*"), "$O." + schema.BlobBucket("f") + ".M.*",
	} {
		require.Contains(t, joint, subject, "the test knows what asks")
		require.NotContains(t, separate, subject)
	}
	for _, verb := range []string{schema.VerbInput, schema.VerbSettle} {
		require.Contains(t, separate, schema.ServiceSubject(verb, "f", "*"))
		require.NotContains(t, executor, schema.ServiceSubject(verb, "f", "*"))
	}
	text, err := access.Account{Fleet: "f", Shards: 2, SeparateDuties: true}.Config()
	require.NoError(t, err)
	_, operators, _ := strings.Cut(text, "\n"+access.AccountOf(access.Operator, "f")+" {")
	require.NotContains(t, operators, schema.NamesOf("f", 1).EventSubjects(), "the account does not import it either")
	require.Contains(t, operators, schema.ServiceSubject(schema.VerbInput, "f", "*"))
}

// A new verb of the service must be granted to a role.
func TestPermissions_EveryVerb_Granted(t *testing.T) {
	t.Parallel()
	source, err := os.ReadFile(filepath.Join("..", "..", "..", "schema", "wire.go"))
	require.NoError(t, err)
	verbs := regexp.MustCompile(`\bVerb[A-Z]\w* = "(\w+)"`).FindAllStringSubmatch(string(source), -1)
	require.Greater(t, len(verbs), 9)
	operator, daemon := access.Account{Fleet: "f", Shards: 1}.Rights(access.Operator), access.Account{Fleet: "f", Shards: 1}.Rights(access.Daemon)
	for _, verb := range verbs {
		require.Contains(t, operator.Publish, schema.ServiceSubject(verb[1], "f", "*"))
		require.Contains(t, daemon.Subscribe, schema.ServiceSubject(verb[1], "f", "*"))
	}
}

// covers reports whether a literal subject matches a pattern.
func covers(pattern, subject string) bool {
	p, s := strings.Split(pattern, "."), strings.Split(subject, ".")
	for i, token := range p {
		switch {
		case token == ">":
			return len(s) > i
		case i >= len(s), token != "*" && token != s[i]:
			return false
		}
	}
	return len(p) == len(s)
}

func TestAccounts_Invalid_Refused(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*access.Account){
		"name":            func(a *access.Account) { a.Fleet = "a b" },
		"no shard":        func(a *access.Account) { a.Shards = 0 },
		"storage":         func(a *access.Account) { a.Storage = -1 },
		"role":            func(a *access.Account) { a.Keys = map[access.Role][]string{"root": {"U"}} },
		"verify all":      func(a *access.Account) { a.VerifySubjects = []string{">"} },
		"verify ours":     func(a *access.Account) { a.VerifySubjects = []string{"waymark.events.>"} },
		"verify system":   func(a *access.Account) { a.VerifySubjects = []string{"$JS.API.>"} },
		"verify injected": func(a *access.Account) { a.VerifySubjects = []string{"tools\" ] } {"} },
	} {
		t.Run(name, func(t *testing.T) {
			a := example()
			change(&a)
			_, err := a.Config()
			require.Error(t, err)
		})
	}
}
