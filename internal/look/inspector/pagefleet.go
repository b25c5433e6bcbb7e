package inspector

import (
	"cmp"
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

// Statuses of the filter besides those of runs: as those of runs ls.
const (
	stuckRuns       schema.Status = "stuck"
	quarantinedRuns schema.Status = "quarantined"
	heldRuns        schema.Status = "held"
)

// listed are the statuses that the list of runs can be filtered by.
var listed = []schema.Status{
	stuckRuns, schema.StatusFailed, schema.StatusRunning, schema.StatusWaiting, schema.StatusInterrupted, schema.StatusOrphaned, schema.StatusPaused, quarantinedRuns, heldRuns,
	schema.StatusCompleted, schema.StatusCancelled,
}

// filter selects runs of the list, as its address does.
type filter struct {
	Status, Agent, Label string
	request              schema.ListRequest
}

// filterOf is the filter of an address.
func filterOf(q url.Values) (filter, error) {
	f := filter{Status: q.Get("status"), Agent: q.Get("agent"), Label: q.Get("label")}
	f.request = schema.ListRequest{Agent: f.Agent, After: q.Get("after"), Limit: rowsOfRuns}
	switch status := schema.Status(f.Status); {
	case f.Status == "" || status == stuckRuns:
	case status == quarantinedRuns:
		f.request.Quarantined = true
	case status == heldRuns:
		f.request.Held = true
	case slices.Contains(listed, status):
		f.request.Status = []schema.Status{status}
	default:
		return f, failure.New(failure.Usage, "choose one of the list", "status %q is not known", f.Status)
	}
	if f.Agent != "" {
		if err := schema.CheckName("agent", f.Agent); err != nil {
			return f, failure.New(failure.Usage, "use the name of an agent", "%v", err)
		}
	}
	if f.Label != "" {
		key, value, ok := strings.Cut(f.Label, "=")
		if !ok || !utf8.ValidString(f.Label) {
			return f, failure.New(failure.Usage, "write key=value, such as team=blue", "%q is no label", f.Label)
		}
		f.request.Labels = map[string]string{key: value}
	}
	return f, nil
}

// Stuck reports whether only stuck runs are listed.
func (f *filter) Stuck() bool { return f.Status == string(stuckRuns) }

// words are those of the same command.
func (f *filter) words() string {
	words := "runs ls"
	if f.Stuck() {
		words += " --stuck"
	} else if f.Status != "" {
		words += " --status " + f.Status
	}
	if f.Agent != "" {
		words += " --agent " + f.Agent
	}
	if f.Label != "" {
		words += schema.Flag("label", f.Label)
	}
	return words
}

// runs reads a page of the runs of a filter, and the after of the next one.
func (s *Inspector) runs(ctx context.Context, f *filter) (list schema.ListReply, err error) {
	if !f.Stuck() {
		return list, s.Fleet.Ask(ctx, schema.VerbList, "", f.request, &list)
	}
	k, ok, err := s.needs.get(s, readSoon)
	switch {
	case err != nil:
		return list, err
	case !ok:
		return list, failure.New(failure.Unavailable, "reload the page; if it happens again, run: "+s.Prompt.Command("doctor"), "no daemon listed the runs within %s", readSoon)
	}
	list.Incomplete = k.Incomplete
	for i := range k.stuck {
		r := &k.stuck[i]
		key, value, _ := strings.Cut(f.Label, "=")
		if has, ok := r.Labels[key]; (f.Agent == "" || r.Agent == f.Agent) && (f.Label == "" || ok && has == value) {
			list.Runs = append(list.Runs, *r)
		}
	}
	at := min(number(f.request.After), len(list.Runs))
	if list.Runs = list.Runs[at:]; len(list.Runs) > f.request.Limit {
		list.Runs, list.Next = list.Runs[:f.request.Limit], fmt.Sprint(at+f.request.Limit)
	}
	return list, nil
}

// fleetBody is the page of the fleet.
type fleetBody struct {
	filter
	// Stock is nil until it is known; Unknown says why.
	Stock   *stock
	Unknown string
	// Oldest is how far the checkpoints are behind; Unwatched counts the shards that no daemon folds, or none can read.
	Oldest            string
	Unwatched         int
	Strip             []thing
	Statuses          []schema.Status
	Rows              []runRow
	Next              string
	Incomplete, Paged bool
	Filtered          bool
	// Pauses of the fleet, and the scope of the filter, by its agent and label, for another one.
	Pauses []pausing
	Pause  pausing
}

// runRow is a line of the list of runs.
type runRow struct {
	schema.RunSummary
	Class, StatusText, Now, Since string
	// Person: it needs a person.
	Person bool
}

func (s *Inspector) fleetPage(ctx context.Context, r *http.Request) (*view, error) {
	q := r.URL.Query()
	f, err := filterOf(q)
	if err != nil {
		return nil, err
	}
	words := f.words()
	body := fleetBody{filter: f, Statuses: listed, Paged: q.Get("after") != "", Filtered: words != "runs ls"}
	body.Pause.Agent, body.Pause.Labels = f.request.Agent, f.request.Labels
	list, err := s.runs(ctx, &f)
	if err != nil {
		return nil, err
	}
	body.Incomplete = list.Incomplete
	if body.Rows, err = s.rowsOf(ctx, list.Runs); err != nil {
		return nil, err
	}
	if list.Next != "" {
		q.Set("after", list.Next)
		body.Next = "/?" + q.Encode()
	}
	if reply, ok, err := s.needs.fleet.get(2*time.Second, soon, s.readFleet); err == nil && ok {
		for i := range reply.Pauses {
			body.Pauses = append(body.Pauses, pausing{reply.Pauses[i]})
		}
		oldest := int64(0)
		for i := range reply.Shards {
			oldest = max(oldest, reply.Shards[i].WaitingMS)
			if reply.Shards[i].Worker == "" { // so it is, too, if its state could not be read
				body.Unwatched++
			}
		}
		if oldest > 0 {
			body.Oldest = story.Span(time.Duration(oldest) * time.Millisecond)
		}
	}
	switch k, ok, err := s.needs.get(s, soon); {
	case err != nil:
		p, _ := s.problemOf(ctx, err)
		body.Unknown = "What is stuck and what needs a person is not known: " + p.What
	case !ok:
		body.Unknown = "What is stuck and what needs a person is being read."
	default:
		body.Stock = k
		if !body.Filtered && !body.Paged {
			body.Strip = s.things(&k.Found, stripMost)
		}
	}
	v := s.view("Fleet "+s.Fleet.Name(), "fleet", words)
	v.Body = &body
	return v, nil
}

// stock is what stands still in the fleet. Its reasons are those that only a person can end.
type stock struct {
	inbox.Found
	// Live counts the runs that have not ended; stuck are those that stand still, the longest first.
	Live  int
	stuck []schema.RunSummary
	// Agents of these runs, and of those that failed lately; the one with the most stuck runs first. More are left out.
	Agents []*agentRow
	More   int
	// Failed lately; FailedMore: and further ones, which are not counted.
	Failed     int
	FailedMore bool
}

// Stuck counts the stuck runs.
func (k *stock) Stuck() int { return len(k.stuck) }

// Unserved are the agents whose runs wait for an executor although none is alive: all, or the named one.
func (k *stock) Unserved(agent string) (list []*agentRow) {
	for _, a := range k.Agents {
		if a.Unserved && (agent == "" || a.Agent == agent) {
			list = append(list, a)
		}
	}
	return list
}

// agentRow is an agent with its numbers of runs.
type agentRow struct {
	Agent               string
	Live, Stuck, Failed int
	// Counts are the numbers of its runs by status.
	Counts []statusCount
	// Claiming says whether an executor of it is alive, and Unserved that none is although a run waits for one.
	Claiming string
	Unserved bool
	counts   map[schema.Status]int
}

type statusCount struct {
	Status schema.Status
	Class  string
	N      int
}

// failedWithin is how long a failed run counts on the first page.
const failedWithin = 24 * time.Hour

// agentsMost bounds the listed agents.
const agentsMost = 100

// takeStock lists the runs that have not ended. It reads the heads of those whose reasons the list does not tell.
func (s *Inspector) takeStock(ctx context.Context) (*stock, error) {
	ctx, cancel := s.open(ctx)
	defer cancel()
	k := new(stock)
	agents := make(map[string]*agentRow)
	of := func(agent string) *agentRow {
		if agents[agent] == nil {
			agents[agent] = &agentRow{Agent: agent, counts: make(map[schema.Status]int)}
			k.Agents = append(k.Agents, agents[agent])
		}
		return agents[agent]
	}
	var suspects []schema.RunSummary
	found, err := inbox.Gather(ctx, s.Fleet, schema.ListRequest{}, func(r *schema.RunSummary) bool {
		if !r.Status.Terminal() {
			k.Live++
			of(r.Agent).Live++
			of(r.Agent).counts[r.Status]++
			if r.Quarantined {
				of(r.Agent).counts[quarantinedRuns]++
			}
		}
		if inbox.Suspicious(r) {
			suspects = append(suspects, *r)
		}
		return inbox.MayNeedPerson(r) || inbox.Suspicious(r) && r.Handoffs > 0
	})
	if err != nil {
		return nil, err
	}
	k.Found = found
	since := make(map[string]string)
	for i := range k.Reasons {
		r := &k.Reasons[i]
		since[r.Run] = cmp.Or(since[r.Run], r.Since)
	}
	for _, u := range k.Unread {
		since[u.Run] = "unknown"
	}
	for i := range suspects {
		if r := &suspects[i]; since[r.Run] != "" || r.Status.Claimable() || r.Overdue > 0 {
			since[r.Run] = cmp.Or(since[r.Run], r.UpdatedAt)
			of(r.Agent).Stuck++
			k.stuck = append(k.stuck, *r)
		}
	}
	slices.SortStableFunc(k.stuck, func(a, b schema.RunSummary) int {
		return cmp.Or(schema.ParseTime(since[a.Run]).Compare(schema.ParseTime(since[b.Run])), cmp.Compare(a.Run, b.Run))
	})
	k.Reasons = slices.DeleteFunc(k.Reasons, func(r standstill.Reason) bool { return !r.NeedsPerson() })
	var failed schema.ListReply
	request := schema.ListRequest{Status: []schema.Status{schema.StatusFailed}, Since: schema.FormatTime(s.Now().Add(-failedWithin)), Limit: schema.MaxList}
	if err := s.Fleet.Ask(ctx, schema.VerbList, "", request, &failed); err != nil {
		return nil, err
	}
	k.Failed, k.FailedMore = len(failed.Runs), failed.Next != ""
	for i := range failed.Runs {
		of(failed.Runs[i].Agent).Failed++
	}
	slices.SortFunc(k.Agents, func(a, b *agentRow) int {
		return cmp.Or(cmp.Compare(b.Stuck, a.Stuck), cmp.Compare(b.Failed, a.Failed), cmp.Compare(a.Agent, b.Agent))
	})
	k.More = max(len(k.Agents)-agentsMost, 0)
	k.Agents = k.Agents[:len(k.Agents)-k.More]
	names := make([]string, len(k.Agents))
	for i, a := range k.Agents {
		names[i] = a.Agent
	}
	heard := s.claiming(ctx, names...)
	for _, a := range k.Agents {
		for _, status := range listed {
			if n := a.counts[status]; n > 0 {
				a.Counts = append(a.Counts, statusCount{status, stateOf(status), n})
			}
		}
		none := false
		a.Claiming, none = story.ClaimingText(heard, a.Agent)
		a.Unserved = none && a.counts[schema.StatusOrphaned]+a.counts[schema.StatusInterrupted] > a.counts[quarantinedRuns]
	}
	return k, nil
}

// claiming asks which executors claim runs of agents. A daemon that hears none says nothing of them.
func (s *Inspector) claiming(ctx context.Context, agents ...string) *schema.ExecutorsReply {
	reply := new(schema.ExecutorsReply)
	agents = slices.DeleteFunc(agents, func(agent string) bool { return agent == "" })
	if err := s.Fleet.Ask(ctx, schema.VerbExecutors, "", schema.ExecutorsRequest{Agents: agents}, reply); err != nil {
		return new(schema.ExecutorsReply) // not known
	}
	return reply
}

func (s *Inspector) readFleet(ctx context.Context) (*schema.FleetReply, error) {
	reply := new(schema.FleetReply)
	return reply, s.Fleet.Ask(ctx, schema.VerbFleet, "", schema.FleetRequest{}, reply)
}

// rowsOf adds the current activity of runs that have not ended, and the errors of failed ones, from their heads.
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
		if r.Limit != "" {
			rows[i].Now = "limit " + r.Limit
		}
		if r.Status.Terminal() && r.Status != schema.StatusFailed && r.Held+r.Handoffs == 0 {
			continue
		}
		group.Go(func() error {
			reply, err := s.heads.read(ctx, s.Fleet, r)
			if err == nil {
				now, since := s.nowOf(reply)
				rows[i].Now, rows[i].Since = output.Words(rows[i].Now, now), since
			}
			return nil // a run that cannot be read hides no other one: its page says why
		})
	}
	return rows, group.Wait()
}

// nowOf is why a run stands still, else its error or current activity, and since when.
func (s *Inspector) nowOf(reply *schema.GetReply) (now, since string) {
	h := &reply.Head
	if reasons := standstill.Of(h, reply.Quarantined, len(reply.Pauses) > 0, reply.Overdue, reply.Full...); len(reasons) > 0 {
		now, since = s.whyOf(&reasons[0]), reasons[0].Since
		if more := len(reasons) - 1; more > 0 {
			now += fmt.Sprintf(", and %s more", output.Plural(more, "reason"))
		}
		return now, since
	}
	if h.Status == schema.StatusFailed {
		return s.errorOf(h), ""
	}
	for i := range h.OpenCalls {
		c := &h.OpenCalls[i]
		what := "tool " + c.Name
		switch {
		case c.State.InDoubt():
			return what + ": in doubt", ""
		case c.State.Requested():
			continue
		}
		if more := len(h.OpenCalls) - 1; more > 0 {
			what += fmt.Sprintf(" and %d more", more)
		}
		return what, c.Since
	}
	switch {
	case h.Status.Terminal():
	case h.TurnOpen && !h.TurnAnswered:
		return "model", h.UpdatedAt
	case h.Phase != "":
		return "phase " + h.Phase, ""
	}
	return "", ""
}

// errorOf is the last error of a failed run; only its type if pages show no content.
func (s *Inspector) errorOf(h *schema.Head) string {
	switch e := h.LastError; {
	case h.Status != schema.StatusFailed:
		return ""
	case e == nil:
		return "no error was recorded"
	case s.NoContent || e.Message == "":
		return e.Type
	default:
		return e.Type + ": " + e.Message
	}
}

// heads are the latest heads of runs. A run without new events is not read again.
type heads struct {
	mu   sync.Mutex
	kept map[string]headRead
}

type headRead struct {
	of    schema.RunSummary
	reply *schema.GetReply
}

// headsKept bounds the cached heads; beyond it all are read again.
const headsKept = 1000

func (k *heads) read(ctx context.Context, fleet Fleet, r *schema.RunSummary) (*schema.GetReply, error) {
	k.mu.Lock()
	known, ok := k.kept[r.Run]
	k.mu.Unlock()
	if o := &known.of; ok && o.Events == r.Events && o.UpdatedAt == r.UpdatedAt && o.Overdue == r.Overdue && o.Quarantined == r.Quarantined {
		return known.reply, nil
	}
	reply := new(schema.GetReply)
	if err := fleet.Ask(ctx, schema.VerbGet, r.Run, schema.GetRequest{View: schema.ViewHead}, reply); err != nil {
		return nil, err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.kept == nil || len(k.kept) >= headsKept {
		k.kept = make(map[string]headRead)
	}
	k.kept[r.Run] = headRead{*r, reply}
	return reply, nil
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
