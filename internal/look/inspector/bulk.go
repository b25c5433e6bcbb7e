package inspector

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/waymarkio/waymark/internal/look/failure"
	"github.com/waymarkio/waymark/internal/look/operate"
	"github.com/waymarkio/waymark/internal/look/story"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// maxBulkRuns bounds the runs of one action.
const maxBulkRuns = 200

// bulkBody is the page of an action on runs: what it would do, or what it did.
type bulkBody struct {
	// Do is release, cancel or reopen; empty after an action.
	Do   string
	Rows []bulkRow
	// Ready counts the runs that the action changes, More is set if the list has further runs.
	Ready int
	More  bool
	// Unserved says of which agents no executor is alive.
	Unserved []string
}

// bulkRow is a run, with what an action would do to it, or did.
type bulkRow struct {
	Run, Path, Agent, Status, Class, Text string
	// Thing is the value of the form; empty if the action does not change the run.
	Thing string
	// Force: the command needs --force.
	Force, Bad bool
}

// bulkPage shows what an action would do to the runs of its address, or of a filter. It writes nothing.
func (s *Inspector) bulkPage(ctx context.Context, r *http.Request) (*view, error) {
	do, q := r.PathValue("do"), r.URL.Query()
	if !slices.Contains([]string{"release", "cancel", "reopen"}, do) {
		return nil, failure.New(failure.NotFound, "see the runs: /", "there is no action %.40q", do)
	}
	body, runs := bulkBody{Do: do}, q["run"]
	if len(runs) == 0 {
		f, err := filterOf(q)
		if err != nil {
			return nil, err
		}
		if f.Status+f.Agent+f.Label == "" {
			return nil, failure.New(failure.Usage, "go back and check some, or filter the list first", "no run is chosen")
		}
		f.request.Limit = maxBulkRuns
		list, err := s.runs(ctx, &f)
		if err != nil {
			return nil, err
		}
		body.More = list.Next != ""
		for i := range list.Runs {
			runs = append(runs, list.Runs[i].Run)
		}
	}
	if len(runs) > maxBulkRuns {
		runs, body.More = runs[:maxBulkRuns], true
	}
	body.Rows = make([]bulkRow, len(runs))
	group, reading := errgroup.WithContext(ctx)
	group.SetLimit(headReaders)
	for i, run := range runs {
		group.Go(func() error {
			reply, err := s.headAt(reading, run, "")
			if err != nil {
				p, _ := s.problemOf(reading, err)
				body.Rows[i] = bulkRow{Run: run, Path: runPath(run, ""), Text: p.What, Bad: true}
				return reading.Err()
			}
			body.Rows[i] = s.preview(do, reply)
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	var agents []string
	for i := range body.Rows {
		if row := &body.Rows[i]; row.Thing != "" {
			body.Ready++
			if !slices.Contains(agents, row.Agent) {
				agents = append(agents, row.Agent)
			}
		}
	}
	heard := s.claiming(ctx, slices.Clone(agents)...)
	for _, agent := range agents {
		if text, none := story.ClaimingText(heard, agent); none {
			body.Unserved = append(body.Unserved, text)
		}
	}
	v := s.view(do+" runs", "fleet", "")
	v.Command, v.Body = s.commandFor(do, body.Rows), &body
	return v, nil
}

// commandFor is the command of an action on the rows that it changes. Only those that need it are forced.
func (s *Inspector) commandFor(do string, rows []bulkRow) string {
	var commands []string
	for _, force := range []string{"", " --force"} {
		var runs []string
		for i := range rows {
			if rows[i].Thing != "" && rows[i].Force == (force != "") {
				runs = append(runs, rows[i].Run)
			}
		}
		switch len(runs) {
		case 0:
		case 1:
			commands = append(commands, s.commandOf(do+" "+runs[0]+force))
		default:
			commands = append(commands, "for run in "+strings.Join(runs, " ")+"; do "+s.commandOf(do+" $run"+force)+"; done")
		}
	}
	return strings.Join(commands, "; ")
}

// preview says what an action would do to a run.
func (s *Inspector) preview(do string, reply *schema.GetReply) bulkRow {
	h := &reply.Head
	row := bulkRow{Run: h.Run, Path: runPath(h.Run, ""), Agent: h.Agent, Status: story.HeadStatus(h, reply.Quarantined, reply.Pauses...), Class: stateOf(h.Status)}
	thing := url.Values{"run": {h.Run}, "seen": {fmt.Sprint(h.Epoch)}}
	switch {
	case do == "reopen" && !h.Status.Terminal():
		row.Text = "has not ended"
		return row
	case do == "reopen":
		row.Text = "continues behind its end, with the next executor that claims it"
	case h.Status.Terminal():
		row.Text = "has ended"
		return row
	case do == "cancel" && h.CancelRequested:
		row.Text = "its end is asked for already"
		return row
	case do == "cancel" && (h.Status.Claimable() || h.Unattended != ""):
		row.Text = "the next executor that claims it winds it up"
	case do == "cancel":
		row.Text = "executor " + h.Executor + " is told, and winds it up"
	default:
		if there, _ := operate.Releasable(s.Prompt, h, true); !there {
			row.Text = "can be claimed already: there is nothing to release"
			return row
		}
		row.Text = "may be claimed as if for the first time"
		if operate.MayTake(s.Prompt, h, false) != nil {
			thing.Set("force", "yes")
			row.Force, row.Bad = true, true
			row.Text = row.Text + "; executor " + h.Executor + " may be working on it: it is fenced, and loses what it has not recorded"
		}
		begun := 0
		for i := range h.OpenCalls {
			if h.OpenCalls[i].State == schema.CallBegun {
				begun++
			}
		}
		if begun > 0 {
			row.Text += "; " + plural(begun, "call") + " that had begun are in doubt then"
		}
	}
	row.Thing = thing.Encode()
	return row
}

// each does an action to each chosen thing of a form. Of one it shows the page that the action names, of several the result of each.
func (s *Inspector) each(do func(ctx context.Context, r *http.Request, thing url.Values) (next, said string, err error)) http.HandlerFunc {
	return s.submitted(func(ctx context.Context, r *http.Request) (o outcome) {
		chosen := r.PostForm["thing"]
		if r.PostForm.Get("all") == "yes" {
			chosen = r.PostForm["every"]
		}
		if len(chosen) == 0 || len(chosen) > maxBulkRuns {
			o.err = failure.New(failure.Usage, fmt.Sprintf("go back and choose 1 to %d", maxBulkRuns), "%d are chosen", len(chosen))
			return o
		}
		var body bulkBody
		for _, text := range chosen {
			thing, err := url.ParseQuery(text)
			if err = cmp.Or(err, schema.CheckName("run id", thing.Get("run"))); err != nil {
				o.err = failure.New(failure.Usage, "use the button", "the form cannot be read: %v", err)
				return o
			}
			if o.next, o.said, o.err = do(ctx, r, thing); len(chosen) == 1 {
				return o
			}
			row := bulkRow{Run: thing.Get("run"), Path: runPath(thing.Get("run"), ""), Text: o.said}
			if o.err != nil {
				p, _ := s.problemOf(ctx, o.err)
				row.Text, row.Bad = "NOT DONE: "+p.What, true
			}
			body.Rows = append(body.Rows, row)
		}
		o = outcome{page: s.view("What was done", "fleet", ""), failed: slices.ContainsFunc(body.Rows, func(row bulkRow) bool { return row.Bad })}
		o.page.Body = &body
		return o
	})
}

// act carries out an action that was shown before, in the epoch that the viewer saw.
func (s *Inspector) act(ctx context.Context, r *http.Request, thing url.Values) (next, said string, err error) {
	run, do := thing.Get("run"), r.PathValue("do")
	epoch, err := seenEpoch(r, thing.Get("seen"))
	if err != nil {
		return "", "", err
	}
	if do == "cancel" {
		var reply schema.ControlReply
		request := schema.CancelRequest{By: s.By, Reason: r.PostForm.Get("reason"), ExpectedEpoch: epoch, RequestID: rand.Text()}
		if err := s.Fleet.Ask(ctx, schema.VerbCancel, run, request, &reply); err != nil {
			return "", "", err
		}
		if reply.Already {
			return runPath(run, ""), fmt.Sprintf("The end of %s was asked for already, by %s.", run, reply.By), nil
		}
		return runPath(run, ""), fmt.Sprintf("Asked for the end of %s, as %s. Its executor winds it up.", run, s.By), nil
	}
	said = fmt.Sprintf("Released %s, as %s: the fleet may claim it.", run, s.By)
	err = s.take(ctx, run, thing.Get("force") == "yes", func(h *schema.Head, fleet *publisher.Fleet) error {
		reason := schema.TakeoverRequest
		switch there, err := operate.Releasable(s.Prompt, h, true); {
		case do == "reopen" && !h.Status.Terminal():
			return failure.New(failure.Conflict, "", "run %s has not ended", run)
		case do == "reopen":
			reason, said = schema.TakeoverReopen, fmt.Sprintf("Reopened %s, as %s: the fleet may claim it.", run, s.By)
		case do != "release":
			return failure.New(failure.NotFound, "see the runs: /", "there is no action %.40q", do)
		case err != nil || !there:
			said = run + " can be claimed already."
			return err
		}
		_, err := operate.Release(ctx, fleet, run, epoch, reason)
		return err
	})
	return runPath(run, ""), said, err
}
