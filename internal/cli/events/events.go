package events

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/jedib0t/go-pretty/v6/text"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/errgroup"

	"github.com/waymarkio/waymark/internal/base/output"
	"github.com/waymarkio/waymark/internal/base/pause"
	"github.com/waymarkio/waymark/internal/cli/base"
	"github.com/waymarkio/waymark/internal/look/failure"
	"github.com/waymarkio/waymark/internal/look/story"
	"github.com/waymarkio/waymark/internal/nats/eventlog"
	"github.com/waymarkio/waymark/schema"
)

// Cmd is waymark events.
type Cmd struct {
	Run_     string        `arg:"" name:"run" optional:"" help:"Run id; omit it for all runs of the fleet."`
	All      bool          `xor:"from" help:"Begin with the run's first event; without a run, with the oldest one in the log."`
	Since    time.Duration `xor:"from" placeholder:"TIME" help:"Begin this long ago, such as 10m."`
	NoFollow bool          `help:"Stop at the end of the log."`
	Type     []string      `sep:"," placeholder:"NAME" help:"Only these events: tool.returned, or tool for all of tools."`
	Raw      bool          `help:"With --json: structured CloudEvents."`
}

// Help is the text below the flags.
func (Cmd) Help() string {
	return `Columns: time, position in the log, run, epoch and sequence (c: a control event; -: no sequence), event, summary. Refused ` +
		`events have their reason: of a run all, of a fleet those with invalid data or without a valid signature. With --all the daemon reads a run from ` +
		`its beginning: events that waymark resume left behind have a mark.

Examples:
  waymark events                                  new events of all runs
  waymark events fix-login --all --no-follow      a run from its beginning
  waymark events --type run,tool.failed             events about runs, and failed tool calls`
}

// line is an event as JSON.
type line struct {
	Stream   schema.StreamSequence `json:"stream_sequence,omitzero"`
	ID       string                `json:"id"`
	Type     string                `json:"type"`
	Source   string                `json:"source"`
	Run      string                `json:"run"`
	Time     string                `json:"time,omitzero"`
	Epoch    schema.Epoch          `json:"epoch,omitzero"`
	Sequence schema.Sequence       `json:"sequence,omitzero"`
	Turn     int32                 `json:"turn,omitzero"`
	DataRef  string                `json:"dataref,omitzero"`
	Data     jsontext.Value        `json:"data,omitzero"`
	// Bytes is data that is not JSON, or nested too deeply.
	Bytes []byte `json:"data_base64,omitzero"`
	// Problem says why a message is not a valid event.
	Problem string `json:"problem,omitzero"`
	// Refused is the reason why the fold refuses the event. Without a run in the command, this is known only of invalid
	// data and of control events without a valid signature.
	Refused string `json:"refused,omitzero"`
	// Duplicate: the event is in the log more than once, and counts once. LeftBehind: a rewind of the run left the
	// event behind.
	Duplicate  bool `json:"duplicate,omitzero"`
	LeftBehind bool `json:"left_behind,omitzero"`
	// Unsigned marks an executor's event that may need a person's decision: only the fold knows whether it counts.
	Unsigned bool `json:"unsigned,omitzero"`
}

// Run follows events until Ctrl-C.
func (c Cmd) Run(ctx context.Context, a *base.App) error {
	switch {
	case c.Raw && !a.JSON:
		return failure.New(failure.Usage, "add --json", "--raw is a form of JSON: without --json it would change nothing")
	case c.Since < 0:
		return failure.New(failure.Usage, "write how long ago: --since 10m", "--since %s is below 0", c.Since)
	case slices.ContainsFunc(c.Type, func(name string) bool { return !typeName.MatchString(name) }):
		return failure.New(failure.Usage, "use names such as tool.returned, or tool", "--type %s is not an event name", strings.Join(c.Type, ","))
	case c.NoFollow && !c.All && c.Since == 0:
		return failure.New(failure.Usage, "add --all or --since", "--no-follow would show nothing: it begins at the end of the log")
	}
	if err := c.sayUnknown(a); err != nil {
		return err
	}
	cl, err := a.Connect(ctx, nats.MaxReconnects(-1), nats.ReconnectWait(time.Second))
	if err != nil {
		return err
	}
	// A follower must not miss events published during the request to the daemon. For a reader of existing events, the
	// message comes first.
	group, work := errgroup.WithContext(ctx)
	if c.NoFollow {
		group.SetLimit(1)
	}
	group.Go(func() error { return c.sayMissing(work, a, cl) })
	group.Go(func() error { return c.log(work, a, cl) })
	err = group.Wait()
	if ctx.Err() != nil && (err == nil || errors.Is(err, context.Canceled) || errors.Is(err, context.Cause(ctx))) {
		return nil
	}
	return err
}

// sayUnknown names the --type values that are not in the vocabulary: executors may write events of their own.
func (c Cmd) sayUnknown(a *base.App) error {
	known := schema.EventNames()
	for _, name := range c.Type {
		entity, _, _ := strings.Cut(name, ".")
		about := slices.DeleteFunc(slices.Clone(known), func(k string) bool { return !strings.HasPrefix(k, entity+".") })
		if slices.Contains(known, name) || name == entity && len(about) > 0 {
			continue
		}
		if len(about) == 0 {
			about = known
		}
		if err := a.Say(a.Stderr, "--type %s is not in the vocabulary and shows only executors' own events of this name; known names: %s", name, strings.Join(about, ", ")); err != nil {
			return err
		}
	}
	return nil
}

// lookPatience bounds the request whether a run exists: the events are read without a daemon.
const lookPatience = 2 * time.Second

// sayMissing says that the awaited run does not exist or has ended.
func (c Cmd) sayMissing(ctx context.Context, a *base.App, cl *base.Client) error {
	if c.Run_ == "" || c.NoFollow && c.All || a.Quiet {
		return nil
	}
	looking, cancel := context.WithTimeout(ctx, lookPatience)
	defer cancel()
	reply, err := cl.Get(looking, c.Run_)
	if err == nil && reply.Head.Status.Terminal() && !c.NoFollow {
		_, err = fmt.Fprintf(a.Stderr, "run %s has ended as %s: waiting for new events anyway; to see its existing events: %s\n",
			c.Run_, reply.Head.Status, cl.Prompt.Command("events "+c.Run_+" --all --no-follow"))
		return err
	}
	var told *schema.ServiceError
	if !errors.As(err, &told) || told.Code != schema.CodeNotFound && told.Code != schema.CodeErased {
		return nil // the run exists, or no daemon can tell
	}
	if !c.NoFollow {
		_, err = fmt.Fprintf(a.Stderr, "%s: waiting for its events\n", output.Printable(told.Message))
		return err
	}
	_, err = fmt.Fprintln(a.Stderr, output.Printable(told.Message))
	return err
}

// follow reads the event streams of the selected shards. take is called by one goroutine.
func (c Cmd) follow(ctx context.Context, cl *base.Client, from eventlog.FollowFrom, take func(eventlog.Arrived) error) error {
	js, settings, err := cl.Settings(ctx)
	if err != nil {
		return err
	}
	records := make(chan eventlog.Arrived)
	group, ctx := errgroup.WithContext(ctx)
	var readers errgroup.Group
	for shard := range settings.Shards {
		if c.Run_ == "" || shard == schema.ShardOf(c.Run_, settings.Shards) {
			readers.Go(func() error { return c.read(ctx, js, schema.NamesOf(cl.Fleet, shard), from, records) })
		}
	}
	group.Go(func() error {
		defer close(records)
		return readers.Wait()
	})
	group.Go(func() error {
		for r := range records {
			if err := take(r); err != nil {
				return err
			}
		}
		return nil
	})
	return group.Wait()
}

// read passes on the events of one shard in order. After an interruption it continues after the last shown event. It
// creates no consumer, because an observer must not.
func (c Cmd) read(ctx context.Context, js jetstream.JetStream, names schema.Names, from eventlog.FollowFrom, out chan<- eventlog.Arrived) error {
	for {
		var err error
		from, err = eventlog.Scan(ctx, js, names, from, func(m eventlog.Arrived) error {
			select {
			case out <- m:
				return nil
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		})
		if err == nil && c.NoFollow || ctx.Err() != nil || err != nil && !errors.Is(err, eventlog.ErrBroken) {
			return err
		}
		if err := pause.For(ctx, lookEvery); err != nil {
			return err
		}
	}
}

// lookEvery is how often a reader at the end of the log asks for more.
const lookEvery = 250 * time.Millisecond

// judged says whether an event counts; the zero value is an accepted one.
type judged struct {
	refused                         string
	duplicate, unsigned, leftBehind bool
}

// judgedAlone judges an event by its bytes and the fleet's keys, without the fold.
func judgedAlone(r *schema.Record, keys *schema.Keys) judged {
	e, err := schema.Decode(r.Header, r.Body)
	if err != nil {
		return judged{}
	}
	if _, err := schema.ParseData(e); err != nil {
		return judged{refused: output.Words(string(schema.ReasonInvalidData), err.Error())}
	}
	if !keys.Any() {
		return judged{}
	}
	return judged{refused: keys.Refuses(e, r.Stored), unsigned: keys.Concern(r) && !keys.Signed(e, r.Stored)}
}

// judgedByFold judges an event by the fold's verdict.
func judgedByFold(v schema.Verdict, leftBehind bool) judged {
	j := judged{duplicate: v.Kind == schema.Duplicate, leftBehind: leftBehind}
	if v.Kind == schema.Rejected {
		j.refused = output.Words(string(v.Reason), v.Detail)
	}
	return j
}

// doubt is the marker before the event's summary, or in place of it.
func (j *judged) doubt(e *schema.Event) string {
	switch {
	case j.refused != "":
		return "refused: " + j.refused
	case j.unsigned:
		return "not signed: " + story.Gist(e)
	case j.duplicate:
		return "sent again, counts once: " + story.Gist(e)
	case j.leftBehind:
		return "left behind: " + story.Gist(e)
	}
	return ""
}

// show writes one event. Barriers of the daemon and run.erased are not shown as events of a run.
func (c Cmd) show(ctx context.Context, a *base.App, r schema.Record, subject string, j judged) error {
	e, err := schema.Decode(r.Header, r.Body)
	if err != nil {
		if a.JSON {
			return output.Line(a.Stdout, line{Stream: r.Stream, Run: subject, Problem: err.Error()})
		}
		_, err = fmt.Fprintf(a.Stdout, "%-12s  %8d  %s: %s\n", "", r.Stream, output.Printable(subject), output.Printable(err.Error()))
		return err
	}
	if e.Subject == schema.BarrierRun {
		return nil
	}
	if !c.wanted(e) {
		return nil
	}
	if !c.Raw {
		e = a.Opened(ctx, e)
	}
	switch {
	case a.JSON && c.Raw:
		return printStructured(a, e)
	case a.JSON:
		l := lineOf(r.Stream, e)
		l.Refused, l.Unsigned, l.Duplicate, l.LeftBehind = j.refused, j.unsigned, j.duplicate, j.leftBehind
		return output.Line(a.Stdout, l)
	}
	return c.print(a, r.Stream, e, j.doubt(e))
}

// typeName is the name of an event, or the common prefix of several.
var typeName = regexp.MustCompile(`^[a-z_]+(\.[a-z_]+)?$`)

// wanted reports whether an event was requested.
func (c Cmd) wanted(e *schema.Event) bool {
	if len(c.Type) == 0 {
		return true
	}
	name := e.Name()
	entity, _, _ := strings.Cut(name, ".")
	return slices.Contains(c.Type, name) || slices.Contains(c.Type, entity)
}

// colour of an event's line.
func colour(name string) text.Colors {
	switch name {
	case (&schema.ToolFailedData{}).EventName(), (&schema.ErrorRaisedData{}).EventName(), (&schema.LimitReachedData{}).EventName():
		return text.Colors{text.FgRed}
	case (&schema.RunWaitingData{}).EventName(), (&schema.RunOrphanedData{}).EventName(), (&schema.RunResumedData{}).EventName(),
		(&schema.RunCancelRequestedData{}).EventName(), (&schema.RunPausedData{}).EventName(), (&schema.ToolSettledData{}).EventName():
		return text.Colors{text.FgYellow}
	case (&schema.TurnAnsweredData{}).EventName():
		return text.Colors{text.FgCyan}
	case (&schema.ToolReturnedData{}).EventName(), (&schema.RunEndedData{}).EventName():
		return text.Colors{text.FgGreen}
	}
	return nil
}

// lineOf is an event in the form of a JSON line.
func lineOf(stream schema.StreamSequence, e *schema.Event) line {
	l := line{
		Stream: stream, ID: e.ID, Type: e.Type, Source: e.Source, Run: e.Subject, Time: e.Time, Epoch: e.Epoch,
		Sequence: e.Sequence, Turn: e.Turn, DataRef: e.DataRef,
	}
	if e.Embeddable() {
		l.Data = e.Data
	} else {
		l.Bytes = e.Data
	}
	return l
}

// decisionRoom is the width kept for a decision after its sender's name, in columns.
const decisionRoom = 24

// placeText is the event's epoch with its sequence, or with the marker in place of it.
func placeText(e *schema.Event) string {
	switch {
	case e.Sequence != 0:
		return fmt.Sprintf("%d.%d", e.Epoch, uint64(e.Sequence))
	case e.IsControl():
		return fmt.Sprintf("%d.c", e.Epoch)
	case e.Epoch != 0:
		return fmt.Sprintf("%d.-", e.Epoch)
	}
	return "-"
}

// print writes an event as a line of a table. A doubt about it replaces its summary, and is not cut.
func (c Cmd) print(a *base.App, stream schema.StreamSequence, e *schema.Event, doubt string) error {
	name := e.Name()
	if name == "" {
		name = e.Type
	}
	run := ""
	if c.Run_ == "" {
		run = output.InColumn(e.Subject, 20+(output.WidthOf(a.Stdout)-output.PipeWidth)/4) + "  "
	}
	head := fmt.Sprintf("%-12s  %7d  %s%-7s  ", output.Clock(e.Time), stream, run, placeText(e))
	named := fmt.Sprintf("%-16s  ", output.Printable(name))
	width := text.StringWidthWithoutEscSequences(head + named)
	if output.Coloured(a.Stdout, a.Getenv) {
		named = output.Painted(named, colour(name))
	}
	head += named
	if doubt != "" {
		_, err := fmt.Fprintln(a.Stdout, head+output.Printable(doubt))
		return err
	}
	said, room := output.Printable(story.Gist(e)), output.MostOf(a.Stdout)-width
	if by := output.Printable(story.Sender(e)); by != "" {
		// The decider's name is shown whole, even beyond the page width, and the decision keeps some space.
		said, room = output.Words(by, said), max(room, text.StringWidthWithoutEscSequences(by)+decisionRoom)
	}
	_, err := fmt.Fprintln(a.Stdout, head+text.Snip(said, max(room, output.MinColumn), "…"))
	return err
}
