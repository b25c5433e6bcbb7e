package transcript_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/transcript"
)

// A session was cut at its beginning: it has a result without its call, and one answer then uses the id twice. The result of the first call
// stays its own.
func TestImport_ResultBeforeItsCallAndTheIDIsUsedTwice_ResultsStayApart(t *testing.T) {
	runs, rep := open(t, writeFile(t, "s.jsonl", `{"type":"user","uuid":"u","sessionId":"s","message":{"role":"user","content":"go"}}
{"type":"user","uuid":"r0","sessionId":"s","message":{"role":"user","content":[{"type":"tool_result","tool_use_id":"t1","content":"lost"}]}}
{"type":"assistant","uuid":"a1","sessionId":"s","message":{"id":"m","role":"assistant","content":[{"type":"tool_use","id":"t1","name":"Read","input":{"n":1}}]}}
{"type":"user","uuid":"r1","sessionId":"s","message":{"role":"user","content":[{"type":"tool_result","tool_use_id":"t1","content":"first"}]}}
{"type":"assistant","uuid":"a2","sessionId":"s","message":{"id":"m","role":"assistant","content":[{"type":"tool_use","id":"t1","name":"Read","input":{"n":2}}]}}
{"type":"user","uuid":"r2","sessionId":"s","message":{"role":"user","content":[{"type":"tool_result","tool_use_id":"t1","content":"second"}]}}
`), transcript.Options{})
	require.Empty(t, rep.Problems)
	s := fold(t, "s", events(t, runs[0]))
	for _, c := range s.Calls {
		t.Log(c.CallKey, string(c.Arguments), string(c.Result))
	}
	out := string(export(t, s, transcript.ClaudeCode))
	require.Contains(t, out, `"first"`)
	require.Contains(t, out, `"second"`)
	require.Contains(t, out, `"lost"`)
}
