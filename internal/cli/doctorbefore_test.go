package cli

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/harness/natstest"
	"github.com/waymarkio/waymark/internal/look/failure"
)

// Doctor checks an account for a fleet that does not exist yet: each finding has its next step, and nothing is made. A quota that it
// names fits.
func TestDoctor_BeforeTheFleet_ChecksWhatItNeeds(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	address := fmt.Sprintf("127.0.0.1:%d", natstest.FreePorts(t, 1)[0])
	file := filepath.Join(dir, "nats.conf")
	require.NoError(t, os.WriteFile(file, fmt.Appendf(nil, `listen: %q
jetstream { store_dir: %q, max_file_store: 100G, max_memory_store: 1G }
accounts {
  wide { jetstream: enabled, users: [{ user: wide, password: secret }] }
  narrow { jetstream { max_file: 2G, max_memory: 64Mi, max_streams: 7 }, users: [{ user: narrow, password: secret }] }
  tiny { jetstream { max_file: 10M, max_memory: 64Mi, max_streams: 7 }, users: [{ user: tiny, password: secret }] }
  few { jetstream { max_file: 20G, max_memory: 64Mi, max_streams: 6 }, users: [{ user: few, password: secret }] }
  dull { jetstream { max_file: 20G, max_memory: 1M, max_streams: 7 }, users: [{ user: dull, password: secret }] }
  reader { jetstream: enabled, users: [{ user: reader, password: secret, permissions: { publish: { deny: "$JS.API.STREAM.CREATE.>" } } }] }
  idle { users: [{ user: idle, password: secret }] }
}
`, address, filepath.Join(dir, "nats")), 0o600))
	srv := newServer(t, file)
	srv.Start()
	t.Cleanup(func() { srv.Shutdown(); srv.WaitForShutdown() })
	require.True(t, srv.ReadyForConnections(securedWait))
	as := func(user string, args ...string) (int, string) {
		var out bytes.Buffer
		args = append([]string{"--nats", "nats://" + address, "--user", user, "--password", "secret", "--fleet", "payments"}, args...)
		return Run(t.Context(), args, env("WAYMARK_STATE_DIR", dir), strings.NewReader(""), &out, &out), out.String()
	}
	const missing, failed = int(failure.NotFound), int(failure.General)
	for _, test := range []struct {
		user  string
		code  int
		finds []string
	}{
		{"wide", missing, []string{`(?m)^ok +server +version \S+, max_payload`, `(?m)^ok +new streams +this key may make them`, `(?m)^ok +room for streams +the account has no limit; each server needs 16\.\d GiB`, "fleet payments does not exist on .*\nhint: start its daemon"}},
		{"narrow", missing, []string{`(?m)^warning +room for streams +\S+ \S+ are free`, `(?m)^  room for streams: raise max_file of the account, or use --quota \d+MiB$`}},
		{"tiny", failed, []string{`(?m)^FAILED +room for streams +\S+ \S+ are free, and the smallest fleet reserves `, `(?m)^  room for streams: raise max_file of the account$`}},
		{"few", failed, []string{`(?m)^FAILED +room for streams +the account may have 6 more streams, and a fleet has 7$`, `(?m)^  room for streams: raise max_streams`}},
		{"dull", failed, []string{`(?m)^FAILED +room for streams +the account may use \S+ \S+ of memory`, `(?m)^  room for streams: raise max_memory`}},
		{"reader", failed, []string{`(?m)^FAILED +rights +this key may not make a fleet: `, `(?m)^  rights: `, `not checked +new streams, room for streams`}},
		{"idle", failed, []string{`(?m)^FAILED +jetstream +JetStream is off for this account`}},
	} {
		code, said := as(test.user, "doctor", "--timeout", "10s")
		require.Equal(t, test.code, code, "%s: %s", test.user, said)
		for _, find := range test.finds {
			require.Regexp(t, find, said, test.user)
		}
	}
	nc, err := nats.Connect(address, nats.UserInfo("narrow", "secret"))
	require.NoError(t, err)
	defer nc.Close()
	js, err := jetstream.New(nc)
	require.NoError(t, err)
	info, err := js.AccountInfo(t.Context())
	require.NoError(t, err)
	require.Zero(t, info.Streams, "doctor changes nothing")

	// The quota that it names is the largest that fits.
	_, said := as("narrow", "doctor")
	_, quota, found := strings.Cut(said, "--quota ")
	require.True(t, found, said)
	quota, _, _ = strings.Cut(quota, "\n")
	code, said := as("narrow", "fleet", "add", "payments", "--quota", quota)
	require.Zero(t, code, said)
	code, said = as("narrow", "doctor")
	require.Equal(t, failed, code, said)
	require.Contains(t, said, "no daemon answers")
}
