//go:build unix

package day_test

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/waymarkio/waymark/schema"
)

// verdict is the result of a check of the whole day.
type verdict struct {
	promise, found string
	broken         []string
}

// life is what the record has of a run.
type life struct {
	*order
	state  *schema.State
	events []event
}

// event is one of the record, as far as the checks need it.
type event struct {
	name   string
	stored time.Time
	replay schema.Replay
	tool   string
}

// lives reads the record of each run, and of the children that runs have started.
func (d *day) lives(ctx context.Context) (list []*life) {
	for _, o := range slices.Clone(d.orders) {
		if !strings.HasSuffix(o.id, lead) {
			continue
		}
		d.until(ctx, "the children of "+o.id+" cannot be listed", func() error {
			list, err := d.sdk.List(ctx, schema.ListRequest{Parent: o.id})
			if err != nil {
				return err
			}
			for i := range list.Runs {
				d.orders = append(d.orders, &order{id: list.Runs[i].Run, agent: list.Runs[i].Agent})
			}
			return nil
		})
	}
	slices.SortFunc(d.orders, func(a, b *order) int { return strings.Compare(a.id, b.id) })
	for _, o := range d.orders {
		l := &life{order: o}
		d.until(ctx, "run "+o.id+" cannot be read", func() (err error) {
			if l.state, err = d.sdk.Get(ctx, o.id); err != nil {
				return err
			}
			l.events = nil
			return d.sdk.Events(ctx, o.id, func(rec schema.Record) error {
				e, err := schema.Decode(rec.Header, rec.Body)
				if err != nil {
					return err
				}
				at := event{name: e.Name(), stored: time.Unix(0, rec.Stored)}
				data, err := schema.ParseData(e)
				if called, ok := data.(*schema.ToolCalledData); ok {
					at.tool, at.replay = called.Name, called.Replay
				}
				l.events = append(l.events, at)
				return err
			})
		})
		list = append(list, l)
	}
	return list
}

// judge checks the day.
func (d *day) judge(lives []*life) []verdict {
	return []verdict{d.ends(lives), d.effects(lives), d.asking(), d.stillness(lives), d.versions(lives), d.children(lives), d.webhook(lives), d.causes()}
}

// ends: no run failed for a reason that was not its own.
func (d *day) ends(lives []*life) verdict {
	v := verdict{promise: "No run failed for a reason that was not its own"}
	var completed, failed, quarantined, takeovers int
	for _, l := range lives {
		head := &l.state.Head
		takeovers += len(l.state.Takeovers)
		switch own := strings.HasSuffix(l.id, ownFailure); {
		case l.agent == digger && head.Quarantined(0):
			quarantined++
		case l.agent != digger && own && head.Status == schema.StatusFailed && strings.Contains(l.state.Ended.Error.Message, "this bill cannot be read"):
			failed++
		case l.agent != digger && !own && head.Status == schema.StatusCompleted:
			completed++
		default:
			v.broken = append(v.broken, fmt.Sprintf("run %s is %s: %+v", l.id, head.Status, l.state.Ended))
		}
	}
	v.found = fmt.Sprintf("%d runs: %d completed, %d failed because the provider refused their bill, %d quarantined because their executor always dies; %d takeovers",
		len(lives), completed, failed, quarantined, takeovers)
	return v
}

// effects: no side effect twice, and each completed run has its own.
func (d *day) effects(lives []*life) verdict {
	v := verdict{promise: "No side effect twice"}
	counts := map[string]int{}
	for i := range d.out.effects {
		e := &d.out.effects[i]
		counts[e.run+" "+e.tool]++
	}
	paid, filed := 0, 0
	for _, l := range lives {
		pay, file := counts[l.id+" pay"], counts[l.id+" file"]
		paid, filed = paid+pay, filed+file
		if done := l.state.Head.Status == schema.StatusCompleted; pay > 1 || file > 1 || done && pay+file != 2 {
			v.broken = append(v.broken, fmt.Sprintf("run %s (%s) paid %d times and filed %d times", l.id, l.state.Head.Status, pay, file))
		}
	}
	v.found = fmt.Sprintf("%d payments (hold), %d receipts (idempotent); a person settled %d calls in doubt", paid, filed, d.person.settled)
	return v
}

// asking: the provider saw no request of a run before the time that it had told to it. An executor that waits for less than
// half a minute does so in its process: when that ends, the next executor does not know of the time.
func (d *day) asking() verdict {
	v := verdict{promise: "The provider saw no request of a run before the time that it had told"}
	unheard, times, refused := 0, 0, map[int]int{}
	for i := range d.out.asked {
		refused[d.out.asked[i].status]++
	}
	for i := range d.out.early {
		e := &d.out.early[i]
		if ended, ok := d.ended[e.told.life]; ok && ended.Before(e.asked.at) && e.told.life != e.asked.life {
			unheard++
			continue
		}
		times++
		v.broken = append(v.broken, fmt.Sprintf("run %s was asked for by %s %s too early; %s had been told", e.asked.run, e.asked.life, e.told.until.Sub(e.asked.at), e.told.life))
	}
	v.found = fmt.Sprintf("%d requests: %d answered, %d times 429, %d times 500, %d times 400; %d too early, and %d of executors whose predecessor was killed before it recorded the time",
		len(d.out.asked), refused[200], refused[429], refused[500], refused[400], times, unheard)
	return v
}

// stillness: paused runs began nothing after the answer.
func (d *day) stillness(lives []*life) verdict {
	v := verdict{promise: "Paused runs began nothing after the pause's answer"}
	var found []string
	for _, p := range d.pauses {
		runs, events, given, begun := 0, 0, 0, 0
		for _, l := range lives {
			if !p.has(l.order) {
				continue
			}
			runs++
			for _, e := range l.events {
				if !e.stored.After(p.answered) || !e.stored.Before(p.ended) {
					continue
				}
				events++
				switch e.name {
				case schema.RunResumed:
					given++
				case schema.TurnStarted, schema.ToolCalled, schema.PhaseStarted:
					begun++
					v.broken = append(v.broken, fmt.Sprintf("pause of %s: run %s: %s %s %s after the answer", p.name, l.id, e.name, e.tool, e.stored.Sub(p.answered)))
				}
			}
		}
		asked := 0
		for i := range d.out.asked {
			a := &d.out.asked[i]
			o := d.order(a.run)
			if o != nil && p.has(o) && a.at.After(p.answered) && a.at.Before(p.ended) {
				asked++
			}
		}
		found = append(found, fmt.Sprintf("%s: %s long, %d runs, %d events of what was under way, %d takeovers, %d begins, %d requests to the provider",
			p.name, p.ended.Sub(p.answered).Round(time.Second), runs, events-given-begun, given, begun, asked))
	}
	v.found = strings.Join(found, "; ")
	return v
}

func (d *day) order(id string) *order {
	i, ok := slices.BinarySearchFunc(d.orders, id, func(o *order, id string) int { return strings.Compare(o.id, id) })
	if !ok {
		return nil
	}
	return d.orders[i]
}

// children: each parent heard once of each child's end, and its model was told how it ended.
func (d *day) children(lives []*life) verdict {
	v := verdict{promise: "A parent heard of each child's end once"}
	of, ends := map[string][]*life{}, map[string]int{}
	for _, l := range lives {
		if p := l.state.Head.Parent; p != nil {
			of[p.Run] = append(of[p.Run], l)
		}
	}
	for _, l := range lives {
		if !strings.HasSuffix(l.id, lead) {
			continue
		}
		var told strings.Builder
		for i := range l.state.Calls {
			fmt.Fprintln(&told, string(l.state.Calls[i].Result))
		}
		if len(of[l.id]) != 2 || len(l.state.Signals) != 2 {
			v.broken = append(v.broken, fmt.Sprintf("run %s has %d children and heard %d ends", l.id, len(of[l.id]), len(l.state.Signals)))
		}
		for _, child := range of[l.id] {
			status := child.state.Head.Status
			if child.state.Head.Quarantined(0) {
				status = schema.StatusQuarantined
			}
			ends[heard(child.agent, status)]++
			signals := 0
			for i := range l.state.Signals {
				if s := &l.state.Signals[i]; schema.Hears(schema.ChildWait(child.id), s.SignalID) && s.ConsumedAt != "" {
					signals++
				}
			}
			if n := strings.Count(told.String(), heard(child.agent, status)); signals != 1 || n != 1 {
				v.broken = append(v.broken, fmt.Sprintf("run %s: child %s is %s: %d signals, told %d times", l.id, child.id, status, signals, n))
			}
		}
	}
	v.found = fmt.Sprintf("%v", ends)
	return v
}

// versions: the record says what the deploy changed, and calls of the old build do no harm.
func (d *day) versions(lives []*life) verdict {
	v := verdict{promise: "The record says what the deploy changed"}
	changed, refusedCalls := 0, map[string]int{}
	for _, l := range lives {
		builds := map[string]bool{}
		for i := range l.state.Turns {
			if version := l.state.Turns[i].Version; version != nil {
				builds[version.Build] = true
			}
		}
		if len(builds) > 1 {
			changed++
		}
		for i := range l.state.Calls {
			if c := &l.state.Calls[i]; c.Error != nil {
				refusedCalls[c.Name+": "+c.Error.Type]++
			}
		}
	}
	if changed == 0 {
		v.broken = append(v.broken, "no run went over from one build to the other")
	}
	v.found = fmt.Sprintf("%d runs went over to the second build; calls that the model was told of as failed: %v", changed, refusedCalls)
	return v
}

// webhook: each entry was posted, for the run that it is about.
func (d *day) webhook(lives []*life) verdict {
	v := verdict{promise: "The webhook tells each run that needs a person"}
	posted, ids := map[string]bool{}, map[string]int{}
	for _, p := range d.out.posts {
		posted[p.kind+" "+p.run] = true
		ids[p.id]++
	}
	for _, l := range lives {
		if l.state.Head.Quarantined(0) && !posted["quarantined "+l.id] {
			v.broken = append(v.broken, "the quarantine of run "+l.id+" was not posted")
		}
	}
	again := 0
	for _, n := range ids {
		again += n - 1
	}
	v.found = fmt.Sprintf("%d posts, %d of them again with their id", len(d.out.posts), again)
	return v
}

// causes: a person saw the right cause of each minute, and none that was not there.
func (d *day) causes() verdict {
	v := verdict{promise: "A person saw the cause of each minute", broken: d.missed}
	lines := 0
	for i := range d.rows {
		lines += len(d.rows[i].saw)
		if d.rows[i].saw.has("alert: WaymarkRunsFail") {
			v.broken = append(v.broken, fmt.Sprintf("minute %d: WaymarkRunsFail, but no run fails by the fleet", i+1))
		}
	}
	v.found = fmt.Sprintf("%d looks, %d lines", d.person.looks, lines)
	return v
}

// shares is how long the runs of each tenant waited for their first turn: a figure, until fair turns are built.
func shares(lives []*life) (list []string) {
	waited := map[string][]time.Duration{}
	for _, l := range lives {
		for _, e := range l.events {
			if e.name == schema.TurnStarted {
				waited[l.tenant] = append(waited[l.tenant], e.stored.Sub(l.at))
				break
			}
		}
	}
	for _, tenant := range tenants {
		w := waited[tenant]
		slices.SortFunc(w, cmp.Compare)
		if len(w) > 0 {
			list = append(list, fmt.Sprintf("%s: %d runs, median %s, worst %s", tenant, len(w), w[len(w)/2].Round(time.Second/10), w[len(w)-1].Round(time.Second/10)))
		}
	}
	return list
}
