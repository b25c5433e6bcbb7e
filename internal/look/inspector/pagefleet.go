package inspector

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"golang.org/x/sync/errgroup"

	"github.com/waymarkio/waymark/internal/base/output"
	"github.com/waymarkio/waymark/internal/look/failure"
	"github.com/waymarkio/waymark/internal/look/inbox"
	"github.com/waymarkio/waymark/internal/look/standstill"
	"github.com/waymarkio/waymark/internal/look/story"
	"github.com/waymarkio/waymark/schema"
)

const (
	// rowsOfRuns bounds a page of the list of runs, and headReaders the concurrent reads of heads.
	rowsOfRuns, headReaders = 50, 8
	// stripMost bounds the entries of the strip above the list.
	stripMost = 3
	// soon is how long a page waits for optional content.
	soon = 150 * time.Millisecond
)

// listed are the statuses that the list of runs can be filtered by.
var listed = []schema.Status{
	schema.StatusRunning, schema.StatusWaiting, schema.StatusInterrupted, schema.StatusOrphaned,
	schema.StatusCompleted, schema.StatusFailed, schema.StatusCancelled,
}

// fleetBody is the page of the fleet.
type fleetBody struct {
	Counts *schema.FleetReply
	Oldest string
	Needs  *inbox.Found
	Strip  []thing
	// NeedsUnknown says why the strip is missing.
	NeedsUnknown      string
	Status            string
	Agent, Label      string
	Statuses          []schema.Status
	Rows              []runRow
	Next              string
	Incomplete, Paged bool
	Filtered          bool
}

// runRow is a line of the list of runs.
type runRow struct {
	schema.RunSummary
	Class, StatusText, Now string
	// Person: it needs a person.
	Person bool
}

func (s *Inspector) fleetPage(ctx context.Context, r *http.Request) (*view, error) {
	q := r.URL.Query()
	body := fleetBody{Status: q.Get("status"), Agent: q.Get("agent"), Label: q.Get("label"), Statuses: listed, Paged: q.Get("after") != ""}
	request := schema.ListRequest{Agent: body.Agent, After: q.Get("after"), Limit: rowsOfRuns}
	words := "runs ls"
	if body.Status != "" {
		if !slices.Contains(listed, schema.Status(body.Status)) {
			return nil, failure.New(failure.Usage, "choose one of the list", "status %q is not known", body.Status)
		}
		request.Status = []schema.Status{schema.Status(body.Status)}
		words += " --status " + body.Status
	}
	if body.Agent != "" {
		if err := schema.CheckName("agent", body.Agent); err != nil {
			return nil, failure.New(failure.Usage, "use the name of an agent", "%v", err)
		}
		words += " --agent " + body.Agent
	}
	if body.Label != "" {
		key, value, ok := strings.Cut(body.Label, "=")
		if !ok || !utf8.ValidString(body.Label) {
			return nil, failure.New(failure.Usage, "write key=value, such as team=blue", "%q is no label", body.Label)
		}
		request.Labels = map[string]string{key: value}
		words += schema.Flag("label", body.Label)
	}
	body.Filtered = words != "runs ls"
	var list schema.ListReply
	if err := s.Fleet.Ask(ctx, schema.VerbList, "", request, &list); err != nil {
		return nil, err
	}
	body.Incomplete = list.Incomplete
	rows, err := s.rowsOf(ctx, list.Runs)
	if err != nil {
		return nil, err
	}
	body.Rows = rows
	if list.Next != "" {
		q.Set("after", list.Next)
		body.Next = "/?" + q.Encode()
	}
	if counts, ok, err := s.needs.fleet.get(2*time.Second, soon, s.readFleet); err == nil && ok {
		body.Counts = counts
		oldest := int64(0)
		for i := range counts.Shards {
			oldest = max(oldest, counts.Shards[i].WaitingMS)
		}
		if oldest > 0 {
			body.Oldest = story.Span(time.Duration(oldest) * time.Millisecond)
		}
	}
	switch needs, ok, err := s.needs.get(s, soon); {
	case err != nil:
		p, _ := s.problemOf(ctx, err)
		body.NeedsUnknown = "What needs a person is not known: " + p.What
	case !ok:
		body.NeedsUnknown = "What needs a person is being read."
	default:
		body.Needs = needs
		body.Strip = s.things(needs, stripMost)
	}
	v := s.view("Fleet "+s.Fleet.Name(), "fleet", words)
	v.Body = &body
	return v, nil
}

func (s *Inspector) readFleet(ctx context.Context) (*schema.FleetReply, error) {
	reply := new(schema.FleetReply)
	return reply, s.Fleet.Ask(ctx, schema.VerbFleet, "", schema.FleetRequest{}, reply)
}

// rowsOf adds the current activity of live runs, which it reads from their heads.
func (s *Inspector) rowsOf(ctx context.Context, runs []schema.RunSummary) ([]runRow, error) {
	rows := make([]runRow, len(runs))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(headReaders)
	for i := range runs {
		r := &runs[i]
		rows[i] = runRow{
			RunSummary: *r, Class: stateOf(r.Status), StatusText: story.SummaryStatus(r),
			Person: r.Waits > 0 || r.Held > 0 || r.Quarantined || r.Gapped,
		}
		if rows[i].Person && rows[i].Class == "live" {
			rows[i].Class = "wait"
		}
		if r.Status.Terminal() {
			if rows[i].Now = r.Limit; r.Limit != "" {
				rows[i].Now = "limit " + r.Limit
			}
			continue
		}
		group.Go(func() error {
			head, err := s.heads.read(ctx, s.Fleet, r)
			if err == nil {
				rows[i].Now = s.nowOf(head, s.Now())
			}
			return nil // a run that cannot be read hides no other one: its page says why
		})
	}
	return rows, group.Wait()
}

// nowOf is the current activity of a run.
func (s *Inspector) nowOf(h *schema.Head, now time.Time) string {
	since := func(at string) string {
		if begun := schema.ParseTime(at); !begun.IsZero() && now.After(begun) {
			return " " + story.Span(now.Sub(begun).Truncate(time.Second))
		}
		return ""
	}
	if len(h.Interrupts) > 0 {
		w, tool := h.Interrupts[0], ""
		if s.NoContent {
			w.Message = ""
		}
		if at := h.FindOpen(w.Turn, w.ToolCallID, w.Occurrence); w.ToolCallID != "" && at >= 0 {
			tool = h.OpenCalls[at].Name
		}
		return strings.TrimPrefix(standstill.WaitText(&w, tool), "waits for ")
	}
	for i := range h.OpenCalls {
		c := &h.OpenCalls[i]
		what := "tool " + c.Name
		switch {
		case c.State.InDoubt():
			return what + ": in doubt"
		case c.State.Requested():
			continue
		}
		if more := len(h.OpenCalls) - 1; more > 0 {
			what += fmt.Sprintf(" and %d more", more)
		}
		return what + since(c.Since)
	}
	switch {
	case standstill.NeverBegun(h):
		return "waits for its first executor"
	case h.TurnOpen && !h.TurnAnswered:
		return "model" + since(h.UpdatedAt)
	case h.Phase != "":
		return "phase " + h.Phase
	}
	return ""
}

// heads are the latest heads of runs. A run without new events is not read again.
type heads struct {
	mu   sync.Mutex
	kept map[string]headRead
}

type headRead struct {
	events  int64
	updated string
	head    *schema.Head
}

// headsKept bounds the cached heads; beyond it all are read again.
const headsKept = 1000

func (k *heads) read(ctx context.Context, fleet Fleet, r *schema.RunSummary) (*schema.Head, error) {
	k.mu.Lock()
	known, ok := k.kept[r.Run]
	k.mu.Unlock()
	if ok && known.events == r.Events && known.updated == r.UpdatedAt {
		return known.head, nil
	}
	var reply schema.GetReply
	if err := fleet.Ask(ctx, schema.VerbGet, r.Run, schema.GetRequest{View: schema.ViewHead}, &reply); err != nil {
		return nil, err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.kept == nil || len(k.kept) >= headsKept {
		k.kept = make(map[string]headRead)
	}
	k.kept[r.Run] = headRead{r.Events, r.UpdatedAt, &reply.Head}
	return &reply.Head, nil
}

// healthBody is the page of health.
type healthBody struct {
	*schema.FleetReply
	Rows []shardRow
}

type shardRow struct {
	schema.ShardState
	Oldest, Log string
	Percent     int64
}

func (s *Inspector) healthPage(ctx context.Context, _ *http.Request) (*view, error) {
	reply, err := s.readFleet(ctx)
	if err != nil {
		return nil, err
	}
	body := healthBody{FleetReply: reply}
	for i := range reply.Shards {
		row := shardRow{ShardState: reply.Shards[i], Log: output.Bytes(reply.Shards[i].LogBytes)}
		if row.Waiting > 0 {
			row.Oldest = story.Span(time.Duration(row.WaitingMS) * time.Millisecond)
		}
		if row.QuotaBytes > 0 {
			row.Percent = 100 * row.LogBytes / row.QuotaBytes
		}
		body.Rows = append(body.Rows, row)
	}
	v := s.view("Health", "health", "fleet")
	v.Body = &body
	return v, nil
}

// runPath is the address of a run's page.
func runPath(run, rest string) string { return "/run/" + url.PathEscape(run) + rest }
