package access_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nkeys"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/harness/natstest"
	"github.com/waymarkio/waymark/internal/nats/access"
	"github.com/waymarkio/waymark/schema"
)

const (
	reentryWait = time.Minute
	pollEvery   = 10 * time.Millisecond
	// answers is the number of messages in each stream: enough for a pull request with each reply subject.
	answers = 1000
)

// fleetServer is one server, or a cluster of three, with the accounts of one fleet, and the messages that arrive in the account of its streams.
type fleetServer struct {
	// servers: the first one has every stream.
	servers []*server.Server
	keys    map[access.Role]nkeys.KeyPair
	// spy is a user of the streams' account with all rights.
	spy *nats.Conn
	mu  sync.Mutex
	// arrived are the messages in that account.
	arrived map[arrival]answered
}

// answered says whether an answer is among the messages of an arrival, and whether the daemon would accept it as a
// request.
type answered struct{ answer, taken bool }

// arrival is the pattern that a message matched and the subject that the message shows. They differ for a message of
// a consumer: the server routes it by the reply subject of the pull request and shows the subject of storage.
type arrival struct{ pattern, shown string }

const (
	questionBody = "question"
	pullBody     = `{"batch":1,"no_wait":true}`
	answerBody   = `{"answer":1}`
)

func startFleet(t *testing.T, fleet string, shards, nodes int) *fleetServer {
	t.Helper()
	f := &fleetServer{keys: make(map[access.Role]nkeys.KeyPair), arrived: make(map[arrival]answered)}
	account := access.Account{Fleet: fleet, Shards: shards, Keys: make(map[access.Role][]string), VerifySubjects: []string{"tools.>"}}
	for _, role := range access.Roles() {
		pair, err := nkeys.CreateUser()
		require.NoError(t, err)
		public, err := pair.PublicKey()
		require.NoError(t, err)
		f.keys[role], account.Keys[role] = pair, []string{public}
	}
	text, err := account.Config()
	require.NoError(t, err)
	ports := make([]string, nodes)
	for i, port := range natstest.FreePorts(t, nodes) {
		ports[i] = fmt.Sprintf("127.0.0.1:%d", port)
	}
	for i := range nodes {
		dir := t.TempDir()
		file := filepath.Join(dir, "nats.conf")
		conf := fmt.Sprintf("listen: \"127.0.0.1:-1\"\nserver_name: n%d\nserver_tags: [\"n:%d\"]\njetstream { store_dir: %q }\n", i, i, dir)
		if nodes > 1 {
			conf += fmt.Sprintf("cluster { name: c, listen: %q, routes: [\"nats://%s\"] }\n", ports[i], strings.Join(ports, `", "nats://`))
		}
		conf += "accounts {\nSYS { users: [{ user: sys, password: sys }] }\n" + text + "\n}\nsystem_account: SYS\n"
		require.NoError(t, os.WriteFile(file, []byte(conf), 0o600))
		opts, err := server.ProcessConfigFile(file)
		require.NoError(t, err)
		opts.NoLog, opts.NoSigs = true, true
		users := len(opts.Users)
		for _, a := range opts.Accounts {
			if a.Name == access.AccountOf(access.Daemon, fleet) {
				opts.Users = append(opts.Users, &server.User{Username: "spy", Password: "spy", Account: a})
			}
		}
		require.Len(t, opts.Users, users+1)
		srv, err := server.NewServer(opts)
		require.NoError(t, err)
		f.servers = append(f.servers, srv)
	}
	t.Cleanup(func() {
		for _, srv := range f.servers {
			srv.Shutdown()
		}
		for _, srv := range f.servers {
			srv.WaitForShutdown()
		}
	})
	for _, srv := range f.servers {
		srv.Start()
	}
	for _, srv := range f.servers {
		require.Eventually(t, func() bool {
			return srv.ReadyForConnections(time.Millisecond) && (nodes == 1 || srv.JetStreamIsCurrent())
		}, reentryWait, pollEvery)
	}
	f.spy = f.connect(t, f.servers[0], nats.UserInfo("spy", "spy"))
	f.provision(t, fleet, shards)
	// One subscription for each pattern, because a message shows another subject than the one it was routed by.
	patterns := slices.Clone(access.Account{Fleet: fleet, Shards: shards}.Rights(access.Daemon).Publish)
	for _, role := range access.Roles() {
		for _, pattern := range slices.Concat(access.Account{Fleet: fleet, Shards: shards}.Rights(role).Publish, access.Account{Fleet: fleet, Shards: shards}.Rights(role).Subscribe) {
			patterns = append(patterns, strings.Replace(pattern, access.APIPrefix, "$JS.API.", 1))
		}
	}
	patterns = append(patterns, "tools.>", "$SYS.>", "$JS.ACK.>")
	slices.Sort(patterns)
	for _, pattern := range slices.Compact(patterns) {
		if !strings.HasPrefix(pattern, "_") {
			_, err := f.spy.Subscribe(pattern, f.hear)
			require.NoError(t, err)
		}
	}
	require.NoError(t, f.spy.Flush())
	return f
}

func (f *fleetServer) connect(t *testing.T, srv *server.Server, opts ...nats.Option) *nats.Conn {
	t.Helper()
	closed := make(chan struct{})
	nc, err := nats.Connect(srv.ClientURL(), append(opts, nats.IgnoreDiscoveredServers(), nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}),
		nats.ClosedHandler(func(*nats.Conn) { close(closed) }))...)
	require.NoError(t, err)
	t.Cleanup(func() {
		nc.Close()
		<-closed
	})
	return nc
}

func (f *fleetServer) as(t *testing.T, role access.Role, srv *server.Server) *nats.Conn {
	t.Helper()
	public, err := f.keys[role].PublicKey()
	require.NoError(t, err)
	return f.connect(t, srv, nats.Nkey(public, f.keys[role].Sign), nats.CustomInboxPrefix(access.InboxPrefix(role)))
}

// provision creates the fleet's streams, with a message in each: their answers carry content chosen by a client.
func (f *fleetServer) provision(t *testing.T, fleet string, shards int) {
	t.Helper()
	js, err := jetstream.New(f.spy)
	require.NoError(t, err)
	var first *jetstream.Placement
	if len(f.servers) > 1 {
		first = &jetstream.Placement{Tags: []string{"n:0"}}
	}
	store := func(name, subjects, message string) {
		config := jetstream.StreamConfig{Name: name, Subjects: []string{subjects}, AllowDirect: true, Storage: jetstream.MemoryStorage, Placement: first}
		// A server is current before the leader knows it: until then it is offline for the leader.
		require.Eventually(t, func() bool {
			_, err = js.CreateStream(t.Context(), config)
			return err == nil
		}, reentryWait, pollEvery, "%s: %v", name, &err)
		for range answers {
			require.NoError(t, f.spy.Publish(message, []byte(answerBody)))
		}
		_, err = js.Publish(t.Context(), message, []byte(answerBody))
		require.NoError(t, err)
	}
	bucket := func(name string) { store("KV_"+name, "$KV."+name+".>", "$KV."+name+".x") }
	bucket(schema.FleetBucket)
	bucket(schema.LeaseBucket)
	store(schema.DeadLetterStream(fleet), schema.DeadLetterSubjects(fleet), strings.Replace(schema.DeadLetterSubjects(fleet), ">", "x", 1))
	blobs := schema.BlobBucket(fleet)
	store("OBJ_"+blobs, "$O."+blobs+".M.*", "$O."+blobs+".M.x")
	for i := range shards {
		n := schema.NamesOf(fleet, i)
		store(n.EventStream(), n.EventSubjects(), n.EventSubject("x"))
		bucket(n.SegmentBucket())
		bucket(n.CheckpointBucket())
		_, err = js.CreateConsumer(t.Context(), n.EventStream(), jetstream.ConsumerConfig{
			Durable: access.ObserverConsumer, AckPolicy: jetstream.AckExplicitPolicy, MaxDeliver: -1, AckWait: time.Hour, MaxWaiting: 4096, MaxAckPending: 1 << 16,
		})
		require.NoError(t, err)
	}
}

// hear records arriving messages, and answers instead of the daemon, to any reply subject.
func (f *fleetServer) hear(m *nats.Msg) {
	f.mu.Lock()
	at := arrival{m.Sub.Subject, m.Subject}
	has := f.arrived[at]
	if string(m.Data) != questionBody && string(m.Data) != pullBody {
		has.answer = true
		// The daemon ignores a request that it cannot answer.
		has.taken = has.taken || m.Reply != "" && schema.CheckReply(m.Reply) == nil
	}
	f.arrived[at] = has
	f.mu.Unlock()
	if m.Reply != "" && !strings.HasPrefix(m.Sub.Subject, "$JS.") && string(m.Data) == questionBody {
		_ = f.spy.Publish(m.Reply, []byte(answerBody)) // a closed connection fails the test where it waits
	}
}

// took returns the arrivals since the last call.
func (f *fleetServer) took() map[arrival]answered {
	f.mu.Lock()
	defer f.mu.Unlock()
	arrived := f.arrived
	f.arrived = make(map[arrival]answered)
	return arrived
}

// literal replaces a pattern's wildcards.
func literal(pattern string) string {
	return strings.NewReplacer("*.*", "x.y", "*", "x", ">", "x").Replace(pattern)
}

// A permission covers the subject of a message and not its reply subject, and an answer enters the requester's
// account, with its imports: a reply subject must not lead to anything that the requester may not publish to itself.
// Every request that a role may send is sent with every subject that any role, including the daemon, may publish to
// as reply subject: a new grant in the lists is in this test.
//
// A message of a consumer keeps its reply subject "$JS.ACK.…" on the way through imports, with "@" and the subject of
// storage on a route: it must not arrive anywhere as a request that the daemon answers.
func TestReplySubject_AnyRequest_StaysWithinSendersRights(t *testing.T) {
	t.Parallel()
	eachRoleAsks(t, 1)
}

// An answer is forwarded where it enters the requester's account: on the requester's server, which is each of three
// in turn. The streams are on the first.
func TestReplySubject_OnThreeServers_LeadsToNothingThatTheAskerMayNotPublish(t *testing.T) {
	if testing.Short() {
		t.Skip("short: a cluster of three servers")
	}
	t.Parallel()
	eachRoleAsks(t, 3)
}

func eachRoleAsks(t *testing.T, nodes int) {
	t.Helper()
	for _, role := range access.ClientRoles() {
		t.Run(string(role), func(t *testing.T) {
			t.Parallel()
			askAllWithEveryReply(t, role, nodes)
		})
	}
}

func askAllWithEveryReply(t *testing.T, role access.Role, nodes int) {
	t.Helper()
	const fleet, shards = "f", 1
	f := startFleet(t, fleet, shards, nodes)
	targets := replyTargets(fleet, shards)
	require.Greater(t, len(targets), 100)
	rights := access.Account{Fleet: fleet, Shards: shards}.Rights(role)
	for _, srv := range f.servers {
		nc := f.as(t, role, srv)
		// Once each subject is answered, the servers know each other's subscriptions.
		for _, question := range rights.Publish {
			require.Eventually(t, func() bool { return !answersOnce(question) || ask(nc, question) == nil }, reentryWait, pollEvery, question)
		}
		for _, question := range rights.Publish {
			if strings.HasPrefix(question, "_R_") {
				continue
			}
			for _, reply := range targets {
				require.NoError(t, nc.PublishRequest(literal(question), reply, bodyOf(question)))
			}
		}
		// Each subject is requested again, with an inbox: its answer comes after the previous ones.
		for _, question := range rights.Publish {
			if answersOnce(question) {
				require.NoError(t, ask(nc, question), question)
			}
		}
	}
	require.NoError(t, f.spy.FlushTimeout(reentryWait))
	again, misshown := 0, 0
	for at, has := range f.took() {
		if !covers(at.pattern, at.shown) {
			// For a message of a consumer only the pattern shows its routing.
			misshown++
			require.True(t, slices.ContainsFunc(rights.Publish, func(p string) bool {
				return server.SubjectsCollide(strings.Replace(p, access.APIPrefix, "$JS.API.", 1), at.pattern)
			}), "%s has no right to %s, and a message of a consumer was routed there", role, at.pattern)
		} else {
			asked := strings.Replace(at.shown, "$JS.API.", access.APIPrefix, 1)
			allowed := slices.ContainsFunc(rights.Publish, func(p string) bool { return covers(p, asked) }) && !strings.HasSuffix(asked, "."+schema.BarrierRun)
			require.True(t, allowed, "%s has no right to %s, and an answer to it was published there", role, at.shown)
		}
		require.False(t, has.taken, "%s: an answer arrived at %s as a request that the daemon answers", role, at.pattern)
		if has.answer {
			again++
		}
	}
	require.Positive(t, again, "answers do enter the account again, and the test sees it")
	require.Equal(t, role != access.Executor, misshown > 0, "roles that may pull from a consumer meet messages that show another subject")
	t.Logf("answers to %d questions, each with %d reply subjects, led to %d of the subjects that the role may publish to",
		len(rights.Publish)-1, len(targets), again)
}

// replyTargets are all subjects that some role may publish to, and a few that none may.
func replyTargets(fleet string, shards int) []string {
	targets := []string{"tools.x", "_INBOX_operator.x", schema.NamesOf(fleet, 0).EventSubject(schema.BarrierRun)}
	for _, role := range access.Roles() {
		for _, pattern := range (access.Account{Fleet: fleet, Shards: shards}).Rights(role).Publish {
			if api, ok := strings.CutPrefix(pattern, access.APIPrefix); ok {
				targets = append(targets, literal("$JS.API."+api))
			}
			targets = append(targets, literal(pattern))
		}
	}
	slices.Sort(targets)
	return slices.Compact(targets)
}

// answersOnce reports whether a request to a subject that a role may publish to gets an answer.
func answersOnce(question string) bool {
	return !strings.HasPrefix(question, "_R_") && !strings.HasPrefix(question, "$JS.ACK.")
}

func ask(nc *nats.Conn, question string) error {
	_, err := nc.Request(literal(question), bodyOf(question), reentryWait)
	return err
}

// bodyOf is the body of a request to a subject.
func bodyOf(question string) []byte {
	if strings.Contains(question, ".CONSUMER.MSG.NEXT.") {
		return []byte(pullBody)
	}
	return []byte(questionBody)
}

// Users of one account hear the daemon on the streams that it imports, and an answer enters the account on any reply
// subject: it must not arrive there, or one user shows another what the daemon never said.
func TestReplySubject_ImportedStream_ReachesNoOtherUser(t *testing.T) {
	t.Parallel()
	streamsAreTheDaemons(t, 1)
}

func TestReplySubject_ImportedStreamOnThreeServers_ReachesNoOtherUser(t *testing.T) {
	if testing.Short() {
		t.Skip("short: a cluster of three servers")
	}
	t.Parallel()
	streamsAreTheDaemons(t, 3)
}

func streamsAreTheDaemons(t *testing.T, nodes int) {
	t.Helper()
	const fleet = "f"
	f := startFleet(t, fleet, 1, nodes)
	for _, role := range access.ClientRoles() {
		rights := access.Account{Fleet: fleet, Shards: 1}.Rights(role)
		heard := make(chan *nats.Msg, 1<<14)
		listener, asker := f.as(t, role, f.servers[0]), f.as(t, role, f.servers[nodes-1])
		var streams []string
		for _, pattern := range rights.Subscribe {
			if !strings.HasPrefix(pattern, "_INBOX") {
				_, err := listener.ChanSubscribe(pattern, heard)
				require.NoError(t, err)
				streams = append(streams, literal(pattern))
			}
		}
		require.NotEmpty(t, streams)
		require.NoError(t, listener.Flush())
		say := func(body string) {
			for i, subject := range streams {
				want := fmt.Sprint(body, i)
				for deadline := time.After(reentryWait); ; { // until the servers know the subscription
					require.NoError(t, f.spy.Publish(subject, []byte(want)))
					select {
					case m := <-heard:
						require.Contains(t, string(m.Data), body, "%s hears on %s what the daemon did not say", role, m.Subject)
						if string(m.Data) != want {
							continue // the one before
						}
					case <-time.After(pollEvery):
						continue
					case <-deadline:
						require.FailNow(t, "nothing is heard", subject)
					}
					break
				}
			}
		}
		say("before")
		for _, question := range rights.Publish {
			if answersOnce(question) {
				require.Eventually(t, func() bool { return ask(asker, question) == nil }, reentryWait, pollEvery, question)
				for _, reply := range streams {
					require.NoError(t, asker.PublishRequest(literal(question), reply, bodyOf(question)))
				}
				require.NoError(t, ask(asker, question)) // its answer comes after theirs
			}
		}
		require.NoError(t, listener.Flush())
		for len(heard) > 0 {
			m := <-heard
			require.Contains(t, string(m.Data), "before", "%s hears an answer on %s", role, m.Subject)
		}
		say("after")
	}
}

// The server keeps a request that may have many answers until the threshold, and any other until its answer.
func TestRequests_AnswerOfOneReply_AreForgottenWithIt(t *testing.T) {
	t.Parallel()
	const fleet, requests = "f", 100
	f := startFleet(t, fleet, 1, 1)
	store, err := f.servers[0].LookupAccount(access.AccountOf(access.Daemon, fleet))
	require.NoError(t, err)
	nc := f.as(t, access.Operator, f.servers[0])
	for _, verb := range []string{
		schema.VerbGet, schema.VerbList, schema.VerbHistory, schema.VerbRecords, schema.VerbFleet, schema.VerbExecutors, schema.VerbRecover, schema.VerbClaim, schema.VerbInput,
		schema.VerbCancel,
	} {
		subject := schema.ServiceSubject(verb, fleet, "")
		for range requests {
			require.NoError(t, ask(nc, subject))
		}
		if schema.Streamed(verb) {
			require.Equal(t, requests, store.NumPendingResponses(subject))
		} else {
			require.Eventually(t, func() bool { return store.NumPendingResponses(subject) == 0 }, reentryWait, pollEvery, "%s keeps %d", verb, store.NumPendingResponses(subject))
		}
	}
	text, err := example().Config()
	require.NoError(t, err)
	require.Equal(t, strings.Count(text, "response: stream"), strings.Count(text, `threshold: "1m"`))
}
