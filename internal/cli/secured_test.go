package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nats.go/micro"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/look/failure"
	"github.com/waymarkio/waymark/internal/nats/access"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// executor connects the SDK as a fleet's executor.
func (s *secured) executor(t *testing.T, fleet, name string) *publisher.Fleet {
	t.Helper()
	return s.executorWith(t, fleet, name, s.options(t, fleet, access.Executor))
}

func (s *secured) executorWith(t *testing.T, fleet, name string, options []nats.Option) *publisher.Fleet {
	t.Helper()
	f, err := publisher.Connect(t.Context(), publisher.Config{
		URL: s.url(), Options: options, Fleet: fleet, Executor: name, Agent: "clerk",
	})
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), securedWait)
		defer cancel()
		require.NoError(t, f.Close(ctx))
	})
	return f
}

// The whole program works within the permissions of the shipped configuration, on three nodes with TLS and encryption.
func TestThreeNodes_EachRole_DoesItsWork(t *testing.T) {
	if testing.Short() {
		t.Skip("short: a cluster of three servers")
	}
	const fleet, canary = "payments", "the-canary-of-this-disk"
	s := startSecured(t, fleet)
	daemonLog := s.daemon(t, fleet)
	ctx, cancel := context.WithTimeout(t.Context(), 2*securedWait)
	defer cancel()

	observer := s.connect(t, fleet, access.Observer)
	turns, err := observer.SubscribeSync("waymark.observed." + fleet + ".turn.finalized.*")
	require.NoError(t, err)
	all, err := observer.SubscribeSync("waymark.observed." + fleet + ".>")
	require.NoError(t, err)
	require.NoError(t, observer.Flush())

	// An executor publishes: single events, a batch, a field that goes to the object store; and leaves.
	first := s.executor(t, fleet, "one")
	r, err := first.Start(ctx, publisher.RunSpec{ID: "r1", Task: canary})
	require.NoError(t, err)
	large := strings.Repeat("0123456789abcdef", 20<<10)
	require.NoError(t, r.Publish(ctx, &schema.MessageAddedData{Message: schema.Message{
		Role: schema.RoleUser, Parts: []schema.Part{schema.Text(large)},
	}}, 0))
	turn, err := r.StartTurn(ctx, publisher.TurnSpec{})
	require.NoError(t, err)
	_, err = turn.Answer(ctx, publisher.Answer{Message: schema.Message{Role: schema.RoleAssistant, Parts: []schema.Part{schema.Text("adding")}}, Calls: []publisher.ToolCall{{ID: "c1", Name: "add", Replay: schema.ReplayPure}}})
	require.NoError(t, err)
	_, err = turn.Tool(ctx, publisher.ToolCall{ID: "c1", Name: "add", Replay: schema.ReplayPure},
		func(context.Context, publisher.Invocation) (publisher.ToolResult, error) { return publisher.Result(42) })
	require.NoError(t, err)
	require.NoError(t, r.Interrupt(ctx, "shutdown"))

	// Another claims the run, and has its content.
	second := s.executor(t, fleet, "two")
	var claimed *publisher.Run
	require.Eventually(t, func() bool {
		claimed, err = second.Claim(ctx, publisher.ClaimSpec{Agents: []string{"clerk"}})
		return err == nil && claimed != nil
	}, securedWait, 50*time.Millisecond, "the run that was left is claimed")
	state := claimed.State()
	require.NoError(t, second.Hydrate(ctx, state))
	require.Equal(t, large, *state.Messages[0].Parts[0].Content)
	require.Equal(t, canary, state.Started.Task)
	require.NoError(t, claimed.End(ctx, publisher.RunEnd{Status: schema.StatusCompleted}))

	// An observer reads; it sees what is republished, too.
	requireHas(t, s.as(t, fleet, access.Observer, 0, "runs", "ls"), "r1")
	requireHas(t, s.as(t, fleet, access.Observer, 0, "runs", "get", "r1", "--view", "state"), canary)
	requireHas(t, s.as(t, fleet, access.Observer, 0, "events", "r1", "--all", "--no-follow"), "tool.returned")
	requireHas(t, s.as(t, fleet, access.Observer, 0, "events", "r1", "--all", "--no-follow", "--json", "--raw"), "run.started")
	requireHas(t, s.as(t, fleet, access.Observer, 0, "fleet"), fleet)
	requireHas(t, s.as(t, fleet, access.Observer, 0, "verify", "--all"), "1 run with")
	for _, role := range []access.Role{access.Observer, access.Operator, access.Daemon} {
		var found struct {
			Checks []struct {
				Name   string `json:"check"`
				Result string `json:"result"`
				Detail string `json:"detail"`
			} `json:"checks"`
		}
		require.NoError(t, json.Unmarshal([]byte(s.as(t, fleet, role, 0, "doctor", "--json", "--monitor", s.monitor())), &found))
		require.Greater(t, len(found.Checks), 12)
		for _, k := range found.Checks {
			require.True(t, k.Result == "ok" || k.Name == "disk" && k.Result == "unknown", "%s finds %s %s: %s", role, k.Name, k.Result, k.Detail)
		}
	}

	// One that must miss nothing reads by the durable consumer that was made for observers.
	stream := schema.NamesOf(fleet, 0).EventStream()
	maker, err := jetstream.New(s.connect(t, fleet, access.Daemon).Conn)
	require.NoError(t, err)
	_, err = maker.CreateConsumer(ctx, stream, jetstream.ConsumerConfig{Durable: access.ObserverConsumer, AckPolicy: jetstream.AckExplicitPolicy})
	require.NoError(t, err)
	reader, err := jetstream.New(s.connect(t, fleet, access.Observer).Conn)
	require.NoError(t, err)
	durable, err := reader.Consumer(ctx, stream, access.ObserverConsumer)
	require.NoError(t, err)
	message, err := durable.Next(jetstream.FetchMaxWait(securedWait / 2))
	require.NoError(t, err)
	require.NoError(t, message.DoubleAck(ctx))

	// With the stock tools it hears of turns, and gets the checkpoint.
	over, err := turns.NextMsgWithContext(ctx)
	require.NoError(t, err)
	require.Contains(t, string(over.Data), `"run":"r1"`)
	_, err = all.NextMsgWithContext(ctx)
	require.NoError(t, err)
	bucket, err := reader.KeyValue(ctx, schema.NamesOf(fleet, 0).CheckpointBucket())
	require.NoError(t, err)
	entry, err := bucket.Get(ctx, "r1")
	require.NoError(t, err)
	require.Contains(t, string(entry.Value()), `"answer":"adding"`)

	// The service has no endpoint that an operator may not use.
	found, err := s.connect(t, fleet, access.Operator).Request("$SRV.INFO.waymark", nil, securedWait)
	require.NoError(t, err)
	var service micro.Info
	require.NoError(t, json.Unmarshal(found.Data, &service))
	require.Greater(t, len(service.Endpoints), 8)
	for _, endpoint := range service.Endpoints {
		require.Contains(t, access.Account{Fleet: fleet, Shards: 1}.Rights(access.Operator).Publish, endpoint.Subject)
	}

	// An operator decides.
	r2, err := first.Start(ctx, publisher.RunSpec{ID: "r2"})
	require.NoError(t, err)
	s.as(t, fleet, access.Operator, 0, "cancel", "r2", "--reason", "test")
	// Whichever server it asks, and whatever it says of itself: the log names its key.
	executorKey, operatorKey := s.public(t, fleet, access.Executor), s.public(t, fleet, access.Operator)
	for i, port := range s.ports {
		reply, err := s.connectTo(t, fmt.Sprintf("tls://127.0.0.1:%d", port), fleet, access.Operator).RequestMsg(&nats.Msg{
			Subject: schema.ServiceSubject(schema.VerbMark, fleet, "r2"), Data: fmt.Appendf(nil, `{"name":"m%d","by":"mallory"}`, i),
			Header: nats.Header{access.InfoHeader: {`{"acc":"FLEET_payments_executor","user":"` + executorKey + `"}`}},
		}, securedWait)
		require.NoError(t, err)
		require.Empty(t, reply.Header.Get(schema.HeaderError), "%s", reply.Data)
		var marked schema.ControlReply
		require.NoError(t, json.Unmarshal(reply.Data, &marked))
		require.Equal(t, schema.ProvenBy("operator", operatorKey), marked.By)
	}
	require.NoError(t, r2.Interrupt(ctx, "shutdown"))
	s.as(t, fleet, access.Operator, 0, "resume", "r2", "--at", "record:1")

	// Only the daemon's key can back up the fleet.
	saved := filepath.Join(t.TempDir(), "saved")
	s.as(t, fleet, access.Operator, int(failure.Refused), "backup", saved)
	require.NoDirExists(t, saved)
	requireHas(t, s.as(t, fleet, access.Daemon, 0, "backup", saved), fleet)
	requireHas(t, s.waymark(t, 0, "backup", "verify", saved, "--runs"), "2 runs with")
	requireHas(t, s.as(t, fleet, access.Daemon, int(failure.Conflict), "restore", saved), "")
	// A server without a cluster has one copy of each stream.
	requireHas(t, s.waymark(t, int(failure.Usage), "--state-dir", filepath.Join(t.TempDir(), "lone"), "restore", saved), "--replicas 1")

	// Nothing of it can be read on a stolen disk.
	require.True(t, s.onDisk(t, "WAYMARK") || !s.onDisk(t, canary), "the search finds what is there")
	require.False(t, s.onDisk(t, canary))
	// No key of any role, and not the store's, is printed, logged or stored.
	keys := map[string]string{"the store's": storeKey}
	for _, role := range access.Roles() {
		seed, err := os.ReadFile(filepath.Join(s.fleets, fleet+"-"+string(role)+".nk"))
		require.NoError(t, err)
		keys[string(role)] = strings.TrimSpace(string(seed))
	}
	require.Greater(t, len(keys), 4)
	for whose, key := range keys {
		require.NotEmpty(t, key)
		require.NotContains(t, s.printed.String(), key, whose)
		require.NotContains(t, daemonLog.String(), key, whose)
		require.NotContains(t, s.logs.String(), key, whose)
		require.False(t, s.onDisk(t, key), whose)
	}
}

// requireHas is require.Contains for long texts.
func requireHas(t *testing.T, text, want string) {
	t.Helper()
	if !strings.Contains(text, want) {
		require.Failf(t, "text is missing", "%q is not in: %.4000s", want, text)
	}
}
