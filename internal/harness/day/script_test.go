//go:build unix

package day_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// minute is one of the script's.
type minute struct {
	// what is done to the fleet.
	what string
	do   func(ctx context.Context, d *day)
	// kills, one after the other, behind do.
	kills []string
	// sees are beginnings of lines that a person must see before the minute is over.
	sees []string
	// after ends what lasts for the minute.
	after func(ctx context.Context, d *day)
}

// row is what came of a minute.
type row struct {
	*minute
	begun time.Time
	saw   view
	kills []string
}

// halt is a pause from the answer to it until its end.
type halt struct {
	name string
	has  func(o *order) bool
	// Between answered and ended nothing of its runs may begin.
	answered, ended time.Time
}

// order is a run that was submitted.
type order struct {
	id, agent, tenant string
	at                time.Time
}

// The tenants. The first one has six of ten runs, all at the begin of the day.
var tenants = []string{"acme", "bern", "cern", "dune", "east"}

// ownFailure ends the ids of runs that the provider refuses for good.
const ownFailure = "-bad"

// lead ends the ids of runs that delegate: to the digger, whose executor always dies, and to a clerk.
const lead = "-lead"

// day is one of a fleet.
type day struct {
	*fleet
	person *person
	rows   []row
	pauses []*halt
	gated  int
	// missed is what a person should have seen.
	missed []string

	mu     sync.Mutex
	orders []*order
}

// orders returns the runs of the day in the order in which they are submitted.
func ordersOf(s scale) (list []*order) {
	names := []string{"writer", "clerk", "buyer"}
	for i := range s.runs {
		o := &order{agent: names[i%3], tenant: tenants[0]}
		if i >= s.runs*6/10 {
			o.tenant = tenants[1+i%4]
		}
		o.id = fmt.Sprintf("%s-%s-%d", o.agent, o.tenant, i)
		switch {
		case i%(s.runs/s.leads) == s.runs/s.leads/2:
			o.agent = "writer"
			o.id = fmt.Sprintf("%s-%s-%d%s", o.agent, o.tenant, i, lead)
		case i%50 == 7:
			o.id += ownFailure
		}
		list = append(list, o)
	}
	return list
}

// submit submits the runs: those of the first tenant at once, the others over the time until the last minutes.
func (d *day) submit(ctx context.Context) {
	all := ordersOf(d.scale)
	steady := len(all) - len(all)*6/10
	pace := time.Duration(len(d.script())-2) * d.scale.minute / time.Duration(steady)
	for _, o := range all {
		if o.tenant != tenants[0] && !wait(ctx, pace) {
			return
		}
		o.at = time.Now()
		for {
			_, err := d.sdk.Submit(ctx, publisher.RunSpec{
				ID: o.id, Agent: o.agent, Task: "Settle the bill " + o.id + ".", Labels: map[string]string{schema.TenantLabel: o.tenant},
			})
			if err == nil {
				break
			}
			if !errors.Is(err, publisher.ErrUnavailable) && !errors.Is(err, publisher.ErrNoService) && ctx.Err() == nil {
				d.tb.Errorf("submitting %s: %v", o.id, err)
			}
			if !wait(ctx, 200*time.Millisecond) {
				return
			}
		}
		d.mu.Lock()
		d.orders = append(d.orders, o)
		d.mu.Unlock()
	}
}

// slowDown is 429 with Retry-After, by turns within what an executor waits for in its process and beyond.
func slowDown(short, long time.Duration) refusal {
	return func(n int, now time.Time) (int, http.Header, string, time.Time) {
		after := []time.Duration{short, long}[n%2]
		header := http.Header{"Retry-After": {strconv.Itoa(int(after.Seconds()))}}
		return http.StatusTooManyRequests, header, `{"error":{"message":"slow down"}}`, now.Add(after)
	}
}

// broken is 500, which names no time.
func broken(int, time.Time) (int, http.Header, string, time.Time) {
	return http.StatusInternalServerError, nil, `{"error":{"message":"something went wrong"}}`, time.Time{}
}

// usedUp is a usage limit that resets at a time.
func usedUp(reset time.Time) refusal {
	reset = reset.Truncate(time.Second)
	return func(_ int, now time.Time) (int, http.Header, string, time.Time) {
		if !now.Before(reset) {
			return 0, nil, "", time.Time{}
		}
		return http.StatusTooManyRequests, nil, fmt.Sprintf(`{"error":{"message":"the usage limit is reached","resets_at":%d}}`, reset.Unix()), reset
	}
}

// refuse makes the providers of these agents refuse; nil lets them answer again.
func (d *day) refuse(how refusal, names ...string) {
	d.out.change(func() {
		for _, name := range names {
			d.out.refuse[name] = how
		}
	})
}

// begin pauses a scope, the same again until the answer proves it, and end lets it go on.
func (d *day) begin(ctx context.Context, name, reason string, has func(o *order) bool, scope ...string) {
	d.until(ctx, "the pause is not proven", func() error {
		var reply schema.PauseReply
		if err := json.Unmarshal(d.must(ctx, append([]string{"pause", "--json", "--reason", reason}, scope...)...), &reply); err != nil {
			return err
		}
		if doubt := reply.Doubt(); doubt != "" {
			return errors.New(doubt)
		}
		return nil
	})
	d.pauses = append(d.pauses, &halt{name: name, has: has, answered: time.Now()})
}

func (d *day) end(ctx context.Context, scope ...string) {
	d.pauses[len(d.pauses)-1].ended = time.Now()
	d.must(ctx, append([]string{"unpause"}, scope...)...)
}

// deployed deploys while some payments are under way, without a result.
func deployed(ctx context.Context, d *day) {
	d.out.change(func() { d.out.gate, d.out.held = make(chan struct{}), 0 })
	d.until(ctx, "no payment is under way", func() (err error) {
		d.out.change(func() {
			if d.gated = d.out.held; d.gated < 3 {
				err = fmt.Errorf("%d payments are under way", d.gated)
			}
		})
		return err
	})
	d.deploy(ctx)
	d.out.change(func() {
		close(d.out.gate)
		d.out.gate = nil
	})
}

const (
	waitsFor429   = "stuck: waiting: waits for the provider: 429 Too Many Requests: slow down"
	waitsFor500   = "stuck: waiting: waits for the provider: 500 Internal Server Error"
	waitsForLimit = "stuck: waiting: waits for the provider: 429 Too Many Requests: the usage limit is reached"
)

// all are the agents whose providers answer.
var all = []string{"writer", "clerk", "buyer"}

// script is what happens in the day.
func (d *day) script() []minute {
	whole := func(kinds string) []string { // kills of the whole day only
		if d.scale.whole {
			return strings.Fields(kinds)
		}
		return nil
	}
	long := 40 * time.Second
	if !d.scale.whole {
		long = 6 * time.Second
	}
	list := []minute{
		{
			what: "work begins; acme submits six of ten runs at once", kills: whole("executor"), sees: []string{"claimable: "},
		},
		{
			what: "half an hour of 429 with Retry-After", kills: whole("executor daemon"), sees: []string{waitsFor429, "metric: waymark_runs_retrying"},
			do: func(_ context.Context, d *day) { d.refuse(slowDown(2*time.Second, long), all...) },
		},
		{
			what: "it goes on", kills: whole("server executor"), sees: []string{waitsFor429, "alert: WaymarkRunsRetrying"},
		},
		{
			what: "ten minutes of 500", kills: whole("executor daemon"), sees: []string{waitsFor500},
			do:    func(_ context.Context, d *day) { d.refuse(broken, all...) },
			after: func(_ context.Context, d *day) { d.refuse(nil, all...) },
		},
		{
			what: "the buyer's provider has a usage limit, which resets in the next minute", kills: whole("server executor"), sees: []string{waitsForLimit},
			do: func(_ context.Context, d *day) {
				d.refuse(usedUp(time.Now().Add(d.scale.minute*3/2+5*time.Second)), "buyer")
			},
		},
		{
			what: "deploy: search is gone, pay needs a currency; payments are under way", kills: whole("daemon"), do: deployed,
			sees: []string{"stuck: held", "inbox: held", "webhook: held", "plan: tool search is gone"},
		},
		{
			what: "acme is paused", kills: whole("executor daemon"), sees: []string{"pause: asked by acme", "metric: waymark_runs_paused"},
			do: func(ctx context.Context, d *day) {
				d.begin(ctx, "acme", "asked by acme", func(o *order) bool { return o.tenant == "acme" }, "--tenant", "acme")
			},
			after: func(ctx context.Context, d *day) { d.end(ctx, "--tenant", "acme") },
		},
		{
			what: "all is paused", kills: whole("server daemon"), sees: []string{"pause: the provider bills twice", "metric: waymark_runs_paused"},
			do: func(ctx context.Context, d *day) {
				d.begin(ctx, "all", "the provider bills twice", func(*order) bool { return true }, "--all")
			},
			after: func(ctx context.Context, d *day) { d.end(ctx, "--all") },
		},
		{
			what: "kills", kills: append([]string{"executor", "daemon", "server"}, whole("executor executor daemon")...), sees: []string{"alert: WaymarkExecutorsLost"},
		},
		{
			what: "the end of the day", sees: []string{"stuck: quarantined", "inbox: quarantined", "alert: WaymarkRunsQuarantined"},
		},
	}
	if !d.scale.whole {
		list[1].sees = append(list[1].sees[:1], list[1].sees[2:]...)
		list = append(list[:2], list[3:]...)
		list[1].after = func(_ context.Context, d *day) { d.refuse(nil, all...) }
	}
	return list
}

// signs are what a person sees while a process of a kind is away.
func (d *day) signs() map[string]string {
	signs := map[string]string{"daemon": "alert: WaymarkDown", "server": "no answer: doctor"}
	if len(d.servers) > 1 {
		signs["server"] = "alert: WaymarkServerAway"
	}
	return signs
}

// seen looks until the minute has lasted so long and a person has seen all lines with these beginnings.
func (d *day) seen(ctx context.Context, r *row, least time.Duration, beginnings ...string) {
	for end := time.Now().Add(patience); ; wait(ctx, min(time.Second, d.scale.minute/15)) {
		d.person.look(ctx, r.saw)
		missing := slices.DeleteFunc(slices.Clone(beginnings), r.saw.has)
		switch {
		case len(missing) == 0 && time.Since(r.begun) >= least:
			return
		case time.Now().After(end) || ctx.Err() != nil:
			d.missed = append(d.missed, fmt.Sprintf("in the minute of %q a person did not see %q, but %v", r.what, missing, r.saw))
			return
		}
	}
}

// live goes through the minutes, and waits until no run goes on any more.
func (d *day) live(ctx context.Context) {
	var submits sync.WaitGroup
	submits.Go(func() { d.submit(ctx) })
	for i, m := range d.script() {
		r := row{minute: &m, begun: time.Now(), saw: view{}}
		d.tb.Logf("%s minute %d: %s", r.begun.Format(time.TimeOnly), i+1, m.what)
		if m.do != nil {
			m.do(ctx, d)
		}
		for _, kind := range m.kills {
			d.kill(ctx, i+1, kind, func() { d.seen(ctx, &r, 0, d.signs()[kind]) })
			r.kills = append(r.kills, d.fleet.kills[len(d.fleet.kills)-1].name)
			d.person.look(ctx, r.saw)
		}
		d.seen(ctx, &r, d.scale.minute, m.sees...)
		if m.after != nil {
			m.after(ctx, d)
		}
		d.rows = append(d.rows, r)
	}
	submits.Wait()
	d.drain(ctx)
}

// drain waits until each run has ended or is quarantined.
func (d *day) drain(ctx context.Context) {
	m := &minute{what: "the runs that are left"}
	r := row{minute: m, begun: time.Now(), saw: view{}}
	moved, before := time.Now(), ""
	for ctx.Err() == nil {
		d.person.look(ctx, r.saw)
		left := map[schema.Status]int{}
		list, err := d.sdk.List(ctx, schema.ListRequest{
			Status: []schema.Status{schema.StatusRunning, schema.StatusWaiting, schema.StatusInterrupted, schema.StatusOrphaned, schema.StatusPaused}, Limit: schema.MaxList,
		})
		if err == nil {
			going := 0
			for i := range list.Runs {
				if s := &list.Runs[i]; !s.Quarantined {
					left[s.Status]++
					going++
				}
			}
			if going == 0 {
				break
			}
		}
		if now := fmt.Sprint(left, err); now != before {
			moved, before = time.Now(), now
		}
		if time.Since(moved) > patience {
			d.tb.Errorf("no run has moved for %s; left: %s; a person sees %v", patience, before, r.saw)
			break
		}
		wait(ctx, time.Second)
	}
	d.rows = append(d.rows, r)
}
