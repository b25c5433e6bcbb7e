package loadgen

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/waymarkio/waymark/schema"
)

// Config is what to generate. Two configurations that differ only in Runs agree on every run that both have.
type Config struct {
	// Fleet to fill. Required.
	Fleet string
	// Runs to have in the end, and how many of them are to be live: running or waiting, evenly spread.
	Runs, Live int
	// Turns of a run; default 1. Each is three events.
	Turns int
	// Payload is the size in bytes of a tool's result, and half of it that of an answer. Default 256.
	Payload int
	// Agents that the runs are spread over; default 20. Besides them the agent "rare" has one run in 50,000.
	Agents int
	// Began is when the first run was started; the following ones each a second later. Required.
	Began time.Time
}

func (c Config) withDefaults() Config {
	for _, f := range []struct {
		field *int
		value int
	}{{&c.Turns, 1}, {&c.Payload, 256}, {&c.Agents, 20}} {
		if *f.field == 0 {
			*f.field = f.value
		}
	}
	return c
}

// maxRuns is bounded by the digits in a run's name.
const maxRuns = 99_999_999

// Validate names the first field that cannot be used.
func (c Config) Validate() error {
	c = c.withDefaults()
	if err := schema.CheckName("fleet", c.Fleet); err != nil {
		return err
	}
	for _, f := range []struct {
		name           string
		got, min, most int
	}{
		{"runs", c.Runs, 1, maxRuns},
		{"live", c.Live, 0, c.Runs},
		{"turns", c.Turns, 1, 200},
		{"payload", c.Payload, 1, 64 << 10},
		{"agents", c.Agents, 1, 100_000},
	} {
		if f.got < f.min || f.got > f.most {
			return fmt.Errorf("%s is %d, use %d to %d", f.name, f.got, f.min, f.most)
		}
	}
	if c.Began.IsZero() {
		return errors.New("the time of the first run is missing")
	}
	return nil
}

// rareEvery is how many runs there are for one of the agent that has few.
const rareEvery = 50_000

// RunID is the name of a run.
func RunID(n int) string { return fmt.Sprintf("gen-%08d", n) }

// live reports whether a run does not end.
func (c *Config) live(n int) bool {
	// Evenly: the runs at which the share of live runs so far passes a whole number.
	return n*c.Live/c.Runs != (n+1)*c.Live/c.Runs
}

// Agent of a run.
func (c *Config) Agent(n int) string {
	if n%rareEvery == rareEvery/2 {
		return "rare"
	}
	return fmt.Sprintf("agent-%d", n%c.Agents)
}

// Run returns the events of a run, in order, as they are published.
func (c Config) Run(n int) ([]*schema.Event, error) {
	c = c.withDefaults()
	g := &generator{
		cfg: &c, random: rand.New(rand.NewPCG(uint64(n), 1)), at: c.Began.Add(time.Duration(n) * time.Second), //nolint:gosec // not a secret
		out: schema.Writer{Fleet: c.Fleet, Run: RunID(n), Executor: "generator", Epoch: 1},
	}
	start := &schema.RunStartedData{
		Agent: c.Agent(n), Executor: "generator",
		Labels: map[string]string{"team": fmt.Sprintf("team-%d", n%50), "month": g.at.UTC().Format("2006-01")},
	}
	if n%10 == 9 {
		start.Parent = &schema.Parent{Run: RunID(n - 1)}
	}
	g.add(start, 0)
	for turn := int32(1); int(turn) <= c.Turns; turn++ {
		call := fmt.Sprintf("call-%d", turn)
		g.add(&schema.TurnStartedData{Turn: turn, Messages: []schema.Message{{Role: schema.RoleUser, Parts: []schema.Part{schema.Text(g.text(64))}}}}, turn)
		g.add(&schema.TurnAnsweredData{
			Turn: turn, Message: schema.Message{Role: schema.RoleAssistant, Parts: []schema.Part{schema.Text(g.text(c.Payload / 2)), schema.CallPart(call, "look")}},
			Calls: []schema.RequestedCall{{ToolCallID: call, Name: "look", Arguments: jsontext.Value(`{"at":"` + g.text(32) + `"}`), Replay: schema.ReplayPure}},
		}, turn)
		g.add(&schema.ToolReturnedData{ToolCallID: call, Result: jsontext.Value(`"` + g.text(c.Payload) + `"`)}, turn)
	}
	switch {
	case !c.live(n):
		end := &schema.RunEndedData{Status: "completed"}
		switch n % 20 {
		case 3:
			end.Status = "failed"
			end.Error = &schema.Error{Type: "internal", Message: "it broke"}
		case 13:
			end.Status = "cancelled"
		}
		g.add(end, 0)
	case n*c.Live/c.Runs%2 == 0: // every other one of those that live
		g.add(&schema.RunWaitingData{InterruptID: "q", Reason: "human_input"}, 0)
	}
	return g.events, g.err
}

// generator makes the events of one run.
type generator struct {
	cfg    *Config
	random *rand.Rand
	out    schema.Writer
	at     time.Time
	events []*schema.Event
	err    error
}

func (g *generator) add(data schema.Data, turn int32) {
	if g.err != nil {
		return
	}
	var e *schema.Event
	if e, g.err = g.out.Event(data, turn, g.at, 0); g.err != nil {
		return
	}
	if g.err = g.out.Commit(e); g.err == nil {
		g.events = append(g.events, e)
		g.at = g.at.Add(10 * time.Millisecond)
	}
}

// text returns about n bytes of text.
func (g *generator) text(n int) string {
	const words = "river stone harbour lantern meadow copper willow signal anchor timber orchard beacon gravel summit "
	b := make([]byte, 0, n+16)
	for len(b) < n {
		at := g.random.IntN(len(words) - 8)
		b = append(b, words[at:at+8]...)
	}
	return string(b[:n])
}
