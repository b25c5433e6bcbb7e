package demo

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/base/output"
	"github.com/waymarkio/waymark/schema"
)

func TestProof_AnyTerminal_FitsWithoutCuts(t *testing.T) {
	t.Parallel()
	for _, width := range []int{80, 100, 200} {
		var b bytes.Buffer
		var p proof
		for _, g := range agents {
			p.Tools = append(p.Tools, toolProof{g.tool, g.replay, 5, 6, 5, g.fate})
		}
		require.NoError(t, p.print(output.NewPage(&b, func(string) string { return fmt.Sprint(width) })))
		require.NotContains(t, b.String(), "…")
		require.Contains(t, b.String(), "The proof holds.")
		for l := range strings.Lines(b.String()) {
			require.LessOrEqual(t, len([]rune(strings.TrimRight(l, "\n"))), width, b.String())
		}
	}
}

func TestProof_LostOrRepeated_DoesNotHold(t *testing.T) {
	t.Parallel()
	courier := agents[2]
	events := func(sequences ...schema.Sequence) (list []*schema.Event) {
		for _, n := range sequences {
			list = append(list, &schema.Event{Epoch: 2, Sequence: n})
		}
		return list
	}
	acknowledged := []note{{Op: opAt, Run: courier.name, Epoch: 2, Sequence: 3}}
	for name, test := range map[string]struct {
		events []*schema.Event
		lost   int
		says   string
	}{
		"all there":    {events(1, 2, 3), 0, ""},
		"more":         {events(1, 2, 3, 4), 0, ""},
		"the last":     {events(1, 2), 1, "1 events of epoch 2 are lost"},
		"one between":  {events(1, 3), 2, "out of order"},
		"all":          {nil, 3, "3 events of epoch 2 are lost"},
		"one is twice": {events(1, 2, 2, 3), 0, "event 2 of epoch 2 is twice"},
	} {
		var p proof
		p.compare(courier, acknowledged, test.events)
		require.Equal(t, 3, p.Acknowledged, name)
		require.Equal(t, test.lost, p.Lost, name)
		require.Equal(t, test.says == "", len(p.Problems) == 0, name)
		require.Contains(t, strings.Join(p.Problems, "\n"), test.says, name)
	}
}

func TestProof_Calls_RunAsTheirPolicyAllows(t *testing.T) {
	t.Parallel()
	scout, courier := agents[0], agents[2]
	ended := func() *schema.State {
		s := &schema.State{Head: schema.Head{Status: schema.StatusCompleted, Executor: successor}}
		for turn := range int32(turns) {
			s.Calls = append(s.Calls, schema.Call{CallKey: schema.CallKey{Turn: turn + 1}, Result: fmt.Appendf(nil, "%q", result(turn+1))})
		}
		return s
	}
	again := func(g agent) []note {
		return []note{{Op: opBegin, Run: g.name, Turn: 2}, {Op: opBegin, Run: g.name, Turn: 2}}
	}
	var p proof
	p.check(scout, again(scout), ended(), 0)
	require.Empty(t, p.Problems, "it only reads")
	require.Equal(t, 2, p.Tools[0].Executions)
	p.check(courier, nil, ended(), turns)
	require.Empty(t, p.Problems)
	require.Equal(t, 2, p.TakenOver)
	for says, check := range map[string]func(p *proof, s *schema.State){
		"must not run again":         func(p *proof, s *schema.State) { p.check(courier, again(courier), s, turns) },
		"had 6 effects for 5 calls":  func(p *proof, s *schema.State) { p.check(courier, nil, s, turns+1) },
		"is running with 5 calls":    func(p *proof, s *schema.State) { s.Head.Status = schema.StatusRunning; p.check(courier, nil, s, turns) },
		"the result of turn 1 is {}": func(p *proof, s *schema.State) { s.Calls[0].Result = []byte("{}"); p.check(courier, nil, s, turns) },
		"is of executor ada":         func(p *proof, s *schema.State) { s.Head.Executor = "ada"; p.check(courier, nil, s, turns) },
	} {
		var p proof
		check(&p, ended())
		require.Len(t, p.Problems, 1, says)
		require.Contains(t, p.Problems[0], says)
	}
}
