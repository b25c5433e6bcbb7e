package fleet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/waymarkio/waymark/internal/base/output"
	"github.com/waymarkio/waymark/internal/cli/base"
	"github.com/waymarkio/waymark/internal/look/failure"
	"github.com/waymarkio/waymark/internal/nats/access"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

// DoctorCmd is waymark doctor.
type DoctorCmd struct {
	Monitor string `placeholder:"URL" help:"Monitoring address of an external server, such as http://127.0.0.1:8222: needed for its sync interval."`
}

// Help is the text below the flags.
func (DoctorCmd) Help() string {
	return `Changes nothing. What failed comes first; checks that would find its consequences are left out. The exit code is 1 if a check fails, and 0 if
there are only warnings. Without the fleet it checks whether the server can have it, and the exit code is 4.

Example:
  waymark doctor --nats nats://10.0.0.5:4222 --monitor http://10.0.0.5:8222 --json`
}

// diagnosis is the JSON output of doctor.
type diagnosis struct {
	Fleet    string         `json:"fleet"`
	Server   string         `json:"server"`
	Failed   int            `json:"failed"`
	Warnings int            `json:"warnings"`
	Checks   []base.Finding `json:"checks"`
}

// doctor is one run of the checks.
type doctor struct {
	DoctorCmd
	a     *base.App
	cl    *base.Client
	found []base.Finding
	// bad are the checks that failed or were left out, and left the latter.
	bad  map[string]bool
	left []string
	// missing is the error for a fleet that does not exist: the server is checked for it.
	missing error
	// What checks learn for later ones: the settings, the server's report of each stream, how many bytes the account's
	// streams may still store within their limits, and the daemon's answer.
	js       jetstream.JetStream
	settings schema.FleetSettings
	list     []kvstore.Inspected
	growth   int64
	reply    schema.FleetReply
}

// check is a step of the doctor.
type check struct {
	name string
	// after are checks whose failure has consequences that this one would find.
	after []string
	// ok is the detail if nothing was found; empty for a check that says so itself.
	ok  string
	run func(*doctor, context.Context) base.Finding
}

// checks are all but that of the server, in their order. That of the servers finds missing streams, too.
var checks = []check{
	{"credentials", nil, "required, and no other machine can read the connection", (*doctor).credentials},
	{"durability", nil, "", (*doctor).durability},
	{"servers", nil, "each stream is there, with all of its replicas", (*doctor).servers},
	{"stream flags", []string{"servers", "streams"}, "as the daemon makes them", (*doctor).flags},
	{"room in streams", []string{"servers", "streams"}, "a fifth or more of each", (*doctor).room},
	{"clock", []string{"servers", "streams"}, "this machine and the server agree within " + clockWarn.String(), (*doctor).clock},
	{"account limits", nil, "", (*doctor).account},
	{"disk", nil, "", (*doctor).disk},
	{"backup", []string{"servers", "streams"}, "", (*doctor).backup},
	{"daemon", nil, "", (*doctor).daemon},
	{"keys", []string{"daemon"}, "", (*doctor).keys},
	{"writes", []string{"servers", "streams", "daemon"}, "the log of each shard accepts them", (*doctor).writes},
	{"fold", []string{"writes"}, "one daemon folds each shard, and no event waits longer than 10s", (*doctor).fold},
	{"quarantine", []string{"daemon"}, "no run", some(func(r *schema.FleetRuns) int { return r.Quarantined },
		"runs ls --status quarantined", "", "%s quarantined, not claimable automatically: the claims made no progress")},
	{"events", []string{"daemon"}, "none is missing", some(func(r *schema.FleetRuns) int { return r.Gapped },
		"inbox", " names them; restore a backup, or erase one", "events of %s are missing")},
	{"overdue", []string{"daemon"}, "no run", some(func(r *schema.FleetRuns) int { return r.Overdue },
		"runs ls", " lists them; stop the processes of their executors if the work does not return", "%s with an overdue model request or tool call")},
	{"webhook", []string{"daemon"}, "no post of the answering daemon fails", (*doctor).webhook},
	{"dead letters", []string{"servers", "streams"}, "none", (*doctor).letters},
}

// before are the checks for a fleet that does not exist yet.
var before = []check{
	{"credentials", nil, "required, and no other machine can read the connection", (*doctor).credentials},
	{"durability", nil, "", (*doctor).durability},
	{"new streams", nil, "this key may make them", (*doctor).creation},
	{"room for streams", []string{"new streams"}, "", (*doctor).reservation},
}

func ok(format string, args ...any) base.Finding {
	return base.Find("", base.Good, "", format, args...)
}

func unknown(err error) base.Finding { return base.Find("", base.Unknown, "", "%s", err) }

func warning(do, format string, args ...any) base.Finding {
	return base.Find("", base.Warning, do, format, args...)
}

func fault(do, format string, args ...any) base.Finding {
	return base.Find("", base.Failed, do, format, args...)
}

// causeWait bounds the search for the cause if JetStream does not answer.
const causeWait = 10 * time.Second

// examine looks at everything that the credentials of the client may see. Nothing is changed.
func (d *doctor) examine(ctx context.Context) (err error) {
	if err = base.Fit(d.cl.NATS); err == nil {
		d.js, d.settings, err = d.cl.Settings(ctx)
	}
	server := ok("version %s, max_payload for this key is %s", d.cl.NATS.ConnectedServerVersion(), output.Bytes(d.cl.NATS.MaxPayload()))
	if err == nil {
		d.add("server", server)
		d.all(ctx, checks)
	} else {
		limit, cancel := context.WithTimeout(ctx, min(d.cl.Wait, causeWait))
		defer cancel()
		d.found = base.Unusable(limit, d.cl.NATS, d.cl.Target.Address())
		if failure.Explain(ctx, err).Code == failure.NotFound && d.cl.Ask(limit, schema.VerbFleet, "", schema.FleetRequest{}, &d.reply) == nil {
			d.add("streams", fault(base.LostDo, "fleet %s is missing at %s, although its daemon %s runs", d.cl.Fleet, d.cl.Target.Address(), d.reply.Replica))
		}
		if d.left = []string{"all else"}; len(d.found) == 0 {
			if failure.Explain(ctx, err).Code != failure.NotFound {
				return err
			}
			d.left, d.missing = nil, err
			d.add("server", server)
			d.all(ctx, before)
		}
	}
	if len(d.left) > 0 {
		d.add("not checked", base.Find("", base.Unknown, "", "%s: what failed comes first", strings.Join(d.left, ", ")))
	}
	slices.SortStableFunc(d.found, func(f, g base.Finding) int {
		return slices.Index(base.Results, f.Result) - slices.Index(base.Results, g.Result)
	})
	return nil
}

// add adds a finding of a check.
func (d *doctor) add(check string, f base.Finding) {
	f.Check = check
	d.found = append(d.found, f)
	d.bad[check] = d.bad[check] || f.Result == base.Failed
}

// all runs the checks. What the client may not ask ends its check.
func (d *doctor) all(ctx context.Context, checks []check) {
	watch := access.NewWatch()
	d.cl.NATS.SetErrorHandler(watch.Handler(nil)) // the handler before ends the command
	may := "look at all"
	if d.missing != nil {
		may = "make a fleet"
	}
	for _, c := range checks {
		out := slices.ContainsFunc(c.after, func(name string) bool { return d.bad[name] })
		if !out {
			limit, stop := watch.Context(ctx, "")
			f := c.run(d, limit)
			var refused *access.Refusal
			if refused, out = errors.AsType[*access.Refusal](context.Cause(limit)); !out {
				if f.Result == "" {
					f = ok("%s", c.ok)
				}
				d.add(cmp.Or(f.Check, c.name), f)
			} else if !d.bad["rights"] {
				d.add("rights", fault(refused.Hint(), "this key may not %s: %s", may, refused.What()))
			}
			stop()
		}
		if out {
			d.bad[c.name], d.left = true, append(d.left, c.name)
		}
	}
}

// Run runs all checks.
func (c DoctorCmd) Run(ctx context.Context, a *base.App, cl *base.Client) error {
	d := &doctor{DoctorCmd: c, a: a, cl: cl, bad: make(map[string]bool)}
	if err := d.examine(ctx); err != nil {
		return err
	}
	out := diagnosis{Fleet: cl.Fleet, Server: cl.Target.Address(), Checks: d.found}
	var failed []string
	for _, f := range d.found {
		switch f.Result {
		case base.Failed:
			out.Failed++
			failed = append(failed, f.Check)
		case base.Warning:
			out.Warnings++
		}
	}
	var err error
	if a.JSON {
		err = output.Document(a.Stdout, out)
	} else {
		err = printDiagnosis(a, &out)
	}
	if err == nil && out.Failed == 0 {
		err = d.missing
	}
	if err == nil && out.Failed > 0 {
		err = failure.New(failure.General, "", "failed: %s", strings.Join(slices.Compact(failed), ", "))
	}
	return err
}

func printDiagnosis(a *base.App, d *diagnosis) error {
	rows := make([][]string, len(d.Checks))
	for i, f := range d.Checks {
		rows[i] = []string{f.Result, f.Check, f.Detail}
	}
	if err := output.Table(a.Stdout, []output.Column{{Title: "result"}, {Title: "check"}, {Title: "detail", Shrinks: true, Wraps: true}}, rows); err != nil {
		return err
	}
	title := "\nwhat to do:\n"
	for _, f := range d.Checks { // commands are not cut to the width of a line
		if f.Do == "" {
			continue
		}
		if _, err := fmt.Fprintf(a.Stdout, "%s  %s: %s\n", title, output.Printable(f.Check), output.Printable(f.Do)); err != nil {
			return err
		}
		title = ""
	}
	return nil
}

// servers inspects the streams, and says which of their servers are down.
func (d *doctor) servers(ctx context.Context) (f base.Finding) {
	d.list = kvstore.Inspect(ctx, d.js, &d.settings)
	for _, found := range base.Streams(d.list) {
		if f.Result != "" {
			d.add(f.Check, f)
		}
		f = found
	}
	return f
}

// clock compares this machine's clock with the server's.
func (d *doctor) clock(context.Context) (f base.Finding) {
	if info := d.list[0].Info; info != nil && !info.TimeStamp.IsZero() {
		const do, apart = "let both machines follow NTP", "this machine and the server are %s apart"
		switch off := time.Since(info.TimeStamp).Abs().Round(time.Millisecond); {
		case off >= clockFail:
			return fault(do, apart, off)
		case off >= clockWarn:
			return warning(do, apart, off)
		}
		return f
	}
	return unknown(errors.New("the server does not tell its time"))
}

// daemon checks that one answers.
func (d *doctor) daemon(ctx context.Context) base.Finding {
	if err := d.cl.Ask(ctx, schema.VerbFleet, "", schema.FleetRequest{}, &d.reply); err != nil {
		return fault(d.cl.StartHint(ctx), "no daemon answers: %s", err)
	}
	return ok("%s answers; the server stores a small message in %.1f ms", d.reply.Replica, d.reply.DurableMS)
}

// writes checks that each shard's log accepts writes: without that a daemon answers no read.
func (d *doctor) writes(ctx context.Context) (f base.Finding) {
	var closed []int
	shards := len(d.reply.Shards)
	errs := make([]error, shards)
	var asked sync.WaitGroup
	for shard := range shards {
		run := ""
		for n := 0; run == "" || schema.ShardOf(run, shards) != shard; n++ {
			run = fmt.Sprintf("waymark-doctor-%d", n) // no run has this id
		}
		asked.Go(func() {
			errs[shard] = d.cl.Ask(ctx, schema.VerbGet, run, schema.GetRequest{View: schema.ViewHead}, new(schema.GetReply))
		})
	}
	asked.Wait()
	for shard, err := range errs {
		service, answered := errors.AsType[*schema.ServiceError](err)
		switch {
		case err == nil, answered && service.Code == schema.CodeNotFound:
		case answered && service.Code == schema.CodeUnavailable, errors.Is(err, context.DeadlineExceeded):
			closed = append(closed, shard)
			f = fault(base.WritesDo, "the log of %s acknowledges no write: %s", base.Names("shard", closed), failure.Explain(ctx, err).What)
		case f.Result == "":
			f = unknown(fmt.Errorf("shard %d: %w", shard, err))
		}
	}
	return f
}

// lagWarn is how long accepted events may wait for the fold.
const lagWarn = 10 * time.Second

// fold checks that a daemon folds each shard, and that it keeps up.
func (d *doctor) fold(ctx context.Context) (f base.Finding) {
	var free, behind []int
	for i := range d.reply.Shards {
		s := &d.reply.Shards[i]
		switch lag := time.Duration(s.WaitingMS) * time.Millisecond; {
		case s.Error != "":
			f = unknown(fmt.Errorf("shard %d: %s", s.Shard, s.Error))
		case s.Worker == "":
			free = append(free, s.Shard)
		case lag > lagWarn:
			behind = append(behind, s.Shard)
			f = warning("see: "+d.a.Prompt.Command("fleet"), "events of %s wait for their checkpoint, in the last of them for %s", base.Names("shard", behind), lag)
		}
	}
	if len(free) > 0 {
		return fault(d.cl.StartHint(ctx), "no daemon holds the lease of %s: no checkpoints are written and dead executors are not detected", base.Names("shard", free))
	}
	return f
}

// some makes a check that warns of runs, if there are any.
func some(of func(*schema.FleetRuns) int, command, then, format string) func(*doctor, context.Context) base.Finding {
	return func(d *doctor, _ context.Context) (f base.Finding) {
		if n := of(&d.reply.Runs); n > 0 {
			return warning(d.a.Prompt.Command(command)+then, format, output.Plural(n, "run"))
		}
		return f
	}
}

// webhook checks the posts of the answering daemon.
func (d *doctor) webhook(context.Context) (f base.Finding) {
	if w := d.reply.Webhook; w != nil && w.FailingSince != "" {
		what := "ends of runs are"
		if w.Pending > 0 {
			what = output.Plural(w.Pending, "entry", "entries") + " of the inbox " + output.InNumber(w.Pending, "is", "are")
		}
		return warning("check that its receiver runs and answers 2xx within 10s; the daemon retries by itself",
			"%s not taken from daemon %s, and posts fail since %s: %s", what, d.reply.Replica, w.FailingSince, w.Why)
	}
	return f
}

// letters checks for rejected events.
func (d *doctor) letters(ctx context.Context) (f base.Finding) {
	ctx, cancel := context.WithTimeout(ctx, d.cl.Wait)
	defer cancel()
	stream, err := d.js.Stream(ctx, schema.DeadLetterStream(d.cl.Fleet))
	if err != nil {
		return unknown(err)
	}
	state, which := stream.CachedInfo().State, "--all --strict"
	if state.Msgs == 0 {
		return f
	}
	if d.cl.NATS.Opts.InboxPrefix != access.InboxPrefix(access.Observer) { // it may not read them
		if last, err := stream.GetMsg(ctx, state.LastSeq); err == nil {
			if run := last.Subject[strings.LastIndexByte(last.Subject, '.')+1:]; schema.ValidName(run) {
				which = run
			}
		}
	}
	return warning("see why the last one was refused with: "+d.a.Prompt.Command("verify "+which), "%s %s kept in the stream %s, each with its run and reason",
		output.Plural(state.Msgs, "rejected event"), output.InNumber(state.Msgs, "is", "are"), schema.DeadLetterStream(d.cl.Fleet))
}
