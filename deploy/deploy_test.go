package deploy_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/nats/access"
	"github.com/waymarkio/waymark/internal/nats/natsd"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

func TestOneNodeConfig_RealServer_ServesFleet(t *testing.T) {
	t.Setenv("WAYMARK_NATS_PASSWORD", "correct-horse")
	opts, err := server.ProcessConfigFile(filepath.Join("nats", "one-node.conf"))
	require.NoError(t, err)
	require.Equal(t, "127.0.0.1", opts.Host, "nothing listens beyond this machine")
	require.True(t, opts.SyncAlways, "an acknowledgement means synced")
	require.Equal(t, natsd.DefaultPing, opts.PingInterval, "a client that is gone is found as soon as by a server of Waymark's own")
	opts.Port, opts.StoreDir, opts.NoSigs, opts.NoLog = -1, t.TempDir(), true, true
	s, err := server.NewServer(opts)
	require.NoError(t, err)
	s.Start()
	defer s.WaitForShutdown()
	defer s.Shutdown()
	require.True(t, s.ReadyForConnections(10*time.Second))

	_, err = nats.Connect(s.ClientURL())
	require.ErrorIs(t, err, nats.ErrAuthorization, "a connection without the password is refused")
	nc, err := nats.Connect(s.ClientURL(), nats.UserInfo("waymark", "correct-horse"))
	require.NoError(t, err)
	defer nc.Close()
	js, err := jetstream.New(nc)
	require.NoError(t, err)
	require.NoError(t, kvstore.Provision(t.Context(), js, kvstore.FleetConfig{Fleet: schema.DefaultFleet}))
	settings, _, err := kvstore.NewFleets(js).Get(t.Context(), schema.DefaultFleet)
	require.NoError(t, err)
	shard, err := kvstore.OpenShard(js, settings, 0, "tester")
	require.NoError(t, err)
	usage, err := shard.Usage(t.Context())
	require.NoError(t, err)
	require.NotEmpty(t, usage.Incarnation)
}

func TestClusterConfigurations_Pings_FindASilentRouteSoon(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"nats/three-nodes/nats.conf", "kubernetes/cluster/nats-values.yaml"} {
		text, err := os.ReadFile(filepath.FromSlash(name))
		require.NoError(t, err)
		require.Regexp(t, `(?m)^ *ping_interval: "`+natsd.DefaultPing.String()+`"$`, string(text), name)
		require.Regexp(t, `(?m)^ *ping_max: 2$`, string(text), name)
	}
}

// Each of ten fleets may use all that it may have, and another client still connects.
func TestClusterConfigurations_Limits_HoldTenFleets(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"nats/three-nodes/nats.conf", "kubernetes/cluster/nats-values.yaml"} {
		text, err := os.ReadFile(filepath.FromSlash(name))
		require.NoError(t, err)
		limit := func(of string) int {
			found := regexp.MustCompile(`(?m)^ *` + of + `: (\d+)$`).FindStringSubmatch(string(text))
			require.Len(t, found, 2, "%s of %s", of, name)
			n, err := strconv.Atoi(found[1])
			require.NoError(t, err)
			return n
		}
		require.GreaterOrEqual(t, limit("max_connections"), 10*len(access.Roles())*access.DefaultConnections, name)
		require.GreaterOrEqual(t, limit("max_subscriptions"), access.ClientSubscriptions, name)
	}
}

func TestSystemdUnits_Analyze_Valid(t *testing.T) {
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Skip("systemd-analyze is not on this machine: the units are unproven here")
	}
	for _, unit := range []string{"waymark.service", "waymark-joined.service", "waymark-backup.service", "waymark-backup.timer"} {
		out, err := exec.CommandContext(t.Context(), analyze, "verify", "--man=no", filepath.Join("systemd", unit)).CombinedOutput()
		// The binary is not installed on a build machine; everything else it says counts.
		for line := range strings.FieldsFuncSeq(string(out), func(r rune) bool { return r == '\n' }) {
			require.Contains(t, line, "/usr/bin/waymark", "systemd-analyze of %s: %s (%v)", unit, line, err)
		}
	}
}

func TestServiceUnits_Hardening_IsTheSame(t *testing.T) {
	t.Parallel()
	hardening := func(unit string) (lines []string) {
		text, err := os.ReadFile(filepath.Join("systemd", unit))
		require.NoError(t, err)
		begun := false
		for line := range strings.Lines(string(text)) {
			if begun = begun && strings.TrimSpace(line) != "" || strings.HasPrefix(line, "UMask="); begun {
				lines = append(lines, strings.TrimSpace(line))
			}
		}
		return lines
	}
	want := hardening("waymark-joined.service")
	require.Contains(t, want, "UMask=0077")
	require.Contains(t, want, "LimitCORE=0", "a core file would have the seeds of keys")
	require.Contains(t, want, "SystemCallFilter=@system-service")
	require.Equal(t, want, hardening("waymark.service"))
	require.Equal(t, want, hardening("waymark-backup.service"))
}
