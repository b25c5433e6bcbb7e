package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/base/output"
	"github.com/waymarkio/waymark/internal/cli/fleet"
	"github.com/waymarkio/waymark/internal/harness/natstest"
	"github.com/waymarkio/waymark/internal/look/failure"
	"github.com/waymarkio/waymark/internal/nats/access"
	"github.com/waymarkio/waymark/internal/nats/natsconn"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// keyed is one server on loopback with the accounts that "fleet add" writes, and the fleet's daemon.
type keyed struct {
	*secured
	srv  *server.Server
	addr string
	// people are the operators with keys of their own.
	people map[string]fleet.Owner
}

const keyedFleet = "payments"

// startKeyed starts a server for a fleet that is added with these flags.
func startKeyed(t *testing.T, flags ...string) *keyed {
	t.Helper()
	k := &keyed{secured: &secured{dir: t.TempDir(), logs: new(serverLog)}, people: make(map[string]fleet.Owner)}
	k.fleets = filepath.Join(k.dir, "fleets")
	k.addr = fmt.Sprintf("nats://127.0.0.1:%d", natstest.FreePorts(t, 1)[0])
	var added fleet.Added
	args := append([]string{"--json", "fleet", "add", keyedFleet, "--dir", k.fleets, "--offline", "--quota", "64MiB", "--nats", k.addr}, flags...)
	require.NoError(t, json.Unmarshal([]byte(k.waymark(t, 0, args...)), &added))
	for _, p := range added.Owners {
		k.people[p.Name] = p
	}
	file := filepath.Join(k.dir, "nats.conf")
	require.NoError(t, os.WriteFile(file, fmt.Appendf(nil, "listen: %q\njetstream { store_dir: %q, max_file_store: 20G }\naccounts {\n  include %q\n}\n",
		strings.TrimPrefix(k.addr, "nats://"), filepath.Join(k.dir, "nats"), "fleets/fleet-"+keyedFleet+".conf"), 0o600))
	k.srv = newServer(t, file)
	k.srv.SetLogger(k.logs, false, false)
	k.srv.Start()
	t.Cleanup(func() {
		k.srv.Shutdown()
		k.srv.WaitForShutdown()
	})
	require.True(t, k.srv.ReadyForConnections(securedWait))
	k.waymark(t, 0, "fleet", "add", keyedFleet, "--dir", k.fleets)
	return k
}

// serve runs the fleet's daemon.
func (k *keyed) serve(t *testing.T) *lockedBuffer {
	t.Helper()
	return k.daemon(t, keyedFleet)
}

// person runs a command with the key of one operator.
func (k *keyed) person(t *testing.T, name string, code int, args ...string) string {
	t.Helper()
	return k.waymark(t, code, append([]string{"--fleet", keyedFleet, "--context", k.people[name].Context}, args...)...)
}

// executor connects the SDK as an executor does.
func (k *keyed) executor(t *testing.T, name string) *publisher.Fleet {
	t.Helper()
	return k.sdk(t, name, access.Executor, filepath.Join(k.fleets, keyedFleet+"-executor.nk"))
}

// operator connects the SDK with the key of one operator.
func (k *keyed) operator(t *testing.T, name string) *publisher.Fleet {
	t.Helper()
	return k.sdk(t, name, access.Operator, k.seed(name))
}

// seed is the file with an operator's key.
func (k *keyed) seed(name string) string {
	return strings.TrimSuffix(k.people[name].Context, ".json") + ".nk"
}

func (k *keyed) sdk(t *testing.T, name string, role access.Role, seed string) *publisher.Fleet {
	t.Helper()
	nkey, err := nats.NkeyOptionFromSeed(seed)
	require.NoError(t, err)
	f, err := publisher.Connect(t.Context(), publisher.Config{
		URL: k.addr, Options: []nats.Option{nkey, nats.CustomInboxPrefix(access.InboxPrefix(role))}, Fleet: keyedFleet, Executor: name, Agent: "clerk",
	})
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), securedWait)
		defer cancel()
		require.NoError(t, f.Close(ctx))
	})
	return f
}

// by is By of an operator with a key of its own.
func (k *keyed) by(name string) string { return schema.ProvenBy("operator", k.people[name].Key) }

// wait publishes a question of a run.
func wait(ctx context.Context, t *testing.T, r *publisher.Run, id string) {
	t.Helper()
	require.NoError(t, r.Publish(ctx, &schema.RunWaitingData{InterruptID: id, Reason: schema.WaitHumanInput, Message: "pay?"}, 0))
}

// inputOf is the answer to a question, as the run's log has it.
func inputOf(ctx context.Context, t *testing.T, f *publisher.Fleet, run, id string) *schema.RunInputData {
	t.Helper()
	state, err := f.Get(ctx, run)
	require.NoError(t, err)
	for i := range state.Waits {
		if w := &state.Waits[i]; w.InterruptID == id {
			return w.Input
		}
	}
	require.Failf(t, "no such question", "%s of run %s", id, run)
	return nil
}

// Control events name the key that the NATS server verified, whatever name the request has.
func TestControlEvents_FleetWithKeys_NameTheVerifiedKey(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("short: a daemon, executors and a dozen commands")
	}
	k := startKeyed(t, "--operator", "ann,bob")
	k.serve(t)
	ctx, cancel := context.WithTimeout(t.Context(), securedWait)
	defer cancel()
	f := k.executor(t, "worker-7")
	r, err := f.Start(ctx, publisher.RunSpec{ID: "r1"})
	require.NoError(t, err)
	require.Len(t, k.people, 2)
	require.NotEqual(t, k.by("ann"), k.by("bob"))
	require.NoFileExists(t, filepath.Join(k.fleets, keyedFleet+"-operator.nk"), "people have their own keys, and no other is made")
	config, err := os.ReadFile(filepath.Join(k.fleets, "fleet-"+keyedFleet+".conf"))
	require.NoError(t, err)
	require.Regexp(t, "# operator ann, [^\n]+\n[^\n]+"+k.people["ann"].Key, string(config))

	requireHas(t, k.person(t, "ann", 0, "fleet"), "proven by the nats server")

	// An operator uses the name of another operator.
	wait(ctx, t, r, "q1")
	var told schema.ControlReply
	require.NoError(t, json.Unmarshal([]byte(k.person(t, "ann", 0, "--json", "input", "r1", "q1", "--text", "yes", "--by", "bob")), &told))
	require.Equal(t, k.by("ann"), told.By, "the command tells what the log says")
	input := inputOf(ctx, t, f, "r1", "q1")
	require.Equal(t, k.by("ann"), input.By)
	require.Equal(t, "bob", input.Claimed)
	require.Equal(t, k.by("ann")+" (claims: bob)", output.ByText(input.By, input.Claimed))

	// The same answer of the same key is a repeat; of another key, it is refused: the question has its answer.
	wait(ctx, t, r, "q2")
	same := []string{"--json", "input", "r1", "q2", "--text", "yes", "--by", "carol", "--event", questionOf(t, f, "r1", "q2")}
	var first, again schema.ControlReply
	require.NoError(t, json.Unmarshal([]byte(k.person(t, "ann", 0, same...)), &first))
	require.NoError(t, json.Unmarshal([]byte(k.person(t, "ann", 0, same...)), &again))
	require.True(t, again.Already)
	again.Already = false
	require.Equal(t, first, again)
	k.person(t, "bob", int(failure.NotFound), same...)

	// A client writes the server's header itself, and sends no name.
	wait(ctx, t, r, "q3")
	nkey, err := nats.NkeyOptionFromSeed(k.seed("ann"))
	require.NoError(t, err)
	nc, err := nats.Connect(k.addr, nkey, nats.CustomInboxPrefix(access.InboxPrefix(access.Operator)))
	require.NoError(t, err)
	defer nc.Close()
	reply, err := nc.RequestMsg(&nats.Msg{
		Subject: schema.ServiceSubject(schema.VerbInput, keyedFleet, "r1"), Data: []byte(`{"interrupt_id":"q3","event_id":"` + questionOf(t, f, "r1", "q3") + `"}`),
		Header: nats.Header{access.InfoHeader: {`{"acc":"FLEET_payments_operator","user":"` + k.people["bob"].Key + `"}`}},
	}, securedWait)
	require.NoError(t, err)
	require.Empty(t, reply.Header.Get(schema.HeaderError))
	input = inputOf(ctx, t, f, "r1", "q3")
	require.Equal(t, k.by("ann"), input.By)
	require.Empty(t, input.Claimed)

	// Executors cancel, and accept a hand-off: the key is proven, the name is claimed.
	worker := schema.ProvenBy("executor", k.public(t, keyedFleet, access.Executor))
	offer, err := r.Handoff(schema.HandoffOfferedData{Reason: "task_complete"}).Offer(ctx)
	require.NoError(t, err)
	child, err := k.executor(t, "worker-8").AcceptHandoff(ctx, offer, publisher.RunSpec{})
	require.NoError(t, err)
	require.NoError(t, child.Interrupt(ctx, "shutdown"))
	head, err := f.Head(ctx, "r1")
	require.NoError(t, err)
	require.Equal(t, worker, head.Handoffs[0].By)
	require.Equal(t, "worker-8", head.Handoffs[0].Claimed)
	offers, err := f.Offers(ctx, "r1")
	require.NoError(t, err)
	require.Equal(t, "worker-8", offers[0].By, "a later executor continues it in this name")
	_, err = f.AcceptHandoff(ctx, offer, publisher.RunSpec{})
	require.ErrorIs(t, err, publisher.ErrHandoffTaken, "the executors share a key, and only one has the hand-off")
	require.NoError(t, f.Cancel(ctx, "r1", "ann", "enough"))
	log := k.person(t, "bob", 0, "events", "r1", "--all", "--no-follow", "--json", "--raw")
	requireHas(t, log, fmt.Sprintf(`"by":%q,"claimed":"ann"`, worker))
	require.NotContains(t, log, `"by":"ann"`)

	// The server refuses decisions of other roles.
	_, err = f.Mark(ctx, "r1", "m1", "ann", false)
	require.ErrorIs(t, err, publisher.ErrNotPermitted)
	for _, role := range []access.Role{access.Executor, access.Observer, access.Daemon} {
		k.as(t, keyedFleet, role, int(failure.Refused), "checkpoint", "r1", "--name", "m1", "--by", "ann")
	}
	require.NoError(t, json.Unmarshal([]byte(k.person(t, "bob", 0, "--json", "checkpoint", "r1", "--name", "m1", "--by", "ann")), &told))
	require.Equal(t, k.by("bob"), told.By)

	// So does the receipt of a removed run.
	require.NoError(t, r.End(ctx, publisher.RunEnd{Status: schema.StatusCancelled}))
	var receipt struct {
		Runs []schema.Removal `json:"runs"`
	}
	require.NoError(t, json.Unmarshal([]byte(k.person(t, "bob", 0, "--json", "erase", "r1", "--by", "ann", "--force")), &receipt))
	require.Len(t, receipt.Runs, 1)
	require.Equal(t, k.by("bob"), receipt.Runs[0].By)
	require.Equal(t, "ann", receipt.Runs[0].Claimed)
}

// With separate duties no key can both ask and approve: operators start and take over no runs and publish no questions, executors send no answers.
func TestSeparateDuties_Asker_CannotApprove(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("short: a daemon, executors and a dozen commands")
	}
	k := startKeyed(t, "--operator", "ann,bob", "--duties", "separate", "--verify", "tools.>")
	k.serve(t)
	ctx, cancel := context.WithTimeout(t.Context(), securedWait)
	defer cancel()
	f := k.executor(t, "worker-7")
	r, err := f.Start(ctx, publisher.RunSpec{ID: "r1"})
	require.NoError(t, err)
	wait(ctx, t, r, "q1")
	wait(ctx, t, r, "q2")
	offer, err := r.Handoff(schema.HandoffOfferedData{Reason: "task_complete"}).Offer(ctx)
	require.NoError(t, err)

	// The asker does not approve.
	err = f.Input(ctx, "r1", publisher.Input{InterruptID: "q1", EventID: questionOf(t, f, "r1", "q1"), Payload: []byte(`"yes"`)})
	require.ErrorIs(t, err, publisher.ErrNotPermitted)
	require.ErrorContains(t, err, "docs/security.md")
	k.as(t, keyedFleet, access.Executor, int(failure.Refused), "input", "r1", "q1", "--text", "yes")

	// The approver does not ask, in any of the ways to ask.
	ann := k.operator(t, "ann")
	_, err = ann.Start(ctx, publisher.RunSpec{ID: "r2"})
	require.ErrorIs(t, err, publisher.ErrNotPermitted)
	_, err = ann.Resume(ctx, "r1", publisher.ResumeSpec{Reason: schema.TakeoverRequest})
	require.ErrorIs(t, err, publisher.ErrNotPermitted)
	_, err = ann.Claim(ctx, publisher.ClaimSpec{})
	require.ErrorIs(t, err, publisher.ErrNotPermitted)
	_, err = ann.AcceptHandoff(ctx, offer, publisher.RunSpec{})
	require.ErrorIs(t, err, publisher.ErrNotPermitted)
	for _, args := range [][]string{
		{"start", "coder", "--id", "r2"}, {"release", "r1", "--force"}, {"fork", "r1", "--at", "end"}, {"handoff", "answer", "r1", "--decline", "no"},
	} {
		text := k.person(t, "ann", int(failure.Refused), args...)
		requireHas(t, text, "does not permit")
		requireHas(t, text, "docs/security.md")
	}
	_, err = f.Head(ctx, "r2")
	require.ErrorIs(t, err, publisher.ErrRunNotFound)

	k.as(t, keyedFleet, access.Executor, 0, "start", "coder", "--id", "r3")

	// Each of two operators approves, and keeps the other rights.
	requireHas(t, k.person(t, "ann", 0, "input", "r1"), "q2")
	k.person(t, "ann", 0, "input", "r1", "q1", "--text", "yes")
	k.person(t, "bob", 0, "input", "r1", "q2", "--text", "yes")
	require.Equal(t, k.by("ann"), inputOf(ctx, t, f, "r1", "q1").By)
	require.Equal(t, k.by("bob"), inputOf(ctx, t, f, "r1", "q2").By)
	for _, args := range [][]string{
		{"runs", "ls"},
		{"runs", "get", "r1", "--view", "state"},
		{"events", "r1", "--all", "--no-follow"},
		{"verify", "r1"},
		{"plan", "r1"},
		{"checkpoint", "r1", "--name", "m1"},
		{"cleanup", "--dry-run", "--max-age", "1h"},
		{"fleet"},
		{"cancel", "r1"},
		{"erase", "r1", "--force"},
	} {
		k.person(t, "bob", 0, args...)
	}

	// The rule stays until the flag reverts it.
	var again fleet.Added
	require.NoError(t, json.Unmarshal([]byte(k.waymark(t, 0, "--json", "fleet", "add", keyedFleet, "--dir", k.fleets, "--offline")), &again))
	require.Equal(t, "separate", again.Duties)
	require.False(t, again.Written)
	k.waymark(t, 0, "fleet", "add", keyedFleet, "--dir", k.fleets, "--offline", "--duties", "joint")
	require.NoError(t, k.srv.Reload())
	_, err = k.operator(t, "ann").Start(ctx, publisher.RunSpec{ID: "r2"})
	require.NoError(t, err)
}

// Accounts without share, or without the right to ask for the account: nothing counts as a proof, and the error names the next step.
func TestControlEvents_AccountsWithoutShare_AreRefused(t *testing.T) {
	t.Parallel()
	k := startKeyed(t, "--operator", "ann")
	file := filepath.Join(k.fleets, "fleet-"+keyedFleet+".conf")
	config, err := os.ReadFile(file)
	require.NoError(t, err)
	rewrite := func(from, to string) {
		require.Contains(t, string(config), from)
		require.NoError(t, os.WriteFile(file, []byte(strings.ReplaceAll(string(config), from, to)), 0o600))
		require.NoError(t, k.srv.Reload())
	}
	rewrite(`"$SYS.REQ.USER.INFO"`, `"not.that"`)
	_, _, err = startDaemonTo(new(lockedBuffer), []string{"--fleet", keyedFleet, "--context", k.context(keyedFleet, access.Daemon)}, k.getenv)
	require.ErrorContains(t, err, "$SYS.REQ.USER.INFO", "the daemon does not start without knowing whether senders are proven")

	rewrite(", share: true", "")
	k.serve(t)
	ctx, cancel := context.WithTimeout(t.Context(), securedWait)
	defer cancel()
	f := k.executor(t, "worker-7")
	r, err := f.Start(ctx, publisher.RunSpec{ID: "r1"})
	require.NoError(t, err)
	require.ErrorContains(t, f.Cancel(ctx, "r1", "ann", "enough"), "waymark fleet add "+keyedFleet)
	requireHas(t, k.person(t, "ann", int(failure.Refused), "checkpoint", "r1", "--name", "m1"), "waymark fleet add "+keyedFleet)
	_, err = f.Head(ctx, "r1")
	require.ErrorContains(t, err, "waymark fleet add "+keyedFleet)
	var reply schema.GetReply // the daemon's own account needs no proof to read
	require.NoError(t, json.Unmarshal([]byte(k.waymark(t, 0, "--json", "--fleet", keyedFleet, "--context", k.context(keyedFleet, access.Daemon), "runs", "get", "r1")), &reply))
	require.False(t, reply.Head.CancelRequested)
	require.Empty(t, reply.Head.Marks)
	require.NoError(t, r.Interrupt(ctx, "shutdown"))
}

// Without keys the sender is a claim, and commands show it as a claim.
func TestControlEvents_ServerWithoutAccounts_NameAClaim(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	getenv := func(name string) string {
		return map[string]string{"HOME": dir, "XDG_CONFIG_HOME": dir, "WAYMARK_HTTP": "off", "WAYMARK_STATE_DIR": dir, "WAYMARK_QUOTA": "64MiB"}[name]
	}
	log := new(lockedBuffer)
	_, stop, err := startDaemonTo(log, nil, getenv)
	require.NoError(t, err)
	defer stop()
	ask := func(args ...string) string {
		var out lockedBuffer
		require.Zero(t, Run(t.Context(), args, getenv, strings.NewReader(""), &out, &out), "%v: %s", args, &out)
		return out.String()
	}
	requireHas(t, ask("fleet"), "claimed by senders")
	end, err := natsconn.Discover(t.Context(), dir)
	require.NoError(t, err)
	require.NoError(t, publishRun(t.Context(), end, "r1", true))
	forged := schema.ProvenBy("operator", "UCZLBXUNBYTDIN5WDQGCNSUXCNGIJF3AUARKKJ7C57RT7U5ITBFWDTKJ")
	var out lockedBuffer
	require.Equal(t, int(failure.Usage), Run(t.Context(), []string{"cancel", "r1", "--by", forged}, getenv, strings.NewReader(""), &out, &out), "no claim looks like a proof")
	closed := make(chan struct{})
	nc, err := end.Connect(nats.ClosedHandler(func(*nats.Conn) { close(closed) }))
	require.NoError(t, err)
	defer func() {
		nc.Close()
		<-closed
	}()
	request := func(body string) *nats.Msg {
		reply, err := nc.RequestMsg(&nats.Msg{
			Subject: schema.ServiceSubject(schema.VerbMark, schema.DefaultFleet, "r1"), Data: []byte(body),
			Header: nats.Header{access.InfoHeader: {`{"acc":"FLEET_default_operator","user":"UCZLBXUNBYTDIN5WDQGCNSUXCNGIJF3AUARKKJ7C57RT7U5ITBFWDTKJ"}`}},
		}, securedWait)
		require.NoError(t, err)
		return reply
	}
	require.Equal(t, "400", request(`{"name":"m1","by":"`+forged+`"}`).Header.Get(schema.HeaderErrorCode))
	require.Equal(t, "400", request(`{"name":"m1"}`).Header.Get(schema.HeaderErrorCode), "a name is needed where nothing is proven")
	var marked schema.ControlReply
	require.NoError(t, json.Unmarshal(request(`{"name":"m1","by":"ann"}`).Data, &marked))
	require.Equal(t, "ann", marked.By, "here the header is the client's own")
	requireHas(t, ask("cancel", "r1", "--by", "ann"), "by (unproven)")
	requireHas(t, ask("events", "r1", "--all", "--no-follow"), "ann")
}

func TestFleetAdd_Include_IsAddedOnce(t *testing.T) {
	t.Parallel()
	s := &secured{dir: t.TempDir()}
	s.fleets = filepath.Join(s.dir, "fleets")
	servers := filepath.Join(s.dir, "servers")
	require.NoError(t, os.Mkdir(servers, 0o700))
	file := filepath.Join(servers, "fleets.conf")
	add := func(code failure.Code, flags ...string) string {
		args := []string{"fleet", "add", keyedFleet, "--dir", s.fleets, "--offline", "--nats", "nats://127.0.0.1:1", "--include", file}
		return s.waymark(t, int(code), append(args, flags...)...)
	}
	requireHas(t, add(failure.NotFound), "that nats.conf includes")
	require.NoFileExists(t, file)

	const line = `include "fleet-` + keyedFleet + `.conf"`
	for _, before := range []string{
		"", "# One line for each fleet:\n#   " + line + "\n", "include other.conf", "include \"fleet-" + keyedFleet + "s.conf\"\n",
	} {
		require.NoError(t, os.WriteFile(file, []byte(before), 0o640)) //nolint:gosec // the servers' group reads it
		want := before + line + "\n"
		if before != "" && !strings.HasSuffix(before, "\n") {
			want = before + "\n" + line + "\n"
		}
		for _, flags := range [][]string{nil, nil, {"--quota", "64MiB"}} {
			said := add(failure.OK, flags...)
			requireHas(t, said, file)
			require.NotContains(t, said, "copy ", "it is done")
			text, err := os.ReadFile(file)
			require.NoError(t, err)
			require.Equal(t, want, string(text))
			part, err := os.ReadFile(filepath.Join(servers, "fleet-"+keyedFleet+".conf"))
			require.NoError(t, err)
			made, err := os.ReadFile(filepath.Join(s.fleets, "fleet-"+keyedFleet+".conf"))
			require.NoError(t, err)
			require.Equal(t, string(made), string(part))
		}
	}
	for _, there := range []string{"include 'fleet-" + keyedFleet + ".conf';\r\n", "  include fleet-" + keyedFleet + ".conf # ours"} {
		require.NoError(t, os.WriteFile(file, []byte(there), 0o600))
		add(failure.OK)
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		require.Equal(t, there, string(text))
	}

	// A later run refreshes the servers' copy without being told, so that a revoked key is in it no longer.
	add(failure.OK, "--operator", "ann,bob")
	require.NoError(t, os.Remove(filepath.Join(s.fleets, keyedFleet+"-operator.bob.nk")))
	said := s.waymark(t, 0, "fleet", "add", keyedFleet, "--dir", s.fleets, "--offline")
	require.NotContains(t, said, "copy ")
	part, err := os.ReadFile(filepath.Join(servers, "fleet-"+keyedFleet+".conf"))
	require.NoError(t, err)
	made, err := os.ReadFile(filepath.Join(s.fleets, "fleet-"+keyedFleet+".conf"))
	require.NoError(t, err)
	require.Equal(t, string(made), string(part))
	require.NoError(t, os.RemoveAll(servers))
	requireHas(t, s.waymark(t, 0, "fleet", "add", keyedFleet, "--dir", s.fleets, "--offline"), "copy ")
}

// Keys are files: a new file adds an owner, a removed file revokes the key.
func TestFleetAdd_KeysOfOwners_AreTheirFiles(t *testing.T) {
	t.Parallel()
	s := &secured{dir: t.TempDir()}
	s.fleets = filepath.Join(s.dir, "fleets")
	add := func(fleet string, flags ...string) (added fleet.Added) {
		args := append([]string{"--json", "fleet", "add", fleet, "--dir", s.fleets, "--offline", "--nats", "nats://127.0.0.1:1"}, flags...)
		require.NoError(t, json.Unmarshal([]byte(s.waymark(t, 0, args...)), &added))
		return added
	}
	file := func(name string) string { return filepath.Join(s.fleets, name) }
	config := func(fleet string) string {
		text, err := os.ReadFile(file("fleet-" + fleet + ".conf"))
		require.NoError(t, err)
		return string(text)
	}
	require.Empty(t, add(keyedFleet).Owners)
	for _, role := range access.ClientRoles() {
		prefix := file(keyedFleet + "-" + string(role))
		shared := s.public(t, keyedFleet, role)
		both := add(keyedFleet, "--"+string(role), "bob,ann,bob")
		require.Len(t, both.Owners, 2, "%s", role)
		ann, bob := both.Owners[0], both.Owners[1]
		require.Equal(t, fleet.Owner{Role: role, Name: "ann", Key: ann.Key, Context: prefix + ".ann.json"}, ann)
		for _, key := range []string{shared, ann.Key, bob.Key} {
			require.Equal(t, 1, strings.Count(config(keyedFleet), "nkey: "+key), "each key is one user")
		}
		info, err := os.Stat(prefix + ".ann.nk")
		require.NoError(t, err)
		require.Zero(t, info.Mode().Perm()&0o077)

		require.NoError(t, os.Remove(prefix+".nk"))
		require.NoError(t, os.Remove(prefix+".bob.nk"))
		left := add(keyedFleet)
		require.Equal(t, []string{prefix + ".bob.json", prefix + ".json"}, left.Removed)
		for _, gone := range left.Removed {
			require.NoFileExists(t, gone, "a context without its key connects to nothing")
		}
		require.FileExists(t, ann.Context)
		require.Empty(t, add(keyedFleet).Removed)
		require.Equal(t, []fleet.Owner{ann}, left.Owners)
		require.NotContains(t, left.Contexts, role)
		require.NotContains(t, config(keyedFleet), shared)
		require.NotContains(t, config(keyedFleet), bob.Key)
		require.Contains(t, config(keyedFleet), ann.Key)

		// The files of a fleet with a similar name are not this fleet's.
		similar := keyedFleet + "-" + string(role)
		other := add(similar, "--"+string(role), "carol")
		require.Equal(t, left.Owners, add(keyedFleet).Owners)
		require.NotContains(t, config(keyedFleet), other.Owners[0].Key)
		require.NoError(t, os.Remove(strings.TrimSuffix(other.Owners[0].Context, ".json")+".nk"))
		requireHas(t, s.waymark(t, 0, "fleet", "add", similar, "--dir", s.fleets, "--offline"), other.Owners[0].Context+", because its key file was removed")

		require.NoError(t, os.Remove(prefix+".ann.nk"))
		require.Equal(t, []string{ann.Context}, add(keyedFleet).Removed, "without owners the role shares a key again")
	}

	s.waymark(t, int(failure.Usage), "fleet", "add", keyedFleet, "--dir", s.fleets, "--offline", "--operator", "../ann")
	s.waymark(t, int(failure.Usage), "fleet", "add", keyedFleet, "--operator", "ann")
	s.waymark(t, int(failure.Usage), "fleet", "add", keyedFleet, "--dir", s.fleets, "--offline", "--duties", "both")
	settings, err := os.ReadFile(file("fleet-" + keyedFleet + ".json"))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(file("fleet-"+keyedFleet+".json"), []byte(strings.Replace(string(settings), `"joint"`, `"separat"`, 1)), 0o600))
	requireHas(t, s.waymark(t, int(failure.Damaged), "fleet", "add", keyedFleet, "--dir", s.fleets, "--offline"), "joint or separate")
}
