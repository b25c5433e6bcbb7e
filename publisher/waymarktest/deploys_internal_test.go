package waymarktest

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// edition is a version of an agent that looks, uploads and pays.
type edition struct {
	// names, argument names and policies of the tools, by what they do.
	names, arguments map[string]string
	policies         map[string]schema.Replay
	// removed, currency: no tool does it, and its tool needs one more argument.
	removed, currency string
	reversed          bool
	system            string
	// decision about payments.
	decision string
	phases   []string
}

// first is the version before each deploy.
func first() *edition {
	return &edition{
		names:     map[string]string{"look": "look", "upload": "upload", "pay": "pay"},
		arguments: map[string]string{"look": "at", "upload": "file", "pay": "cents"},
		policies:  map[string]schema.Replay{"look": publisher.Pure, "upload": publisher.Idempotent, "pay": publisher.Hold},
		phases:    []string{"draft", "check", "publish"},
	}
}

func (e *edition) tool(out *Outside, does string) publisher.Tool {
	argument := e.arguments[does]
	properties, required := map[string]any{argument: map[string]string{"type": "integer"}}, []string{argument}
	if e.currency == does {
		properties["currency"], required = map[string]string{"type": "string"}, append(required, "currency")
	}
	parameters, _ := json.Marshal(map[string]any{"type": "object", "properties": properties, "required": required, "additionalProperties": false})
	return publisher.Tool{
		Name: e.names[does], Parameters: parameters, Replay: e.policies[does],
		Run: func(ctx context.Context, inv publisher.Invocation) (publisher.ToolResult, error) {
			var in map[string]any
			if err := json.Unmarshal(inv.Arguments, &in); err != nil {
				return publisher.ToolResult{}, err
			}
			if does != "look" {
				key := inv.IdempotencyKey
				if e.policies[does] == publisher.Hold {
					key = ""
				}
				if err := out.Once(ctx, key, fmt.Sprintf("%s %v", does, in[argument])); err != nil {
					return publisher.ToolResult{}, err
				}
			}
			return publisher.Result(does)
		},
	}
}

// steps are what the model wants done, in this order, each row in one answer.
var steps = [][]string{{"look 1", "upload 1"}, {"upload 2", "pay 5", "look 2"}, {"pay 7"}}

// model tries each step under the names that it is given until it is done, or denied.
func (e *edition) model(_ context.Context, request publisher.ModelRequest) (publisher.Answer, error) {
	done, tries := make(map[string]bool), make(map[string]int)
	for i := range request.Messages {
		for _, p := range request.Messages[i].Parts {
			step, _, _ := strings.Cut(p.ID, "/")
			switch response := string(p.Response); p.Type {
			case schema.PartToolCall:
				tries[step]++
			case schema.PartToolCallResponse:
				done[step] = done[step] || !p.IsError || strings.Contains(response, "denied") || strings.Contains(response, "abandoned")
			}
		}
	}
	for _, row := range steps {
		var answer publisher.Answer
		for _, step := range row {
			does, value, _ := strings.Cut(step, " ")
			if done[step] || does == e.removed {
				continue
			}
			arguments := fmt.Sprintf(`{%q:%s}`, e.arguments[does], value)
			if does == e.currency {
				arguments = fmt.Sprintf(`{%q:%s,"currency":"EUR"}`, e.arguments[does], value)
			}
			id := fmt.Sprintf("%s/%d", step, tries[step]+1)
			answer.Calls = append(answer.Calls, publisher.ToolCall{ID: id, Name: e.names[does], Arguments: []byte(arguments)})
		}
		if len(answer.Calls) > 0 {
			return answer, nil
		}
	}
	return publisher.Answer{Message: schema.Message{Role: schema.RoleAssistant, Parts: []schema.Part{schema.Text("Done.")}}}, nil
}

func (e *edition) loop(out *Outside) publisher.Work {
	l := publisher.Loop{System: e.system, Model: e.model}
	for _, does := range []string{"look", "upload", "pay"} {
		if does != e.removed {
			l.Tools = append(l.Tools, e.tool(out, does))
		}
	}
	if e.reversed {
		slices.Reverse(l.Tools)
	}
	return l.Work
}

// phased is own work: phases with effects, and a payment between them.
func (e *edition) phased(out *Outside) publisher.Work {
	return func(ctx context.Context, run *publisher.Run) error {
		for i, phase := range e.phases {
			if _, err := run.Phase(ctx, phase, func(ctx context.Context) (any, error) {
				return phase, out.Once(ctx, "phase "+phase, "phase "+phase)
			}); err != nil {
				return err
			}
			if i > 0 {
				continue
			}
			turn := run.OpenTurn()
			if turn == nil {
				turn = run.Turn(1)
			}
			if run.Head().Turn == 0 {
				var err error
				if turn, err = run.StartTurn(ctx, publisher.TurnSpec{}); err != nil {
					return err
				}
			}
			call := publisher.ToolCall{ID: "p", Name: "pay", Arguments: []byte(`{"cents":5}`), Replay: e.policies["pay"]}
			if _, err := turn.Tool(ctx, call, e.tool(out, "pay").Run); err != nil {
				return err
			}
		}
		return run.End(ctx, publisher.RunEnd{})
	}
}

// deploys are the changes of the tools, and those of approvals and phases.
func toolDeploys() map[string]func(*edition) {
	all := map[string]func(*edition){
		"tools in another order":  func(e *edition) { e.reversed = true },
		"another prompt":          func(e *edition) { e.system = "You pay politely." },
		"a stricter policy, look": func(e *edition) { e.policies["look"] = publisher.Hold },
		"a stricter policy":       func(e *edition) { e.policies["upload"] = publisher.Hold },
		"a looser policy, upload": func(e *edition) { e.policies["upload"] = publisher.Pure; e.policies["look"] = publisher.Idempotent },
		"a looser policy":         func(e *edition) { e.policies["pay"] = publisher.Idempotent },
	}
	for _, does := range []string{"look", "upload", "pay"} {
		all["renamed "+does] = func(e *edition) { e.names[does] = "do_" + does }
		all["removed "+does] = func(e *edition) { e.removed = does }
		all["renamed argument of "+does] = func(e *edition) { e.arguments[does] = "number" }
		all["required argument of "+does] = func(e *edition) { e.currency = does }
	}
	return all
}

var (
	approvalDeploys = map[string]func(*edition){
		"people are asked no longer":    func(e *edition) { e.decision = schema.DecisionAllow },
		"payments are denied":           func(e *edition) { e.decision = schema.DecisionDeny },
		"renamed pay":                   func(e *edition) { e.names["pay"] = "transfer" },
		"removed pay":                   func(e *edition) { e.removed = "pay" },
		"renamed argument of pay":       func(e *edition) { e.arguments["pay"] = "amount" },
		"a looser policy":               func(e *edition) { e.policies["pay"] = publisher.Idempotent },
		"a stricter policy, and a name": func(e *edition) { e.policies["upload"] = publisher.Hold; e.names["look"] = "see" },
	}
	phaseDeploys = map[string]func(*edition){
		"a phase before the others": func(e *edition) { e.phases = append([]string{"plan"}, e.phases...) },
		"a phase between":           func(e *edition) { e.phases = slices.Insert(e.phases, 1, "review") },
		"a phase behind":            func(e *edition) { e.phases = append(e.phases, "thank") },
		"reordered phases":          func(e *edition) { slices.Reverse(e.phases) },
		"a removed phase":           func(e *edition) { e.phases = []string{"draft", "publish"} },
		"a looser policy":           func(e *edition) { e.policies["pay"] = publisher.Idempotent },
	}
)

// A deploy at each crash point of three agents: each effect happens as often as the two versions want it, with the
// recorded arguments, and each run is completed. The model may be told that a call cannot run.
func TestDeploys_EachChangeAtEachPoint_RunsComplete(t *testing.T) {
	t.Parallel()
	var cases atomic.Int64
	each := 2
	if testing.Short() {
		t.Log("short: each fifteenth crash point instead of each second")
		each = 15
	}
	t.Run("agents", func(t *testing.T) {
		for name, c := range map[string]struct {
			agent    func(*edition, *Outside) publisher.Work
			decision string
			changes  map[string]func(*edition)
		}{
			"tools":     {(*edition).loop, "", toolDeploys()},
			"approvals": {(*edition).loop, schema.DecisionAsk, approvalDeploys},
			"phases":    {(*edition).phased, "", phaseDeploys},
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				before := first()
				before.decision = c.decision
				testDeploys(t, before, c.agent, c.changes, each, &cases)
			})
		}
	})
	t.Logf("%d deploys", cases.Load())
	if each == 2 {
		require.GreaterOrEqual(t, cases.Load(), int64(500))
	}
}

func testDeploys(t *testing.T, before *edition, work func(*edition, *Outside) publisher.Work, changes map[string]func(*edition), each int, cases *atomic.Int64) {
	t.Helper()
	var living atomic.Pointer[edition] // one executor lives at a time
	agent := func(e *edition) Agent {
		return func(out *Outside) publisher.Work {
			living.Store(e)
			return work(e, out)
		}
	}
	c := &crashes{w: Start(t), spec: Crash{
		Run:    publisher.RunSpec{Agent: "agent", Task: "Pay."},
		Before: agent(before), NoEffects: true, // of look, under any policy
		Answer: func(schema.OpenInterrupt) publisher.Input {
			return publisher.Input{Payload: []byte(`{"decision":"allow"}`), By: "alice"}
		},
	}}
	if before.decision != "" {
		c.spec.Config = func(cfg *publisher.Config) {
			cfg.Policy = func(_ context.Context, _ *publisher.Run, call publisher.ToolCall) (publisher.Decision, error) {
				if e := living.Load(); call.Name == e.names["pay"] {
					return publisher.Decision{Decision: e.decision}, nil
				}
				return publisher.Decision{Decision: schema.DecisionAllow}, nil
			}
		}
	}
	require.True(t, c.without(t, agent(before), ""))
	require.NotEmpty(t, c.whole[0].outside.all())
	points := c.whole[0].points()
	for n, name := range slices.Sorted(maps.Keys(changes)) {
		after := first()
		after.decision = before.decision
		changes[name](after)
		c.whole = c.whole[:1]
		require.True(t, c.without(t, agent(after), ""), name)
		c.versions = []Agent{agent(before), agent(after)}
		for i, p := range points {
			if (i+n)%each != 0 {
				continue
			}
			cases.Add(1)
			d := deployed(c.whole[0], c.whole[1], c.try(p))
			refused := 0
			d.lines = slices.DeleteFunc(d.lines, func(line string) bool {
				is := strings.Contains(line, "(failed: unknown_tool: ") || strings.Contains(line, "(failed: invalid_arguments: ")
				if is {
					refused++
				}
				return is || refused > 0 && strings.HasPrefix(line, "people are asked ") // about the call in its place
			})
			for effect, made := range d.trial.made() {
				if len(made) != 1 {
					d.addf("%s %d times", effect, len(made))
				}
			}
			if len(d.lines) > 0 {
				t.Errorf("%s: %s", name, d.report())
			}
		}
	}
}
