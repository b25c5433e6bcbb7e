package fleet

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/waymarkio/waymark/internal/base/keyring"
	"github.com/waymarkio/waymark/internal/base/output"
	"github.com/waymarkio/waymark/internal/base/prompt"
	"github.com/waymarkio/waymark/internal/cli/base"
	"github.com/waymarkio/waymark/internal/look/failure"
	"github.com/waymarkio/waymark/internal/nats/natsconn"
	"github.com/waymarkio/waymark/internal/nats/natsd"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

// Thresholds of the doctor.
const (
	// consumersMost is the default maximum number of consumers of a stream.
	consumersMost = 1000
	// fullWarn and fullFail are percentages of a limit.
	fullWarn, fullFail = 80, 97
	// clockWarn and clockFail are differences of clocks.
	clockWarn, clockFail = 2 * time.Second, 30 * time.Second
	// lagWarn is how long accepted events may wait for the fold.
	lagWarn = 10 * time.Second
)

// DoctorCmd is waymark doctor.
type DoctorCmd struct {
	Monitor string `placeholder:"URL" help:"Monitoring address of an external server, such as http://127.0.0.1:8222: needed for its sync interval."`
}

// Help is the text below the flags.
func (DoctorCmd) Help() string {
	return `Changes nothing. The exit code is 1 if a check fails, and 0 if there are only warnings.

Example:
  waymark doctor --nats nats://10.0.0.5:4222 --monitor http://10.0.0.5:8222 --json`
}

// Results of a check.
const (
	checkOK      = "ok"
	checkWarning = "warning"
	checkFailed  = "FAILED"
	checkUnknown = "unknown"
)

// Checkup is the result of one check.
type Checkup struct {
	Name   string `json:"check"`
	Result string `json:"result"`
	Detail string `json:"detail"`
	// Do is the command to run or the setting to change; empty if there is nothing to do.
	Do string `json:"do,omitzero"`
}

// diagnosis is the JSON output of doctor.
type diagnosis struct {
	Fleet    string    `json:"fleet"`
	Server   string    `json:"server"`
	Failed   int       `json:"failed"`
	Warnings int       `json:"warnings"`
	Checks   []Checkup `json:"checks"`
}

// doctor is one run of the checks.
type doctor struct {
	cl     *base.Client
	js     jetstream.JetStream
	p      prompt.Prompt
	checks []Checkup
}

func (d *doctor) add(name, result, do, format string, args ...any) {
	d.checks = append(d.checks, Checkup{Name: name, Result: result, Detail: fmt.Sprintf(format, args...), Do: do})
}

// Run runs all checks.
func (c DoctorCmd) Run(ctx context.Context, a *base.App, cl *base.Client) error {
	checks, err := Examine(ctx, a, cl, c.Monitor)
	if err != nil {
		return err
	}
	out := diagnosis{Fleet: cl.Fleet, Server: cl.Target.Address(), Checks: checks}
	for _, k := range checks {
		switch k.Result {
		case checkFailed:
			out.Failed++
		case checkWarning:
			out.Warnings++
		}
	}
	if a.JSON {
		err = output.Document(a.Stdout, out)
	} else {
		err = printDiagnosis(a, &out)
	}
	if err == nil && out.Failed > 0 {
		err = failure.New(failure.General, "", "%d of %s failed", out.Failed, output.Plural(len(out.Checks), "check"))
	}
	return err
}

// Examine looks at everything that the credentials of a client may see. Nothing is changed.
func Examine(ctx context.Context, a *base.App, cl *base.Client, monitor string) ([]Checkup, error) {
	d := &doctor{cl: cl, p: a.Prompt}
	if !d.server() {
		return d.checks, nil // the rest would be its consequences
	}
	js, settings, err := cl.Settings(ctx)
	if err != nil {
		return nil, err
	}
	d.js = js
	d.credentials()
	d.keys(ctx, &settings)
	d.durability(ctx, monitor, &settings)
	d.pings(ctx, monitor)
	streams := d.streams(ctx, &settings)
	d.disk(a, d.account(ctx))
	d.backup(ctx, settings.Fleet, streams, a.Now())
	d.fleet(ctx, &settings)
	return d.checks, nil
}

func printDiagnosis(a *base.App, d *diagnosis) error {
	rows := make([][]string, len(d.Checks))
	for i, k := range d.Checks {
		rows[i] = []string{k.Result, k.Name, k.Detail}
	}
	if err := output.Table(a.Stdout, []output.Column{{Title: "result"}, {Title: "check"}, {Title: "detail", Shrinks: true, Wraps: true}}, rows); err != nil {
		return err
	}
	// Commands are not cut to the width of a line.
	for _, k := range d.Checks {
		if k.Do == "" {
			continue
		}
		if _, err := fmt.Fprintf(a.Stdout, "\n%s: %s\n  do: %s\n", output.Printable(k.Name), output.Printable(k.Detail), output.Printable(k.Do)); err != nil {
			return err
		}
	}
	return nil
}

// server checks the version and the maximum message size. It reports whether the server can have a fleet.
func (d *doctor) server() bool {
	if err := kvstore.CheckServer(d.cl.NATS); err != nil {
		d.add("server", checkFailed, "run nats-server "+kvstore.LeastServer+" or newer with max_payload: 1MB", "%s", err)
		return false
	}
	d.add("server", checkOK, "", "version %s, max_payload is %s", d.cl.NATS.ConnectedServerVersion(), output.Bytes(d.cl.NATS.MaxPayload()))
	return true
}

// credentials checks that the server does not accept clients without credentials.
func (d *doctor) credentials() {
	local := base.IsLoopback(d.cl.NATS.ConnectedAddr())
	switch {
	case !d.cl.NATS.AuthRequired() && !local:
		d.add("credentials", checkFailed, "configure accounts with credentials on the server", "%s accepts any client that can reach it, without credentials", d.cl.Target.Address())
	case !d.cl.NATS.AuthRequired():
		d.add("credentials", checkWarning, "configure accounts with credentials on the server", "the server accepts any client on this machine, without credentials")
	default:
		d.add("credentials", checkOK, "", "the server requires them")
	}
	if _, err := d.cl.NATS.TLSConnectionState(); err != nil && !local {
		d.add("encryption", checkWarning, "configure TLS on the server, and use --tls-ca", "the connection to %s is not encrypted", d.cl.Target.Address())
	} else {
		d.add("encryption", checkOK, "", "%s", map[bool]string{true: "the connection does not leave this machine", false: "TLS"}[err != nil])
	}
}

// keys checks that forged control events are refused, and that the answering daemon can sign.
func (d *doctor) keys(ctx context.Context, settings *schema.FleetSettings) {
	const name = "keys"
	keys, err := keyring.Parse(settings.Fleet, settings.Keys)
	switch {
	case err != nil:
		d.add(name, checkFailed, "restore the fleet's settings from a backup", "%s", err)
		return
	case !keys.Any() && !d.cl.NATS.AuthRequired(), !keys.Any() && d.cl.Target.Origin == natsconn.OriginLocal:
		d.add(name, checkOK, "", "none: control events are not signed, so any client that may publish events can forge them")
		return
	case !keys.Any():
		d.add(name, checkWarning, "as the fleet's daemon: "+d.p.Command("fleet keys add"), "none: control events are not signed, so any client that may publish events can forge them")
		return
	}
	signing := 0
	for _, k := range settings.Keys {
		if k.Until == "" {
			signing++
		}
	}
	var reply schema.FleetReply
	if err := d.cl.Ask(ctx, schema.VerbFleet, "", schema.FleetRequest{}, &reply); err != nil {
		d.add(name, checkUnknown, "", "%d sign; the answering daemon did not report its own key: %s", signing, err)
		return
	}
	var signer *keyring.Signer
	if reply.Signer != "" {
		signer = &keyring.Signer{Name: reply.Signer}
	}
	now, err := kvstore.NewFleets(d.js).ServerTime(ctx)
	if err != nil {
		d.add(name, checkUnknown, "", "%d sign; the key of daemon %s is unknown: %s", signing, reply.Replica, err)
		return
	}
	if err := signer.May(keys, now); err != nil {
		d.add(name, checkFailed, "start it with a key of the fleet; "+d.p.Command("fleet keys")+" lists them", "the daemon %s: %s", reply.Replica, err)
		return
	}
	d.add(name, checkOK, "", "%d sign, including that of daemon %s (%s)", signing, reply.Replica, reply.Signer)
}

// streams checks flags, limits, consumers, replicas and the clock, and returns the server's report of each stream.
func (d *doctor) streams(ctx context.Context, settings *schema.FleetSettings) []kvstore.Inspected {
	list := kvstore.Inspect(ctx, d.js, settings)
	flags, room, consumers, replicas := 0, 0, 0, 0
	for i := range list {
		s := &list[i]
		config := new(kvstore.ConfigError)
		switch {
		case errors.As(s.Err, &config):
			flags++
			f := failure.ExplainStorage(s.Err)
			d.add("stream flags", checkFailed, f.Hint, "%s", f.What)
		case errors.Is(s.Err, kvstore.ErrStreamMissing) && s.Truth:
			flags++
			d.add("stream flags", checkFailed, "restore it from a backup; it is never recreated silently", "stream %s is gone; its data cannot be derived from other data", s.Stream)
		case errors.Is(s.Err, kvstore.ErrStreamMissing):
			flags++
			d.add("stream flags", checkWarning, "restart the daemon: it recreates this derived stream", "stream %s is gone", s.Stream)
		case s.Err != nil:
			flags++
			d.add("stream flags", checkUnknown, "", "%s: %s", s.Stream, s.Err)
		}
		if s.Info == nil {
			continue
		}
		room += d.room(s, settings)
		if n := s.Info.State.Consumers; n >= consumersMost*fullWarn/100 {
			consumers++
			d.add("consumers", checkWarning, "list them with: nats consumer ls "+s.Stream+"; delete unused ones", "stream %s has %d consumers of at most %d", s.Stream, n, consumersMost)
		}
		replicas += d.replicas(s)
		if i == 0 {
			d.clock(s.Info)
		}
	}
	for _, all := range []struct {
		name string
		bad  int
	}{{"stream flags", flags}, {"room in streams", room}, {"consumers", consumers}, {"replicas", replicas}} {
		if all.bad == 0 {
			d.add(all.name, checkOK, "", "%s", output.Plural(len(list), "stream"))
		}
	}
	return list
}

// room checks a stream's byte limit, without the daemon's reserve in it. A stream that discards old messages is never full.
func (d *doctor) room(s *kvstore.Inspected, settings *schema.FleetSettings) int {
	limit := s.Info.Config.MaxBytes
	if strings.HasPrefix(s.Stream, "KV_") {
		limit -= settings.ReserveBytes
	}
	if limit <= 0 || s.Info.Config.Discard == jetstream.DiscardOld {
		return 0
	}
	percent := int64(s.Info.State.Bytes) * 100 / limit //nolint:gosec // a size on disk
	result := checkWarning
	switch {
	case percent >= fullFail:
		result = checkFailed
	case percent < fullWarn:
		return 0
	}
	raise := "start the daemon with " + d.p.Command("serve") + " --quota SIZE"
	if len(settings.Keys) > 0 { // its accounts have limits, too
		raise = "waymark fleet add " + settings.Fleet + " --dir DIR --offline --quota SIZE, reload the servers, and again without --offline"
	}
	d.add("room in streams", result, "remove runs, or raise the quota: "+raise,
		"stream %s is at %d %% of %s", s.Stream, percent, output.Bytes(limit))
	return 1
}

// replicas checks that a stream has a leader and all of its replicas.
func (d *doctor) replicas(s *kvstore.Inspected) int {
	bad := 0
	cluster := s.Info.Cluster
	if cluster == nil {
		return 0
	}
	if cluster.Leader == "" {
		bad++
		d.add("replicas", checkFailed, "start the missing servers; see: nats server report jetstream", "stream %s has no leader, so writes fail", s.Stream)
	}
	for _, r := range cluster.Replicas {
		if r.Current && !r.Offline {
			continue
		}
		bad++
		state := fmt.Sprintf("is %s behind", output.Plural(r.Lag, "message"))
		if r.Offline {
			state = "is offline"
		}
		d.add("replicas", checkWarning, "see: nats stream info "+s.Stream, "the replica of stream %s on %s %s", s.Stream, r.Name, state)
	}
	return bad
}

// clock compares this machine's clock with the server's.
func (d *doctor) clock(info *jetstream.StreamInfo) {
	if info.TimeStamp.IsZero() {
		d.add("clock", checkUnknown, "", "the server does not report its time")
		return
	}
	off := time.Since(info.TimeStamp).Abs().Round(time.Millisecond)
	const do = "let both machines follow NTP"
	switch {
	case off >= clockFail:
		d.add("clock", checkFailed, do, "this machine and the server are %s apart", off)
	case off >= clockWarn:
		d.add("clock", checkWarning, do, "this machine and the server are %s apart", off)
	default:
		d.add("clock", checkOK, "", "this machine and the server agree within %s", clockWarn)
	}
}

// account checks the limits of the account, and returns how many bytes its streams may still store within their limits.
func (d *doctor) account(ctx context.Context) (growth int64) {
	const name = "account limits"
	info, err := d.js.AccountInfo(ctx)
	if err != nil {
		d.add(name, checkUnknown, "", "%s", err)
		return 0
	}
	stored, reserved, limit := int64(info.Store), int64(info.ReservedStore), info.Limits.MaxStore //nolint:gosec // sizes on disk
	growth = max(0, reserved-stored)
	if limit <= 0 {
		d.add(name, checkOK, "", "the account has no limit of its own")
		return growth
	}
	percent := max(stored, reserved) * 100 / limit
	if percent >= fullWarn {
		d.add(name, checkWarning, "raise the account's max_file, or lower the fleets' quotas", "%d %% of %s are used or reserved", percent, output.Bytes(limit))
		return growth
	}
	d.add(name, checkOK, "", "%d %% of %s are used or reserved", percent, output.Bytes(limit))
	return growth
}

// disk checks the free space of the local server's disk, whose streams may still store growth bytes.
func (d *doctor) disk(a *base.App, growth int64) {
	const name = "disk"
	if d.cl.Target.Origin != natsconn.OriginLocal {
		d.add(name, checkUnknown, "", "the server does not use this state directory: check the disk on its machine")
		return
	}
	dir, err := a.StateDirectory()
	if err != nil {
		d.add(name, checkUnknown, "", "%s", err)
		return
	}
	free, total, err := natsd.DiskRoom(dir)
	if err != nil {
		d.add(name, checkUnknown, "", "%s", err)
		return
	}
	result, do, detail := diskRoom(free, total, growth)
	d.add(name, result, do, "%s", detail)
}

// diskRoom checks a disk's free space, in bytes, against what the streams may still store: on a large disk, a few percent are plenty.
func diskRoom(free, total, growth int64) (result, do, detail string) {
	detail = fmt.Sprintf("%s of %s are free", output.Bytes(free), output.Bytes(total))
	switch least := failure.LeastRoom(total); {
	case free < least:
		return checkFailed, fmt.Sprintf("free at least %s: a daemon that ran out of space continues by itself then", output.Bytes(least)), detail
	case free < growth:
		return checkWarning, "free space, or lower the quota", fmt.Sprintf("%s, and the streams may grow by %s", detail, output.Bytes(growth))
	}
	return checkOK, "", detail
}

// fleet checks the daemons: whether one answers, which one folds each shard, and the lag.
func (d *doctor) fleet(ctx context.Context, settings *schema.FleetSettings) {
	var reply schema.FleetReply
	if err := d.cl.Ask(ctx, schema.VerbFleet, "", schema.FleetRequest{}, &reply); err != nil {
		d.add("daemon", checkFailed, d.cl.StartHint(ctx), "no daemon answers: %s", err)
		return
	}
	d.add("daemon", checkOK, "", "%s answers", reply.Replica)
	d.syncs(reply.DurableMS, settings)
	folded, behind := 0, 0
	takes := d.writes(ctx, len(reply.Shards))
	for i := range reply.Shards {
		s := &reply.Shards[i]
		switch {
		case s.Worker == "" && !takes[i]:
			continue // leases are written, too: the failed writes are the cause
		case s.Error != "":
			d.add("lock", checkUnknown, "", "shard %d: %s", s.Shard, s.Error)
			continue
		case s.Worker == "":
			d.add("lock", checkFailed, d.cl.StartHint(ctx), "no daemon holds the lease of shard %d: no checkpoints are written and dead executors are not detected", s.Shard)
			continue
		}
		folded++
		if lag := time.Duration(s.WaitingMS) * time.Millisecond; lag > lagWarn {
			behind++
			d.add("fold", checkWarning, "see: "+d.p.Command("fleet"), "%s of shard %d accepted but not checkpointed, the oldest for %s", output.Plural(s.Waiting, "event"), s.Shard, lag)
		}
	}
	if folded == len(reply.Shards) {
		d.add("lock", checkOK, "", "each shard is folded by one daemon, %s in all", output.Plural(folded, "shard"))
	}
	if behind == 0 {
		d.add("fold", checkOK, "", "no event waits longer than %s", lagWarn)
	}
	if reply.Runs.Quarantined > 0 {
		d.add("quarantine", checkWarning, d.p.Command("runs ls --status quarantined"), "%s quarantined, not claimable automatically: the claims made no progress", output.Plural(reply.Runs.Quarantined, "run"))
	}
	if n := reply.Runs.Gapped; n > 0 {
		d.add("events", checkWarning, "name them: "+d.p.Command("inbox")+"; restore a backup, or remove one: "+d.p.Command("erase RUN --force"),
			"events of %s are missing", output.Plural(n, "run"))
	}
	if n := reply.Runs.Overdue; n > 0 {
		d.add("overdue", checkWarning, "list them: "+d.p.Command("runs ls")+"; stop the processes of their executors if the work does not return",
			"%s with an overdue model request or tool call", output.Plural(n, "run"))
	}
	d.webhook(&reply)
	d.letters(ctx)
}

// webhook checks the posts of the answering daemon.
func (d *doctor) webhook(reply *schema.FleetReply) {
	const name = "webhook"
	switch w := reply.Webhook; {
	case w == nil:
	case w.FailingSince != "":
		d.add(name, checkWarning, "check that its receiver runs and answers 2xx within 10s; the daemon retries by itself",
			"%s of the inbox %s not taken from daemon %s, and posts fail since %s: %s", output.Plural(w.Pending, "entry", "entries"),
			output.InNumber(w.Pending, "is", "are"), reply.Replica, w.FailingSince, w.Why)
	default:
		d.add(name, checkOK, "", "no post of daemon %s fails", reply.Replica)
	}
}

// fullDo is the next step for a shard whose log accepts no writes.
const fullDo = "check that each NATS server's disk has free space and that more than half of the stream's replicas run (nats stream report); " +
	"restart a NATS server whose disk was full: it stores no message before. A daemon with an embedded server does so by itself"

// writes checks that each shard's log accepts writes: without that a daemon answers no read.
func (d *doctor) writes(ctx context.Context, shards int) []bool {
	takes, all := make([]bool, shards), true
	for shard := range takes {
		run := ""
		for n := 0; run == "" || schema.ShardOf(run, shards) != shard; n++ {
			run = fmt.Sprintf("waymark-doctor-%d", n) // no run has this id
		}
		err := d.cl.Ask(ctx, schema.VerbGet, run, schema.GetRequest{View: schema.ViewHead}, new(schema.GetReply))
		service, answered := errors.AsType[*schema.ServiceError](err)
		switch {
		case err == nil, answered && service.Code == schema.CodeNotFound:
			takes[shard] = true
			continue
		case answered && service.Code == schema.CodeUnavailable, errors.Is(err, context.DeadlineExceeded):
			d.add("writes", checkFailed, fullDo, "the log of shard %d acknowledges no write: %s", shard, failure.Explain(ctx, err).What)
		default:
			takes[shard] = true // unknown: assume that it does
			d.add("writes", checkUnknown, "", "shard %d: %s", shard, err)
		}
		all = false
	}
	if all {
		d.add("writes", checkOK, "", "the log of each shard accepts writes, %s in all", output.Plural(shards, "shard"))
	}
	return takes
}

// letters checks for rejected events.
func (d *doctor) letters(ctx context.Context) {
	const name = "dead letters"
	ctx, cancel := context.WithTimeout(ctx, d.cl.Wait)
	defer cancel()
	stream, err := d.js.Stream(ctx, schema.DeadLetterStream(d.cl.Fleet))
	if err != nil {
		if !errors.Is(err, jetstream.ErrStreamNotFound) && !errors.Is(err, nats.ErrTimeout) {
			d.add(name, checkUnknown, "", "%s", err)
		}
		return
	}
	if n := stream.CachedInfo().State.Msgs; n > 0 {
		which := "--all --strict"
		if last, err := stream.GetMsg(ctx, stream.CachedInfo().State.LastSeq); err == nil {
			if run := last.Subject[strings.LastIndexByte(last.Subject, '.')+1:]; schema.ValidName(run) {
				which = run
			}
		}
		d.add(name, checkWarning, "see why the last one was refused with: "+d.cl.Prompt.Command("verify "+which),
			"%s %s kept in the stream %s, each with its run and reason", output.Plural(n, "rejected event"), output.InNumber(n, "is", "are"), schema.DeadLetterStream(d.cl.Fleet))
		return
	}
	d.add(name, checkOK, "", "none")
}
