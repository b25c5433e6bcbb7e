package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/waymarkio/waymark/internal/cli/base"
	"github.com/waymarkio/waymark/internal/cli/output"
	"github.com/waymarkio/waymark/internal/journal"
	"github.com/waymarkio/waymark/internal/player"
	"github.com/waymarkio/waymark/schema"
)

// proof is the result of the demonstration.
type proof struct {
	facts      journal.Facts
	runs       int
	results    int
	kills      []killing
	doubts     []*doubt
	recoveries []time.Duration
	returns    []time.Duration
	took       time.Duration
}

// prove compares every run with the history kept outside, and the run with real tools also with the expectations of its script.
func (s *stage) prove(ctx context.Context) (_ *proof, err error) {
	fleet, err := connect(ctx, s.app, s.fleet.state, "proof")
	if err != nil {
		return nil, err
	}
	defer func() {
		limit, cancel := context.WithTimeout(context.WithoutCancel(ctx), base.CloseTimeout)
		defer cancel()
		err = errors.Join(err, fleet.Close(limit))
	}()
	if err := s.look(); err != nil {
		return nil, err
	}
	recovered := make(map[string][]journal.Event)
	p := &proof{runs: len(s.runs), kills: s.kills, doubts: s.inDoubt, recoveries: s.recoveries, returns: s.backAtWork()}
	var problems []string
	for _, r := range s.runs {
		id := r.script.ID
		if recovered[id], err = player.ReadBack(ctx, fleet, id); err != nil {
			return nil, err
		}
		if r.format != "" {
			continue // results of transcripts are recorded, and the history has their events
		}
		state, err := fleet.Get(ctx, id)
		if err != nil {
			return nil, err
		}
		if err := s.compareWorkshop(r, state, p); err != nil {
			problems = append(problems, fmt.Sprintf("%s: %v", id, err))
		}
	}
	p.facts = journal.Check(s.history, recovered)
	p.facts.Problems = append(p.facts.Problems, problems...)
	s.fates()
	p.took = s.app.Now().Sub(s.begun)
	return p, nil
}

// compareWorkshop compares the results of the real tools, and what they left in the scratch folder, with what the
// script expects.
func (s *stage) compareWorkshop(r plannedRun, state *schema.State, p *proof) error {
	b, err := os.ReadFile(filepath.Join(inputsIn(s.dir), r.file))
	if err != nil {
		return err
	}
	var want struct {
		Turns []struct {
			Calls []struct {
				ID     string `json:"id"`
				Tool   string `json:"tool"`
				Expect string `json:"expect"`
			} `json:"calls"`
		} `json:"turns"`
		Files map[string]string `json:"files"`
	}
	if err := json.Unmarshal(b, &want); err != nil {
		return err
	}
	n := 0
	for turn, t := range want.Turns {
		for _, c := range t.Calls {
			if n >= len(state.Calls) {
				return fmt.Errorf("call %s of turn %d is missing", c.ID, turn+1)
			}
			got := state.Calls[n]
			var said string
			if err := json.Unmarshal(got.Result, &said); err != nil {
				return fmt.Errorf("result of call %s in turn %d: %w", c.ID, turn+1, err)
			}
			if int(got.Turn) != turn+1 || got.ToolCallID != c.ID || got.Name != c.Tool || said != c.Expect {
				return fmt.Errorf("call %d is %s %s in turn %d with result %q, want %s %s in turn %d with %q",
					n, got.ToolCallID, got.Name, got.Turn, said, c.ID, c.Tool, turn+1, c.Expect)
			}
			n++
			p.results++
		}
	}
	if n != len(state.Calls) {
		return fmt.Errorf("%d calls were recorded, want %d", len(state.Calls), n)
	}
	for name, text := range want.Files {
		got, err := os.ReadFile(filepath.Join(scratchIn(s.dir), filepath.FromSlash(name)))
		if err != nil {
			return err
		}
		if string(got) != text {
			return fmt.Errorf("the scratch folder's %s is %q, want %q", name, got, text)
		}
	}
	return nil
}

// fates returns the outcomes of the calls in doubt: the entries of the history after the kill.
func (s *stage) fates() {
	for _, d := range s.inDoubt {
		settled, again, returned := "", false, false
		for _, e := range s.history[d.from:] {
			if e.Run != d.run || e.Call != d.call {
				continue
			}
			switch {
			case e.Op == journal.Settled && settled == "":
				settled = e.Note
			case e.Op == journal.Begin:
				again = true
			case e.Op == journal.Ack && e.Kind == journal.KindReturned:
				returned = true
			}
		}
		held := d.replay == string(schema.ReplayHold)
		switch {
		case !held && again && returned:
			d.fate = "run again, which " + d.replay + " tools may be"
		case held && settled == journal.Rerun && again && returned:
			d.fate = "person: it had not happened, run it"
		case held && settled != "" && !again:
			d.fate = "person: it had happened, not run again"
		case !again:
			d.fate = "result was recorded: not run again"
		default:
			d.fate = "unclear"
		}
	}
}

// backAtWork measures, for each run that lost its executor, how long it took from the kill to the next boundary.
func (s *stage) backAtWork() []time.Duration {
	var list []time.Duration
	for _, k := range s.kills {
		for _, run := range k.runs {
			for _, e := range s.history {
				if e.Op == journal.Ack && e.Run == run && e.At > k.at.UnixNano() {
					list = append(list, time.Duration(e.At-k.at.UnixNano()))
					break
				}
			}
		}
	}
	return list
}

// print shows the proof as a table.
func (p *proof) print(w io.Writer) error {
	killed := map[string]int{}
	for _, k := range p.kills {
		killed[k.what]++
	}
	f := p.facts
	rows := [][]string{
		{"runs, all ended", strconv.Itoa(p.runs), "three transcript formats, one with real tools"},
		{"kills from outside (SIGKILL)", strconv.Itoa(len(p.kills)), fmt.Sprintf("%s, %s server and daemon", output.Plural(killed["executor"], "executor"), output.Plural(killed["server"], "time"))},
		{"boundaries acknowledged", strconv.Itoa(f.Acknowledged), "written down outside by the executors"},
		{"boundaries recovered", strconv.Itoa(f.Recovered), "read back afterwards, in order, nothing twice"},
		{"boundaries LOST", strconv.Itoa(f.Lost), ""},
		{"results of real tools", strconv.Itoa(p.results), "as expected, with the files that they left"},
		{"executions of tools", strconv.Itoa(f.Executions), fmt.Sprintf("counted outside: %s, %d in doubt run again as allowed", output.Plural(f.Calls, "call"), f.Reruns)},
		{"tool calls RUN TWICE", strconv.Itoa(f.Twice), "although they must not"},
		{"recoveries", strconv.Itoa(f.Takeovers), fmt.Sprintf("request to loaded state: p50 %s, max %s", clockTime(quantile(p.recoveries, 2)), clockTime(quantile(p.recoveries, 1)))},
		{"killed runs back at work", strconv.Itoa(len(p.returns)), fmt.Sprintf("kill to next boundary: p50 %s, max %s", clockTime(quantile(p.returns, 2)), clockTime(quantile(p.returns, 1)))},
	}
	var b strings.Builder
	b.WriteByte('\n')
	if err := output.Table(output.PageLike(w, &b), []output.Column{{Title: "the proof"}, {Title: "", Right: true}, {Title: "", Shrinks: true, Wraps: true}}, rows); err != nil {
		return err
	}
	if len(p.doubts) > 0 {
		b.WriteByte('\n')
		rows = rows[:0]
		for _, d := range p.doubts {
			rows = append(rows, []string{d.run, d.call.String(), d.name, d.fate})
		}
		err := output.Table(output.PageLike(w, &b), []output.Column{{Title: "in doubt"}, {Title: "call"}, {Title: "tool"}, {Title: "outcome", Shrinks: true, Wraps: true}}, rows)
		if err != nil {
			return err
		}
	}
	b.WriteByte('\n')
	const shown = 20
	for i, problem := range f.Problems {
		if i == shown {
			fmt.Fprintf(&b, "and %d more\n", len(f.Problems)-shown)
			break
		}
		fmt.Fprintf(&b, "PROBLEM: %s\n", output.Printable(problem))
	}
	if len(f.Problems) == 0 {
		fmt.Fprintf(&b, "The proof holds, after %s.\n", p.took.Round(100*time.Millisecond))
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// quantile returns the largest of the lowest 1/nth: 2 gives the median, 1 the maximum.
func quantile(list []time.Duration, nth int) time.Duration {
	if len(list) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(list))
	return sorted[(len(sorted)-1)/nth]
}
