package demo

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/waymarkio/waymark/internal/base/output"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// proof compares the log with what the executors told, and with the effects of their tools.
type proof struct {
	Acknowledged int `json:"acknowledged"`
	Recovered    int `json:"recovered"`
	Lost         int `json:"lost"`
	TakenOver    int `json:"taken_over"`
	// Tools by the agents' order.
	Tools    []toolProof `json:"tools"`
	Problems []string    `json:"problems,omitzero"`
}

// toolProof says how often the calls of a tool ran.
type toolProof struct {
	Tool       string        `json:"tool"`
	Replay     schema.Replay `json:"replay"`
	Calls      int           `json:"calls"`
	Executions int           `json:"executions"`
	Effects    int           `json:"effects"`
	fate       string
}

func (p *proof) problem(format string, args ...any) {
	p.Problems = append(p.Problems, fmt.Sprintf(format, args...))
}

// prove reads everything back.
func (s *stage) prove(ctx context.Context) (*proof, error) {
	p, notes := new(proof), s.history()
	letters, err := s.outbox()
	if err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(filepath.Join(s.world, ledgerDir))
	if err != nil {
		return nil, err
	}
	effects := map[schema.Replay]int{publisher.Hold: len(letters), publisher.Idempotent: len(entries)}
	for _, g := range agents {
		var events []*schema.Event
		err := s.fleet.Events(ctx, g.name, func(rec schema.Record) error {
			e, err := schema.Decode(rec.Header, rec.Body)
			events = append(events, e)
			return err
		})
		if err != nil {
			return nil, err
		}
		state, err := s.fleet.Get(ctx, g.name)
		if err != nil {
			return nil, err
		}
		p.compare(g, notes, events)
		p.check(g, notes, state, effects[g.replay])
	}
	return p, nil
}

// acknowledged returns the number of each epoch's events that were acknowledged to an executor of the run. Executors
// number their events in an epoch from 1, so a number tells of all before it.
func acknowledged(notes []note, run string) map[schema.Epoch]schema.Sequence {
	last := make(map[schema.Epoch]schema.Sequence)
	for _, n := range notes {
		if n.Run == run {
			last[n.Epoch] = max(last[n.Epoch], n.Sequence)
		}
	}
	return last
}

// compare looks for each event of a run that was acknowledged to an executor.
func (p *proof) compare(g agent, notes []note, events []*schema.Event) {
	recovered := make(map[schema.Epoch]schema.Sequence)
	var latest schema.Epoch
	for _, e := range events {
		if e.Sequence == 0 {
			continue // a control event, which no executor writes
		}
		if e.Epoch < latest || e.Sequence != recovered[e.Epoch]+1 {
			p.problem("run %s: event %d of epoch %d is twice or out of order", g.name, e.Sequence, e.Epoch)
			continue
		}
		latest, recovered[e.Epoch] = e.Epoch, e.Sequence
	}
	for epoch, last := range acknowledged(notes, g.name) {
		p.Acknowledged += int(last)                              //nolint:gosec // a handful
		p.Recovered += int(min(last, recovered[epoch]))          //nolint:gosec // a handful
		if lost := int(last) - int(recovered[epoch]); lost > 0 { //nolint:gosec // a handful
			p.Lost += lost
			p.problem("run %s: %d events of epoch %d are lost", g.name, lost, epoch)
		}
	}
}

// check looks at a run's end, the results of its calls, and how often they ran.
func (p *proof) check(g agent, notes []note, state *schema.State, effects int) {
	t := toolProof{Tool: g.tool, Replay: g.replay, Calls: len(state.Calls), Effects: effects, fate: g.fate}
	if state.Head.Status != schema.StatusCompleted || len(state.Calls) != turns {
		p.problem("run %s is %s with %d calls", g.name, state.Head.Status, len(state.Calls))
	}
	if state.Head.Executor == successor {
		p.TakenOver++
	} else {
		p.problem("run %s is of executor %s", g.name, state.Head.Executor)
	}
	for _, call := range state.Calls {
		var said string
		if err := json.Unmarshal(call.Result, &said); err != nil || said != result(call.Turn) {
			p.problem("run %s: the result of turn %d is %s", g.name, call.Turn, call.Result)
		}
		ran := 0
		for _, n := range notes {
			if n.Op == opBegin && n.Run == g.name && n.Turn == call.Turn {
				ran++
			}
		}
		t.Executions += ran
		if ran > 1 && g.replay == publisher.Hold {
			p.problem("run %s: the call of turn %d ran %d times, and must not run again", g.name, call.Turn, ran)
		}
	}
	if g.replay != publisher.Pure && effects != turns {
		p.problem("tool %s had %d effects for %d calls", g.tool, effects, turns)
	}
	p.Tools = append(p.Tools, t)
}

// print shows the proof as a table, and what to read next.
func (p *proof) print(w io.Writer) error {
	rows := [][]string{
		{"processes killed (SIGKILL)", "2", "an executor in the middle of three calls, and the server with its daemon"},
		{"events acknowledged", strconv.Itoa(p.Acknowledged), "as the executors told outside of Waymark"},
		{"events recovered", strconv.Itoa(p.Recovered), "read back at the end, in order, none twice"},
		{"events LOST", strconv.Itoa(p.Lost), ""},
		{"runs taken over", strconv.Itoa(p.TakenOver), fmt.Sprintf("by another executor, after %s of silence", silence)},
	}
	for _, t := range p.Tools {
		ran := output.Plural(t.Executions, "execution") + ", " + output.Plural(t.Effects, "effect") + ": " + t.fate
		rows = append(rows, []string{fmt.Sprintf("calls of %s (%s)", t.Tool, t.Replay), strconv.Itoa(t.Calls), ran})
	}
	var b strings.Builder
	b.WriteByte('\n')
	columns := []output.Column{{Title: "the proof"}, {Title: "", Right: true}, {Title: "", Shrinks: true, Wraps: true}}
	if err := output.Table(output.PageLike(w, &b), columns, rows); err != nil {
		return err
	}
	b.WriteByte('\n')
	for _, problem := range slices.Sorted(slices.Values(p.Problems)) {
		fmt.Fprintf(&b, "PROBLEM: %s\n", output.Printable(problem))
	}
	if len(p.Problems) == 0 {
		b.WriteString(output.Hanging(w, "", "The proof holds. Read on in README.md, with an agent of your own, and in docs/tools.md, on tools and crashes.") + "\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}
