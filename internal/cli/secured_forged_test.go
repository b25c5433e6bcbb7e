package cli

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nkeys"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/look/failure"
	"github.com/waymarkio/waymark/internal/nats/access"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// forger is an executor's key that writes control events in the daemon's name.
type forger struct {
	*user
	fleet string
	n     int
}

// control is a control event as the daemon would write it, without a signature.
func (f *forger) control(t *testing.T, run string, epoch schema.Epoch, turn int32, d schema.Data) *schema.Event {
	t.Helper()
	f.n++
	e, err := schema.NewControl(f.fleet, "daemon", run, epoch, fmt.Sprintf("forged%d", f.n), d, time.Now())
	require.NoError(t, err)
	e.Turn = turn
	return e
}

// put stores an event in a run's log, and returns its place.
func (f *forger) put(t *testing.T, e *schema.Event) uint64 {
	t.Helper()
	header, body := e.Encode()
	return put(t, f.user, schema.NamesOf(f.fleet, 0).EventSubject(e.Subject), header, body).Sequence
}

// refusedAt reports whether a daemon's log says that it refused the event at a place for its signature.
func refusedAt(log string, at uint64) bool {
	return slices.ContainsFunc(strings.Split(log, "\n"), func(l string) bool {
		return strings.Contains(l, `"message":"event rejected"`) && strings.Contains(l, fmt.Sprintf(`"position":%d,`, at)) &&
			strings.Contains(l, `"reason":"unsigned"`)
	})
}

// TestForgedControlEvent_ExecutorsKey_IsRefused publishes, by an executor's key and on the shipped configuration, what only the daemon may say:
// without a signature, with one that was made by a key of its own, with one of another event, and a signed event once more. The fold and every
// reader refuse it; what an operator then decides counts.
func TestForgedControlEvent_ExecutorsKey_IsRefused(t *testing.T) {
	if testing.Short() {
		t.Skip("short: a cluster of three servers")
	}
	const fleet = "payments"
	s := startSecured(t, fleet)
	log := s.daemon(t, fleet)
	ctx := t.Context()
	requireHas(t, log.String(), `"message":"control events are signed"`)
	requireHas(t, s.as(t, fleet, access.Observer, 0, "fleet", "keys"), "the beginning")

	// One run waits for a person. Of another, a call that must not be repeated is in doubt.
	executor := s.executor(t, fleet, "one")
	asks, err := executor.Start(ctx, publisher.RunSpec{ID: "asks"})
	require.NoError(t, err)
	question := &schema.RunWaitingData{InterruptID: "i1", Reason: schema.WaitHumanInput, Message: "May I?"}
	require.NoError(t, asks.Publish(ctx, question, 0))
	doubts, err := executor.Start(ctx, publisher.RunSpec{ID: "doubts"})
	require.NoError(t, err)
	require.NoError(t, doubts.Publish(ctx, &schema.TurnStartedData{Turn: 1}, 1))
	require.NoError(t, doubts.Publish(ctx, &schema.ToolCalledData{ToolCallID: "c1", Name: "pay", Replay: schema.ReplayHold}, 1))
	_, err = s.executor(t, fleet, "two").Resume(ctx, "doubts", publisher.ResumeSpec{})
	require.NoError(t, err)
	head := func(run string) *schema.Head {
		h, err := executor.Head(ctx, run)
		require.NoError(t, err)
		return &h
	}
	require.True(t, head("doubts").OpenCalls[0].State.InDoubt())

	mallory := &forger{user: s.connect(t, fleet, access.Executor), fleet: fleet}
	key, err := nkeys.CreateUser()
	require.NoError(t, err)
	own, err := key.PublicKey()
	require.NoError(t, err)
	genuine := func() *schema.Event { // the takeover of doubts, as the daemon signed it
		for _, m := range s.events(t, fleet, "doubts") {
			if e, err := schema.Decode(m.Header, m.Data); err == nil && e.Name() == schema.RunResumed {
				return e
			}
		}
		require.Fail(t, "no takeover")
		return nil
	}()
	require.NotEmpty(t, genuine.Extensions[schema.AttributeSignature])

	for _, forged := range []struct {
		run   string
		epoch schema.Epoch
		turn  int32
		data  schema.Data
	}{
		{"asks", 1, 0, &schema.RunInputData{InterruptID: "i1", Status: schema.InputResolved, Payload: []byte(`"yes"`), By: "alice"}},
		{"asks", 1, 0, &schema.RunCancelRequestedData{By: "alice"}},
		{"asks", 1, 0, &schema.RunPausedData{By: "alice", Reason: "stop"}},
		{"asks", 1, 0, &schema.CheckpointMarkedData{Name: "approved", By: "alice"}},
		{"asks", 1, 0, &schema.RunOrphanedData{Executor: "one"}},
		{"doubts", 2, 1, &schema.ToolSettledData{ToolCallID: "c1", How: schema.SettledRerun, By: "alice"}},
		{"doubts", 2, 1, &schema.ToolSettledData{ToolCallID: "c1", How: schema.SettledDecided, Result: []byte(`"paid"`), By: "alice"}},
		{"doubts", 3, 0, &schema.RunResumedData{Executor: "mallory", Reason: schema.TakeoverRequest, RequestID: "q", From: schema.From{
			Epoch: 2, Digest: head("doubts").Digest,
		}}},
	} {
		name := forged.data.EventName()
		t.Run(name, func(t *testing.T) {
			digest := head(forged.run).Digest
			unsigned := mallory.control(t, forged.run, forged.epoch, forged.turn, forged.data)
			ownKey := mallory.control(t, forged.run, forged.epoch, forged.turn, forged.data)
			require.NoError(t, ownKey.Sign(own, digest, key.Sign))
			borrowed := mallory.control(t, forged.run, forged.epoch, forged.turn, forged.data)
			borrowed.Extensions = maps.Clone(genuine.Extensions)
			borrowed.Extensions[schema.AttributeRunDigest] = digest
			plain := mallory.control(t, forged.run, forged.epoch, forged.turn, forged.data)
			plain.ID = "not the form of a control event " + name // and so an executor's
			events := []*schema.Event{unsigned, ownKey, borrowed, plain}
			for _, e := range events {
				at := mallory.put(t, e)
				require.Equal(t, digest, head(forged.run).Digest, "%s counts", e.ID)
				require.Eventually(t, func() bool { return refusedAt(log.String(), at) }, securedWait, pollEvery, "%s at %d", e.ID, at)
			}
		})
		require.False(t, t.Failed())
	}
	// What an executor may write itself, in a name that it chose, or of a call that is left to a person.
	for i, forged := range []struct {
		run, source string
		turn        int32
		data        schema.Data
	}{
		{"doubts", "two", 1, &schema.ToolSettledData{ToolCallID: "c1", How: schema.SettledRerun}},
		{"doubts", "two", 1, &schema.ToolSettledData{ToolCallID: "c1", How: schema.SettledRerun, By: "two"}},
		{"doubts", "alice", 1, &schema.ToolSettledData{ToolCallID: "c1", How: schema.SettledRerun, By: "alice"}},
		{"doubts", "two", 1, &schema.ToolSettledData{ToolCallID: "c1", How: schema.SettledDecided, Result: []byte(`"paid"`)}},
		{"doubts", "two", 1, &schema.ToolDecidedData{ToolCallID: "c1", Decision: schema.DecisionAllow, By: "operator:UB1"}},
		{"asks", "alice", 0, &schema.CheckpointMarkedData{Name: "approved", By: "alice"}},
		{"asks", "one", 0, &schema.CheckpointMarkedData{Name: "approved", Claimed: "alice"}},
	} {
		digest := head(forged.run).Digest
		e := mallory.control(t, forged.run, head(forged.run).Epoch, forged.turn, forged.data)
		e.ID, e.Source = fmt.Sprintf("plain%d", i), schema.Source(fleet, forged.source)
		at := mallory.put(t, e)
		require.Equal(t, digest, head(forged.run).Digest, "%d counts", i)
		require.Eventually(t, func() bool { return refusedAt(log.String(), at) }, securedWait, pollEvery, "%d at %d", i, at)
	}
	for i, m := range s.events(t, fleet, "doubts") { // what the daemon signed, once more, and in another run
		e, err := schema.Decode(m.Header, m.Data)
		require.NoError(t, err)
		if e.Extensions[schema.AttributeSignature] != "" && !strings.Contains(e.ID, "forged") {
			before := head("doubts").Digest
			mallory.put(t, e)
			e.Subject = "asks"
			mallory.put(t, e)
			require.Equal(t, before, head("doubts").Digest, "event %d", i)
		}
	}
	require.Equal(t, schema.StatusWaiting, head("asks").Status)
	require.Empty(t, head("asks").Marks)
	require.False(t, head("asks").CancelRequested)
	require.True(t, head("doubts").OpenCalls[0].State.InDoubt(), "it is not settled")
	require.EqualValues(t, 2, head("doubts").Epoch)

	// Every reader comes to the same: those that fold by themselves compare with the daemon.
	requireHas(t, s.as(t, fleet, access.Operator, 0, "verify", "--all"), "2 runs with")
	for _, run := range []string{"asks", "doubts"} {
		for _, command := range [][]string{
			{"runs", "history", run},
			{"runs", "get", run, "--view", "state"},
		} {
			said := s.as(t, fleet, access.Operator, 0, command...)
			require.NotContains(t, said, "checkpoint.marked  ", "%v", command)
			require.NotContains(t, said, "approved", "%v", command)
		}
	}
	// A reader of the log itself is told which events are forged.
	told := s.as(t, fleet, access.Observer, 0, "events", "doubts", "--all", "--no-follow")
	requireHas(t, told, "refused: unsigned, tool.settled of fleet payments: it is not signed, and the fleet has keys")
	requireHas(t, told, "refused: unsigned, tool.settled of fleet payments: it is signed by \""+own+"\", which is no key of the fleet")
	for said := range strings.Lines(told) {
		genuine := !strings.Contains(said, ".c ") && !strings.Contains(said, ".- ") || strings.Contains(said, "executor two")
		require.Equal(t, genuine, !strings.Contains(said, "refused: ") && !strings.Contains(said, "not signed: "), said)
	}
	requireHas(t, s.as(t, fleet, access.Observer, 0, "--json", "events", "asks", "--all", "--no-follow"), `"refused":"unsigned, run.input of fleet payments: `)
	state, err := executor.Get(ctx, "asks")
	require.NoError(t, err)
	require.Nil(t, state.Waits[0].Input)

	// The handle of the run's executor does not take the forgery for an answer, and takes the operator's.
	require.NoError(t, asks.Publish(ctx, &schema.MessageAddedData{Message: schema.Message{Role: schema.RoleUser, Parts: []schema.Part{schema.Text("x")}}}, 0))
	require.Equal(t, schema.StatusWaiting, asks.State().Head.Status)
	s.as(t, fleet, access.Operator, 0, "input", "asks", "i1", "--text", "no")
	require.Eventually(t, func() bool { return head("asks").Status == schema.StatusRunning }, securedWait, pollEvery)
	s.as(t, fleet, access.Operator, 0, "settle", "doubts", "1", "c1", "--how", "rerun")
	require.False(t, head("doubts").OpenCalls[0].State.InDoubt())
}

// TestFleetKeys_AnotherDaemonsKey_SignsOnceItWasAdded goes the way that docs/security.md describes for a new key.
func TestFleetKeys_AnotherDaemonsKey_SignsOnceItWasAdded(t *testing.T) {
	if testing.Short() {
		t.Skip("short: a cluster of three servers, and a key takes effect after a minute")
	}
	const fleet = "payments"
	s := startSecured(t, fleet)
	ctx, cancel := context.WithTimeout(t.Context(), 4*securedWait)
	defer cancel()
	_, stop, err := startDaemonTo(new(lockedBuffer), []string{"--fleet", fleet, "--context", s.context(fleet, access.Daemon), "--synced"}, s.getenv)
	require.NoError(t, err)
	run, err := s.executor(t, fleet, "one").Start(ctx, publisher.RunSpec{ID: "r1"})
	require.NoError(t, err)
	s.as(t, fleet, access.Operator, 0, "cancel", "r1")
	require.Error(t, run.Publish(ctx, &schema.TurnStartedData{Turn: 1}, 1), "the first key's signature counts")
	code, text := stop()
	require.Zero(t, code, text)
	first := strings.TrimSpace(s.publicKey(t, fleet))

	// The key is made again, as for one that leaked, and the servers know it.
	seed := filepath.Join(s.fleets, fleet+"-daemon.nk")
	require.NoError(t, os.Remove(seed))
	s.waymark(t, 0, "fleet", "add", fleet, "--dir", s.fleets, "--offline")
	s.reload(t, fleet)
	second := strings.TrimSpace(s.publicKey(t, fleet))
	require.NotEqual(t, first, second)
	requireHas(t, s.waymark(t, 0, "fleet", "add", fleet, "--dir", s.fleets), "fleet keys add "+second)
	_, _, err = startDaemonTo(new(lockedBuffer), []string{"--fleet", fleet, "--context", s.context(fleet, access.Daemon), "--synced"}, s.getenv)
	require.ErrorContains(t, err, "fleet keys add "+second, "a daemon that cannot sign does not start")

	// An executor or an operator changes no keys.
	s.as(t, fleet, access.Operator, int(failure.Refused), "fleet", "keys", "add", second)
	requireHas(t, s.as(t, fleet, access.Daemon, 0, "fleet", "keys", "add"), second)
	requireHas(t, s.as(t, fleet, access.Daemon, 0, "fleet", "keys", "retire", first), first)
	s.as(t, fleet, access.Daemon, int(failure.Usage), "fleet", "keys", "retire", second)
	log := new(lockedBuffer)
	began := time.Now()
	_, stop, err = startDaemonTo(log, []string{"--fleet", fleet, "--context", s.context(fleet, access.Daemon), "--synced"}, s.getenv)
	require.NoError(t, err)
	defer func() {
		code, text := stop()
		require.Zero(t, code, text)
	}()
	requireHas(t, log.String(), "waiting until the daemon's key takes effect")
	require.Less(t, time.Since(began), 2*schema.KeyDelay)
	again, err := s.executor(t, fleet, "one").Start(ctx, publisher.RunSpec{ID: "r2"})
	require.NoError(t, err)
	s.as(t, fleet, access.Operator, 0, "cancel", "r2")
	require.Error(t, again.Publish(ctx, &schema.TurnStartedData{Turn: 1}, 1), "the second key's signature counts")
	requireHas(t, s.as(t, fleet, access.Operator, 0, "verify", "--all"), "2 runs with")
	head, err := s.executor(t, fleet, "two").Head(ctx, "r1")
	require.NoError(t, err)
	require.True(t, head.CancelRequested, "what the first key signed stays")
}

// publicKey is the public key of a fleet's daemon.
func (s *secured) publicKey(t *testing.T, fleet string) string {
	t.Helper()
	seed, err := os.ReadFile(filepath.Join(s.fleets, fleet+"-daemon.nk"))
	require.NoError(t, err)
	key, err := nkeys.FromSeed([]byte(strings.TrimSpace(string(seed))))
	require.NoError(t, err)
	public, err := key.PublicKey()
	require.NoError(t, err)
	return public
}
