//go:build unix

package day_test

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/waymarkio/waymark/schema"
)

// view is what a person sees in a minute: each line with its largest number.
type view map[string]int

// note adds a line, with the largest number that was seen.
func (v view) note(n int, format string, args ...any) {
	if text := fmt.Sprintf(format, args...); n > 0 {
		v[text] = max(v[text], n)
	}
}

// has reports whether a line begins with a text.
func (v view) has(text string) bool {
	for line := range v {
		if strings.HasPrefix(line, text) {
			return true
		}
	}
	return false
}

// lines are those of a kind, such as "stuck: ", the largest number first.
func (v view) lines(kind string) (list []string) {
	keys := slices.SortedFunc(maps.Keys(v), func(a, b string) int {
		if v[a] != v[b] {
			return v[b] - v[a]
		}
		return strings.Compare(a, b)
	})
	for _, line := range keys {
		if text, ok := strings.CutPrefix(line, kind); ok {
			list = append(list, fmt.Sprintf("%s ×%d", text, v[line]))
		}
	}
	return list
}

// What a text about one run has of its own.
var (
	clock  = regexp.MustCompile(` until (\d{4}-\d\d-\d\d )?\d\d:\d\d UTC`)
	number = regexp.MustCompile(`\b(writer|clerk|buyer|digger|child)-[a-z0-9-]+|\b\d+(\.\d+)?(s|ms|m)\b|\b\d+ (run|stream|message)s?\b|\bwaymark-[A-Z0-9]+|\bturn \d+, call [a-z0-9-]+`)
)

// reason is an entry of runs ls --stuck and of the inbox, as JSON.
type reason struct {
	Run        string `json:"run"`
	Kind       string `json:"kind"`
	Why        string `json:"why"`
	Turn       int32  `json:"turn"`
	ToolCallID string `json:"tool_call_id"`
	Occurrence int    `json:"occurrence"`
}

// line is a reason without what is of one run.
func (r *reason) line() string {
	why := number.ReplaceAllString(clock.ReplaceAllString(r.Why, ""), "…")
	why, _, _ = strings.Cut(why, ": it is in doubt")
	return fmt.Sprintf("%s: %s", r.Kind, why)
}

// person is the operator: it looks, and settles.
type person struct {
	fleet *fleet
	// scraped are the last metrics of each daemon; counted adds up counters over their lives.
	scraped map[string]map[string]float64
	counted map[string]float64
	seen    int // posts to the webhook
	looks   int
	// held are the alerts that held at the last look.
	held    map[string]bool
	settled int
}

func newPerson(f *fleet) *person {
	return &person{fleet: f, scraped: map[string]map[string]float64{}, counted: map[string]float64{}, held: map[string]bool{}}
}

// look looks at everything, and adds it to the view. A command that fails is something that a person sees, too.
func (p *person) look(ctx context.Context, v view) {
	p.looks++
	p.metrics(ctx, v)
	var stuck struct {
		Reasons []reason `json:"stuck"`
	}
	p.ask(ctx, v, &stuck, "stuck", "runs", "ls", "--stuck", "--all", "--json")
	p.count(v, "stuck: ", stuck.Reasons)
	var inbox struct {
		Inbox []reason `json:"inbox"`
	}
	p.ask(ctx, v, &inbox, "inbox", "inbox", "--limit", "1000", "--json")
	p.count(v, "inbox: ", inbox.Inbox)
	var doctor struct {
		Checks []struct{ Check, Result, Detail string } `json:"checks"`
	}
	p.ask(ctx, v, &doctor, "doctor", "doctor", "--json")
	for _, c := range doctor.Checks {
		if (c.Result == "failed" || c.Result == "warning") && c.Check != "keys" { // this fleet has none
			v.note(1, "doctor: %s: %s", c.Check, number.ReplaceAllString(c.Detail, "…"))
		}
	}
	var pauses []struct{ Reason string }
	p.ask(ctx, v, &pauses, "pauses", "pause", "ls", "--json")
	for _, o := range pauses {
		v.note(1, "pause: %s", o.Reason)
	}
	p.fleet.out.change(func() {
		kinds := map[string]int{}
		for _, o := range p.fleet.out.posts[p.seen:] {
			kinds[o.kind]++
		}
		p.seen = len(p.fleet.out.posts)
		for kind, n := range kinds {
			v["webhook: "+kind] += n
		}
	})
	held := slices.DeleteFunc(inbox.Inbox, func(r reason) bool { return r.Kind != "held" })
	if len(held) > 0 {
		var plan struct{ Versions []struct{ Changes []string } }
		p.ask(ctx, v, &plan, "plan", "plan", held[0].Run, "--json")
		for _, version := range plan.Versions {
			for _, change := range version.Changes {
				v.note(1, "plan: %s", change)
			}
		}
	}
	p.settle(ctx, held)
}

// ask runs a command and reads its output.
func (p *person) ask(ctx context.Context, v view, into any, what string, args ...string) {
	out, err := p.fleet.waymark(ctx, args...)
	if json.Unmarshal(out, into, json.MatchCaseInsensitiveNames(true)) != nil {
		v.note(1, "no answer: %s", what)
		if err != nil {
			p.fleet.tb.Log(err)
		}
	}
}

func (p *person) count(v view, prefix string, list []reason) {
	counts := map[string]int{}
	for i := range list {
		counts[list[i].line()]++
	}
	for line, n := range counts {
		v.note(n, "%s%s", prefix, line)
	}
}

// settle settles the calls in doubt that the webhook has told, by what the outside says.
func (p *person) settle(ctx context.Context, list []reason) {
	f, told := p.fleet, map[string]bool{}
	f.out.change(func() {
		for i := range f.out.posts {
			told[f.out.posts[i].kind+" "+f.out.posts[i].run] = true
		}
	})
	for i := range list {
		r := &list[i]
		if !told["held "+r.Run] {
			continue
		}
		head, err := f.sdk.Head(ctx, r.Run)
		key := schema.CallKey{Turn: r.Turn, ToolCallID: r.ToolCallID, Occurrence: r.Occurrence}
		at := head.FindOpen(key.Turn, key.ToolCallID, key.Occurrence)
		if err != nil || at < 0 || head.OpenCalls[at].State != schema.CallHeld {
			continue // looked at again
		}
		epoch := head.OpenCalls[at].Epoch
		request := schema.SettleRequest{CallKey: key, CallEpoch: epoch, How: schema.SettledRerun, By: "person"}
		if f.out.settle(r.Run, r.ToolCallID, epoch+1) {
			request.How = schema.SettledDecided
			request.Result, _ = json.Marshal(payDone) // a text
		}
		if _, err := f.sdk.Settle(ctx, r.Run, request); err == nil {
			p.settled++
		} else {
			f.tb.Logf("settlement of call %s of run %s: %v", r.ToolCallID, r.Run, err)
		}
	}
}

// metrics scrapes the daemons, and evaluates the alerts of deploy/prometheus/alerts.yaml that this day is about. Prometheus
// waits for minutes before it fires one; here it must hold at two looks.
func (p *person) metrics(ctx context.Context, v view) {
	largest := map[string]float64{}
	for _, d := range p.fleet.daemons {
		now, err := scrape(ctx, d.field("http"))
		if err != nil {
			v.note(1, "alert: WaymarkDown")
			continue
		}
		for series, n := range now {
			name, _, _ := strings.Cut(series, "{")
			largest[name] = max(largest[name], n)
			if strings.HasSuffix(name, "_total") {
				before := p.scraped[d.life()][series]
				if name == "waymark_agent_runs_ended_total" && strings.Contains(series, `"failed"`) {
					p.counted["failed"] += n - before
				}
				p.counted[name] += n - before
			}
			if name == "waymark_runs_claimable" {
				v.note(int(n), "claimable: %s", agentOf(series))
			}
			if name == "waymark_nats_connected" && n == 0 {
				v.note(1, "alert: WaymarkDisconnected")
			}
		}
		p.scraped[d.life()] = now
	}
	for _, name := range []string{"live", "paused", "quarantined", "retrying", "overdue"} {
		v.note(int(largest["waymark_runs_"+name]), "metric: waymark_runs_%s", name)
	}
	for alert, fires := range map[string]bool{
		"WaymarkRunsRetrying":    largest["waymark_runs_retrying"] > 10,
		"WaymarkRunsQuarantined": largest["waymark_runs_quarantined"] > 0,
		"WaymarkRunsUnclaimed":   largest["waymark_runs_claimable"] > 0,
		"WaymarkServerAway":      largest["waymark_fleet_replicas_away"] > 0,
		"WaymarkRunsOverdue":     largest["waymark_runs_overdue"] > 0,
		"WaymarkExecutorsLost":   p.counted["waymark_agent_runs_orphaned_total"] > 3,
		"WaymarkRunsFail":        p.counted["waymark_agent_runs_ended_total"] >= 5 && p.counted["failed"]/p.counted["waymark_agent_runs_ended_total"] > 0.2,
	} {
		if fires && p.held[alert] {
			v.note(1, "alert: %s", alert)
		}
		p.held[alert] = fires
	}
}

func agentOf(series string) string {
	_, agent, _ := strings.Cut(series, `agent="`)
	agent, _, _ = strings.Cut(agent, `"`)
	return agent
}

// scrape reads metrics in Prometheus' text form.
func scrape(ctx context.Context, address string) (map[string]float64, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	if !strings.Contains(address, "://") {
		address = "http://" + address
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address+"/metrics", nil)
	if err != nil {
		return nil, err
	}
	request.Close = true
	got, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer func() { _ = got.Body.Close() }()
	text, err := io.ReadAll(got.Body)
	if err != nil {
		return nil, err
	}
	series := map[string]float64{}
	for line := range strings.Lines(string(text)) {
		at := strings.LastIndexByte(strings.TrimSpace(line), ' ')
		if at < 0 || line[0] == '#' {
			continue
		}
		if n, err := strconv.ParseFloat(strings.TrimSpace(line[at:]), 64); err == nil {
			series[line[:at]] = n
		}
	}
	return series, nil
}
