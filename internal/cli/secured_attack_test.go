package cli

import (
	"bufio"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nkeys"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/look/failure"
	"github.com/waymarkio/waymark/internal/nats/access"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// ofFleet are the subjects that belong to a fleet: to publish there is to change it, or to ask for what is in it.
func ofFleet(fleet string) []string {
	n := schema.NamesOf(fleet, 0)
	list := []string{
		n.EventSubject("r1"), n.EventSubject(schema.BarrierRun), n.CheckpointSubject("r1"), schema.HeartbeatSubject(fleet, "one"),
		schema.NoticeSubject(fleet, "one"), schema.SettingsSubject(fleet),
		schema.ObservedSubject(fleet, "run.ended", "r1"), schema.DeadLetterSubject(fleet, schema.ReasonStale, "r1"),
		"$O." + schema.BlobBucket(fleet) + ".M.x", "$O." + schema.BlobBucket(fleet) + ".C.x",
		"$KV." + n.CheckpointBucket() + ".r1", "$KV." + n.SegmentBucket() + ".r1.1",
		"$KV." + schema.FleetBucket + "." + fleet, "$KV." + schema.LeaseBucket + ".fold." + fleet + ".0",
	}
	for _, verb := range []string{
		schema.VerbRecover, schema.VerbGet, schema.VerbList, schema.VerbHistory, schema.VerbSettle, schema.VerbClaim, schema.VerbInput,
		schema.VerbCancel, schema.VerbHandoff, schema.VerbSignal, schema.VerbFork, schema.VerbFleet, schema.VerbMark, schema.VerbErase, schema.VerbCleanup,
	} {
		list = append(list, schema.ServiceSubject(verb, fleet, ""), schema.ServiceSubject(verb, fleet, "r1"))
	}
	for _, stream := range []string{
		n.EventStream(), "KV_" + n.CheckpointBucket(), "KV_" + n.SegmentBucket(), "OBJ_" + schema.BlobBucket(fleet), schema.DeadLetterStream(fleet),
	} {
		list = append(list, streamAPI(stream)...)
	}
	return list
}

// streamAPI are JetStream's API subjects of a stream.
func streamAPI(stream string) []string {
	var list []string
	for _, verb := range []string{
		"CREATE", "UPDATE", "INFO", "DELETE", "PURGE", "SNAPSHOT", "RESTORE", "MSG.GET", "MSG.DELETE", "PEER.REMOVE", "LEADER.STEPDOWN",
	} {
		list = append(list, "$JS.API.STREAM."+verb+"."+stream)
	}
	return append(list,
		"$JS.API.CONSUMER.CREATE."+stream, "$JS.API.CONSUMER.CREATE."+stream+".c", "$JS.API.CONSUMER.CREATE."+stream+".c.>",
		"$JS.API.CONSUMER.DURABLE.CREATE."+stream+".c", "$JS.API.CONSUMER.INFO."+stream+".c", "$JS.API.CONSUMER.LIST."+stream,
		"$JS.API.CONSUMER.NAMES."+stream, "$JS.API.CONSUMER.DELETE."+stream+".c", "$JS.API.CONSUMER.PAUSE."+stream+".c",
		"$JS.API.CONSUMER.UNPIN."+stream+".c", "$JS.API.CONSUMER.MSG.NEXT."+stream+".c",
		"$JS.API.DIRECT.GET."+stream, "$JS.API.DIRECT.GET."+stream+".x", "$JS.ACK."+stream+".c.1.1.1.1.0",
	)
}

// forbidden are subjects that no client of any fleet may publish to.
var forbidden = []string{
	"$JS.API.STREAM.NAMES", "$JS.API.STREAM.LIST", "$JS.API.STREAM.CREATE.mine", "$JS.API.META.LEADER.STEPDOWN",
	"$JS.API.SERVER.REMOVE", "$JS.API.ACCOUNT.PURGE.FLEET_payments_operator", "$SYS.REQ.SERVER.PING", "$SYS.REQ.SERVER.PING.VARZ",
	"$SYS.REQ.ACCOUNT.WAYMARK_payments.CONNZ", "$SYS.REQ.CLAIMS.UPDATE", "_INBOX.abc", "_INBOX_daemon.abc", "_INBOX_operator.abc",
	"waymark", "waymark.other", "other", "agents.prompt.x",
}

// notHeard are subjects that no client may subscribe to.
var notHeard = []string{
	">", "*", "waymark.>", "waymark.*.*", "waymark.events.>", "waymark.events.payments.0.r1", "$JS.>", "$JS.API.>", "$KV.>", "$O.>", "$SYS.>",
	"$SRV.>", "_R_.>", "_INBOX.>", "_INBOX_*.>", "_INBOX_daemon.>", "waymark.heartbeats.>", "waymark.recover.payments.*",
	"waymark.checkpoints.>", "waymark.observed.>", "waymark.notices.>",
}

// mapped is a subject as the server logs it: what a client's account maps is mapped before the permissions are looked at.
func mapped(subject string) string {
	if rest, ok := strings.CutPrefix(subject, "$JS.API."); ok {
		return access.APIPrefix + rest
	}
	return subject
}

// mappedOwn is a subject of the client's own fleet as the server logs it: its account has nothing behind the barrier's,
// nor behind those on which the daemon speaks.
func mappedOwn(subject string) string {
	if regexp.MustCompile(`^waymark\.(observed|notices|settings|checkpoints)\.|\.` + schema.BarrierRun + `$`).MatchString(subject) {
		return "waymark.refused." + strings.TrimPrefix(subject, "waymark.")
	}
	return mapped(subject)
}

// mayNotPublish tries subjects, and returns once each was refused and the server's log has it.
func (s *secured) mayNotPublish(t *testing.T, u *user, subjects []string, asLogged func(string) string) {
	t.Helper()
	for _, subject := range subjects {
		require.NoError(t, u.PublishRequest(subject, u.NewInbox(), []byte("{}")))
	}
	require.NoError(t, u.FlushTimeout(securedWait))
	for _, subject := range subjects {
		want := fmt.Sprintf("%q", asLogged(subject))
		require.Eventually(t, func() bool { return u.wasRefused("Publish to " + want) }, securedWait, time.Millisecond, "%s was not refused", subject)
		require.Eventually(t, func() bool { return s.logs.has("Publish Violation", want) }, securedWait, time.Millisecond, "%s is not in the log", subject)
	}
}

func (s *secured) mayNotSubscribe(t *testing.T, u *user, subjects []string) {
	t.Helper()
	for _, subject := range subjects {
		_, err := u.SubscribeSync(subject)
		require.NoError(t, err)
	}
	require.NoError(t, u.FlushTimeout(securedWait))
	for _, subject := range subjects {
		want := fmt.Sprintf("%q", subject)
		require.Eventually(t, func() bool { return u.wasRefused("Subscription to " + want) }, securedWait, time.Millisecond, "%s was not refused", subject)
		require.Eventually(t, func() bool { return s.logs.has("Subscription Violation", want) }, securedWait, time.Millisecond, "%s is not in the log", subject)
	}
}

// stored is what the streams of a fleet's account hold: subjects and last sequences.
func (s *secured) stored(t *testing.T, fleet string) map[string]string {
	t.Helper()
	js, err := jetstream.New(s.connect(t, fleet, access.Daemon).Conn)
	require.NoError(t, err)
	n := schema.NamesOf(fleet, 0)
	all := make(map[string]string)
	for _, name := range []string{
		n.EventStream(), "KV_" + n.SegmentBucket(), "OBJ_" + schema.BlobBucket(fleet), schema.DeadLetterStream(fleet), "KV_" + schema.FleetBucket,
	} {
		stream, err := js.Stream(t.Context(), name)
		require.NoError(t, err)
		info, err := stream.Info(t.Context(), jetstream.WithSubjectFilter(">"))
		require.NoError(t, err)
		all[name] = fmt.Sprint(info.State.LastSeq, info.State.Msgs, info.State.Subjects)
	}
	return all
}

// The rows of docs/security.md, tried with real credentials of another fleet and of other roles.
func TestPermissions_Violation_RefusedAndLogged(t *testing.T) {
	if testing.Short() {
		t.Skip("short: a cluster of three servers")
	}
	s := startSecured(t, "payments", "rivals")
	ctx := t.Context()
	first := s.executor(t, "payments", "one")
	victim, err := first.Start(ctx, publisher.RunSpec{ID: "r1"})
	require.NoError(t, err)
	before := s.stored(t, "payments")

	t.Run("another fleet is out of reach", func(t *testing.T) {
		for _, role := range []access.Role{access.Observer, access.Executor, access.Operator} {
			u := s.connect(t, "rivals", role)
			s.mayNotPublish(t, u, ofFleet("payments"), mapped)
			s.mayNotPublish(t, u, forbidden, mapped)
			s.mayNotSubscribe(t, u, notHeard)
			s.mayNotSubscribe(t, u, []string{"waymark.checkpoints.payments.0.*", "waymark.observed.payments.*.*.*", "waymark.settings.payments", "_INBOX_executor"})
		}
		// Not even its daemon, whose account is another.
		u := s.connect(t, "rivals", access.Daemon)
		s.mayNotPublish(t, u, ofFleet("payments")[:9], func(s string) string { return s })
		s.mayNotSubscribe(t, u, []string{">", "waymark.events.payments.>", "$SYS.>", "waymark.heartbeats.payments.*"})
		require.Equal(t, before, s.stored(t, "payments"))
	})

	t.Run("a role does its own work only", func(t *testing.T) {
		n := schema.NamesOf("payments", 0)
		changes := func(verbs ...string) (list []string) {
			for _, verb := range verbs {
				list = append(list, schema.ServiceSubject(verb, "payments", "r1"))
			}
			return list
		}
		s.mayNotPublish(t, s.connect(t, "payments", access.Observer), append(changes(
			schema.VerbRecover, schema.VerbClaim, schema.VerbSettle, schema.VerbInput, schema.VerbCancel, schema.VerbHandoff, schema.VerbSignal, schema.VerbFork, schema.VerbMark,
			schema.VerbErase, schema.VerbCleanup),
			n.EventSubject("r1"), schema.HeartbeatSubject("payments", "one"), "$O."+schema.BlobBucket("payments")+".M.x"), mapped)
		s.mayNotPublish(t, s.connect(t, "payments", access.Executor), append(changes(schema.VerbSettle, schema.VerbInput, schema.VerbMark, schema.VerbErase, schema.VerbCleanup),
			"$JS.API.INFO", "$JS.API.STREAM.MSG.GET.KV_"+n.CheckpointBucket(), "$JS.API.DIRECT.GET.KV_"+n.SegmentBucket(),
			"$JS.API.STREAM.MSG.GET."+schema.DeadLetterStream("payments")), mapped)
		past := []string{
			"$JS.API.STREAM.PURGE." + n.EventStream(), "$JS.API.STREAM.DELETE." + n.EventStream(), "$JS.API.STREAM.MSG.DELETE." + n.EventStream(),
			"$JS.API.STREAM.UPDATE." + n.EventStream(), "$JS.API.CONSUMER.CREATE." + n.EventStream() + ".c",
			"$JS.API.STREAM.SNAPSHOT." + n.EventStream(), "$KV." + n.SegmentBucket() + ".r1.1", "$KV." + n.CheckpointBucket() + ".r1",
			"$KV." + schema.FleetBucket + ".payments", n.EventSubject(schema.BarrierRun), schema.NoticeSubject("payments", "one"),
			schema.ObservedSubject("payments", "run.ended", "r1"),
		}
		for _, role := range []access.Role{access.Observer, access.Executor, access.Operator} {
			s.mayNotPublish(t, s.connect(t, "payments", role), past, mappedOwn)
		}
		// The daemon makes streams and cannot delete one, nor a message of another fleet.
		s.mayNotPublish(t, s.connect(t, "payments", access.Daemon), []string{
			"$JS.API.STREAM.DELETE." + n.EventStream(), "$JS.API.STREAM.DELETE.KV_" + n.SegmentBucket(), "$JS.API.STREAM.MSG.DELETE." + schema.NamesOf("rivals", 0).EventStream(),
			"$JS.API.STREAM.SNAPSHOT." + schema.NamesOf("rivals", 0).EventStream(), "$JS.API.STREAM.CREATE.other", "$JS.API.STREAM.NAMES", "$SYS.REQ.SERVER.PING",
		}, func(s string) string { return s })
		require.Equal(t, before, s.stored(t, "payments"))
	})

	t.Run("a reply subject leads back and nowhere else", func(t *testing.T) {
		mine := s.stored(t, "rivals")
		u := s.connect(t, "rivals", access.Executor)
		n, other := schema.NamesOf("rivals", 0), schema.NamesOf("payments", 0)
		replies := []string{
			other.EventSubject("r1"), n.EventSubject("another"), "$KV." + n.SegmentBucket() + ".r1.1", "$KV." + schema.FleetBucket + ".rivals",
			"$KV." + n.CheckpointBucket() + ".r1", "$O." + schema.BlobBucket("rivals") + ".M.x", "$JS.API.STREAM.PURGE." + n.EventStream(),
			"$JS.API.STREAM.DELETE." + n.EventStream(), "$JS.API.STREAM.PURGE." + other.EventStream(), "$SYS.REQ.SERVER.PING",
			"waymark.cancel.payments.r1", "_INBOX_operator.abc",
		}
		for _, reply := range replies {
			require.NoError(t, u.PublishRequest(n.EventSubject("r1"), reply, []byte("x")))
		}
		// An answered one behind them: what they led to is done.
		_, err := u.Request(n.EventSubject("r1"), []byte("x"), securedWait)
		require.NoError(t, err)
		_, err = u.Request(n.EventSubject("r1"), []byte("x"), securedWait)
		require.NoError(t, err)
		require.Equal(t, before, s.stored(t, "payments"))
		now := s.stored(t, "rivals")
		count := len(replies) + 2
		require.Equal(t, fmt.Sprint(count, count, map[string]uint64{n.EventSubject("r1"): uint64(count)}), now[n.EventStream()])
		delete(now, n.EventStream())
		delete(mine, n.EventStream())
		require.Equal(t, mine, now)
	})

	t.Run("an answer that enters the asker's account finds no verb there that is not the asker's", func(t *testing.T) {
		n := schema.NamesOf("payments", 0)
		planted := []byte(`{"by":"ceo","policy":{"completed_seconds":1,"grace_seconds":1}}`)
		_, err := s.connect(t, "payments", access.Executor).Request(n.EventSubject("planted"), planted, securedWait)
		require.NoError(t, err)
		before = s.stored(t, "payments")
		// What would arrive at the daemon.
		listener := s.connect(t, "payments", access.Daemon)
		heard := make(chan *nats.Msg, 1<<10)
		deciding := []string{
			schema.ServiceSubject(schema.VerbCleanup, "payments", ""), schema.ServiceSubject(schema.VerbInput, "payments", "planted"),
			schema.ServiceSubject(schema.VerbSettle, "payments", "planted"), schema.ServiceSubject(schema.VerbMark, "payments", "planted"),
			schema.ServiceSubject(schema.VerbErase, "payments", "planted"),
		}
		for _, subject := range deciding {
			_, err := listener.ChanSubscribe(subject, heard)
			require.NoError(t, err)
		}
		require.NoError(t, listener.FlushTimeout(securedWait))
		last := []byte(`{"last_by_subj":"` + n.EventSubject("planted") + `"}`)
		for _, port := range s.ports { // an answer goes on where it enters, on the server of the asker
			for _, role := range []access.Role{access.Observer, access.Executor} {
				u := s.connectTo(t, fmt.Sprintf("tls://127.0.0.1:%d", port), "payments", role)
				for _, reply := range deciding {
					for _, question := range []string{"$JS.API.DIRECT.GET." + n.EventStream(), "$JS.API.STREAM.MSG.GET." + n.EventStream()} {
						require.NoError(t, u.PublishRequest(question, reply, last))
					}
				}
				answer, err := u.Request("$JS.API.DIRECT.GET."+n.EventStream(), last, securedWait)
				require.NoError(t, err)
				require.Equal(t, planted, answer.Data)
				_, err = u.Request("$JS.API.STREAM.MSG.GET."+n.EventStream(), last, securedWait)
				require.NoError(t, err)
			}
			// Behind them all, what an operator asks does arrive.
			u := s.connectTo(t, fmt.Sprintf("tls://127.0.0.1:%d", port), "payments", access.Operator)
			require.NoError(t, u.Publish(deciding[0], []byte("asked")))
			select {
			case m := <-heard:
				require.Equal(t, "asked", string(m.Data), "%s was asked by an answer", m.Subject)
			case <-time.After(securedWait):
				require.Fail(t, "what an operator asks does not arrive")
			}
		}
		require.Equal(t, before, s.stored(t, "payments"))
	})

	t.Run("headers give no power", func(t *testing.T) {
		n := schema.NamesOf("rivals", 0)
		u := s.connect(t, "rivals", access.Executor)
		mine := s.stored(t, "rivals")
		for name, value := range map[string]string{
			"Nats-Rollup": "all", "Nats-TTL": "1s", "Nats-Schedule": "@every 1s", "Nats-Incr": "+1",
			"Nats-Expected-Stream": schema.NamesOf("payments", 0).EventStream(),
		} {
			m := &nats.Msg{Subject: n.EventSubject("r1"), Header: nats.Header{name: {value}}, Data: []byte("x")}
			answer, err := u.RequestMsg(m, securedWait)
			require.NoError(t, err, name)
			require.Contains(t, string(answer.Data), `"error"`, name)
		}
		// A batch is stored with its last message or not at all.
		begun, err := u.RequestMsg(&nats.Msg{Subject: n.EventSubject("r1"), Data: []byte("x"), Header: nats.Header{
			"Nats-Batch-Id": {"b1"}, "Nats-Batch-Sequence": {"1"},
		}}, securedWait)
		require.NoError(t, err)
		require.Empty(t, begun.Data, "it was begun")
		require.Equal(t, mine, s.stored(t, "rivals"))
		// The server names the sender, whatever the message claims; and a message id is of one fleet's stream.
		forged := &nats.Msg{Subject: n.EventSubject("r1"), Data: []byte("x"), Header: nats.Header{
			"Nats-Request-Info": {`{"acc":"WAYMARK_payments","svc":"WAYMARK_payments"}`}, "Nats-Msg-Id": {"guessed"},
		}}
		answer, err := u.RequestMsg(forged, securedWait)
		require.NoError(t, err)
		require.Contains(t, string(answer.Data), n.EventStream())
		require.Equal(t, before, s.stored(t, "payments"))
		honest := s.connect(t, "payments", access.Executor)
		answer, err = honest.RequestMsg(&nats.Msg{
			Subject: schema.NamesOf("payments", 0).EventSubject("r9"), Data: []byte("x"), Header: nats.Header{"Nats-Msg-Id": {"guessed"}},
		}, securedWait)
		require.NoError(t, err)
		require.NotContains(t, string(answer.Data), "duplicate")
		require.NotContains(t, string(answer.Data), `"error"`)
	})

	t.Run("the program says what is not permitted and does not wait", func(t *testing.T) {
		for _, try := range []struct {
			fleet string
			role  access.Role
			args  []string
			says  string
		}{
			{"payments", access.Observer, []string{"cancel", "r1"}, `publish to "waymark.cancel.rivals.r1"`},
			{"payments", access.Observer, []string{"runs", "ls"}, `publish to "waymark.list.rivals"`},
		} {
			text := s.waymark(t, int(failure.Refused), append([]string{"--fleet", "rivals", "--context", s.context(try.fleet, try.role)}, try.args...)...)
			require.Contains(t, text, "does not permit this user to "+try.says)
			require.Contains(t, text, "hint: use credentials of this fleet for one of these roles: ")
		}
		text := s.waymark(t, int(failure.Usage), "fleet", "add", "payments", "--dir", s.fleets, "--shards", "2")
		require.Contains(t, text, "a fleet keeps its number of shards")
		s.waymark(t, 0, "fleet", "add", "payments", "--dir", s.fleets, "--offline", "--shards", "1")
		text = s.waymark(t, int(failure.Refused), "--fleet", "payments", "--nats", s.url(), "--tls-ca", filepath.Join(s.dir, "ca.pem"),
			"--nkey", filepath.Join(s.fleets, "payments-observer.nk"), "runs", "ls")
		require.Contains(t, text, "inbox prefix")
		require.Contains(t, text, "--inbox-prefix")
		s.waymark(t, int(failure.Unavailable), "--fleet", "payments", "--nats", s.url(), "--tls-ca", filepath.Join(s.dir, "ca.pem"), // no daemon runs
			"--nkey", filepath.Join(s.fleets, "payments-observer.nk"), "--inbox-prefix", access.InboxPrefix(access.Observer), "runs", "ls")
		text = s.waymark(t, int(failure.NotFound), "--fleet", "payments", "--context", s.context("rivals", access.Daemon), "serve")
		require.Contains(t, text, "a daemon with a key creates none")

		connect := func(fleet string, opts []nats.Option) (*publisher.Fleet, error) {
			return publisher.Connect(ctx, publisher.Config{URL: s.url(), Options: opts, Fleet: fleet, Executor: "x", Agent: "y"})
		}
		_, err := connect("payments", s.options(t, "rivals", access.Executor))
		require.ErrorIs(t, err, publisher.ErrNotPermitted, "the other fleet's credentials")
		_, err = connect("payments", append(s.options(t, "payments", access.Executor), func(o *nats.Options) error {
			o.InboxPrefix = ""
			return nil
		}))
		require.ErrorIs(t, err, publisher.ErrNotPermitted)
		require.ErrorContains(t, err, "CustomInboxPrefix", "without the inbox prefix")
		watcher, err := connect("payments", s.options(t, "payments", access.Observer))
		require.NoError(t, err)
		_, err = watcher.Start(ctx, publisher.RunSpec{ID: "observed"})
		require.ErrorIs(t, err, publisher.ErrNotPermitted)
		require.NotErrorIs(t, err, publisher.ErrUnresolved, "it is certain that nothing was stored")
		require.ErrorIs(t, watcher.Cancel(ctx, "r1", "me", ""), publisher.ErrNotPermitted)
		require.NoError(t, watcher.Close(ctx))
	})

	t.Run("no access without key and certificate", func(t *testing.T) {
		ca := nats.RootCAs(filepath.Join(s.dir, "ca.pem"))
		_, err := nats.Connect(s.url(), ca)
		require.ErrorIs(t, err, nats.ErrAuthorization, "anonymously")
		_, err = nats.Connect(s.url(), ca, nats.UserInfo("waymark", "guess"))
		require.ErrorIs(t, err, nats.ErrAuthorization)
		stranger, err := nkeys.CreateUser()
		require.NoError(t, err)
		public, err := stranger.PublicKey()
		require.NoError(t, err)
		_, err = nats.Connect(s.url(), ca, nats.Nkey(public, stranger.Sign))
		require.ErrorIs(t, err, nats.ErrAuthorization)
		require.True(t, s.logs.has("authentication error"))

		other := newAuthority(t, t.TempDir())
		_, err = nats.Connect(s.url(), append(s.options(t, "payments", access.Executor), func(o *nats.Options) error {
			o.RootCAsCB = nil
			o.TLSConfig = &tls.Config{RootCAs: x509.NewCertPool(), MinVersion: tls.VersionTLS13}
			o.TLSConfig.RootCAs.AddCert(other.cert)
			return nil
		})...)
		require.ErrorContains(t, err, "x509", "a server of another authority")
		roots := x509.NewCertPool()
		roots.AddCert(s.ca.cert)
		_, err = nats.Connect(s.url(), append(s.options(t, "payments", access.Executor),
			nats.Secure(&tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12, MaxVersion: tls.VersionTLS12}))...)
		require.Error(t, err, "old TLS")

		// In plain text the server says that it wants TLS, and nothing else.
		address := fmt.Sprintf("127.0.0.1:%d", s.ports[0])
		plain, err := net.Dial("tcp", address)
		require.NoError(t, err)
		defer plain.Close() //nolint:errcheck // of a test
		require.NoError(t, plain.SetDeadline(time.Now().Add(securedWait)))
		reader := bufio.NewReader(plain)
		line, err := reader.ReadString('\n')
		require.NoError(t, err)
		require.Contains(t, line, `"tls_required":true`)
		_, err = plain.Write([]byte("CONNECT {\"verbose\":false}\r\nPING\r\n"))
		require.NoError(t, err)
		rest, err := reader.ReadString(0)
		require.Error(t, err, "the connection ends")
		require.NotContains(t, rest, "PONG")
	})

	t.Run("no server joins without a certificate of the authority", func(t *testing.T) {
		roots := x509.NewCertPool()
		roots.AddCert(s.ca.cert)
		expired, wrong := *s.ca, newAuthority(t, t.TempDir())
		expired.dir = t.TempDir()
		expired.server(t, "late", time.Now().Add(-time.Hour))
		wrong.server(t, "wrong", time.Now().Add(time.Hour))
		load := func(dir, name string) []tls.Certificate {
			pair, err := tls.LoadX509KeyPair(filepath.Join(dir, name+".pem"), filepath.Join(dir, name+".key"))
			require.NoError(t, err)
			return []tls.Certificate{pair}
		}
		for name, certs := range map[string][]tls.Certificate{"none": nil, "expired": load(expired.dir, "late"), "of another": load(wrong.dir, "wrong")} {
			conn, err := tls.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", s.routes[0]), &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS13, Certificates: certs})
			if err == nil {
				require.NoError(t, conn.SetDeadline(time.Now().Add(securedWait)))
				_, err = conn.Read(make([]byte, 1))
				_ = conn.Close()
			}
			require.Error(t, err, name)
			var late net.Error
			require.False(t, errors.As(err, &late) && late.Timeout(), "%s: the server said nothing", name)
		}
		require.Eventually(t, func() bool { return s.logs.has("TLS route handshake error") }, securedWait, time.Millisecond)
	})

	t.Run("a revoked key is out", func(t *testing.T) {
		u := s.connect(t, "rivals", access.Observer)
		out := make(chan struct{}, 8)
		u.SetDisconnectErrHandler(func(*nats.Conn, error) { out <- struct{}{} })
		require.NoError(t, os.Remove(filepath.Join(s.fleets, "rivals-observer.nk")))
		s.waymark(t, 0, "fleet", "add", "rivals", "--dir", s.fleets, "--offline")
		begun := time.Now()
		s.reload(t, "rivals")
		select {
		case <-out:
			t.Logf("its connection was closed %s after the reload began", time.Since(begun))
		case <-time.After(securedWait):
			require.Fail(t, "the connection stays")
		}
		require.Eventually(t, func() bool { return s.logs.has("authentication error") && !u.IsConnected() }, securedWait, time.Millisecond)
		s.as(t, "rivals", access.Observer, int(failure.Unavailable), "runs", "ls") // the new key is let in; no daemon runs
	})

	require.NoError(t, victim.End(ctx, publisher.RunEnd{Status: schema.StatusCompleted}), "the fleet that was attacked goes on")
}
