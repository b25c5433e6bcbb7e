package loadgen

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/waymarkio/waymark/schema"
)

// Config is what to generate.
type Config struct {
	// Fleet to fill.
	Fleet string
	// Runs to have in the end, and how many of them are to be live: running or waiting, evenly spread.
	Runs, Live int
	// Began is when the first run was started; the following ones each a second later.
	Began time.Time
}

// payload is the size in bytes of a tool's result, agents the number of agents that the runs are spread over.
const payload, agents = 256, 20

// RunID is the name of a run.
func RunID(n int) string { return fmt.Sprintf("gen-%08d", n) }

// live reports whether a run does not end.
func (c *Config) live(n int) bool {
	// Evenly: the runs at which the share of live runs so far passes a whole number.
	return n*c.Live/c.Runs != (n+1)*c.Live/c.Runs
}

// Run returns the events of a run, in order, as they are published: one turn with one call, and mostly an end.
func (c *Config) Run(n int) ([]*schema.Event, error) {
	random := rand.New(rand.NewPCG(uint64(n), 1)) //nolint:gosec // not a secret
	at := c.Began.Add(time.Duration(n) * time.Second)
	start := &schema.RunStartedData{
		Agent: fmt.Sprintf("agent-%d", n%agents), Executor: "generator",
		Labels: map[string]string{"team": fmt.Sprintf("team-%d", n%50), "month": at.UTC().Format("2006-01")},
	}
	if n%10 == 9 {
		start.Parent = &schema.Parent{Run: RunID(n - 1)}
	}
	data := []schema.Data{
		start,
		&schema.TurnStartedData{Turn: 1, Messages: []schema.Message{{Role: schema.RoleUser, Parts: []schema.Part{schema.Text(text(random, 64))}}}},
		&schema.TurnAnsweredData{
			Turn: 1, Message: schema.Message{Role: schema.RoleAssistant, Parts: []schema.Part{schema.Text(text(random, payload/2)), schema.CallPart("call-1", "look")}},
			Calls: []schema.RequestedCall{{ToolCallID: "call-1", Name: "look", Arguments: jsontext.Value(`{"at":"` + text(random, 32) + `"}`), Replay: schema.ReplayPure}},
		},
		&schema.ToolReturnedData{ToolCallID: "call-1", Result: jsontext.Value(`"` + text(random, payload) + `"`)},
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
		data = append(data, end)
	case n*c.Live/c.Runs%2 == 0: // every other live one
		data = append(data, &schema.RunWaitingData{InterruptID: "q", Reason: "human_input"})
	}
	return c.events(n, at, data)
}

// events are the events of a run, ten milliseconds apart.
func (c *Config) events(n int, at time.Time, data []schema.Data) ([]*schema.Event, error) {
	out := schema.Writer{Fleet: c.Fleet, Run: RunID(n), Executor: "generator", Epoch: 1}
	events := make([]*schema.Event, 0, len(data))
	for i, d := range data {
		turn := int32(0)
		if i >= 1 && i <= 3 {
			turn = 1
		}
		e, err := out.Event(d, turn, at.Add(time.Duration(i)*10*time.Millisecond), 0)
		if err == nil {
			err = out.Commit(e)
		}
		if err != nil {
			return nil, fmt.Errorf("run %s: %w", RunID(n), err)
		}
		events = append(events, e)
	}
	return events, nil
}

// text returns n bytes of text.
func text(random *rand.Rand, n int) string {
	const words = "river stone harbour lantern meadow copper willow signal anchor timber orchard beacon gravel summit "
	b := make([]byte, 0, n+8)
	for len(b) < n {
		at := random.IntN(len(words) - 8)
		b = append(b, words[at:at+8]...)
	}
	return string(b[:n])
}
