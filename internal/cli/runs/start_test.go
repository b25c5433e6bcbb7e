package runs

import (
	"bytes"
	"testing"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/base/output"
	"github.com/waymarkio/waymark/internal/base/prompt"
	"github.com/waymarkio/waymark/internal/cli/base"
	"github.com/waymarkio/waymark/schema"
)

// The terminal of the waiting user does not obey control characters in an agent's output.
func TestStart_OutputWithControlCharacters_IsEscaped(t *testing.T) {
	var out bytes.Buffer
	said := &started{Run: "r1", Agent: "coder", Result: &result{Status: "completed", Output: jsontext.Value("\"\u009b31mred\u202egnp.exe\x7f\"")}}
	require.NoError(t, StartCmd{}.show(t.Context(), &base.App{Flags: new(base.Flags), Stdout: &out}, nil, said))
	line := string(bytes.TrimSuffix(out.Bytes(), []byte("\n")))
	require.Equal(t, output.Printable(line), line)
}

func TestStart_RunStandsStill_SaysWhy(t *testing.T) {
	t.Parallel()
	c, on := &StartCmd{newRun: newRun{Agent: "coder"}, ID: "r1"}, prompt.Prompt{Flags: "--fleet a "}
	unclaimed, running := &schema.Head{Status: schema.StatusInterrupted}, &schema.Head{Status: schema.StatusRunning}
	asks := &schema.Head{Status: schema.StatusInterrupted, Interrupts: []schema.OpenInterrupt{{InterruptID: "q"}}}
	require.Empty(t, c.standstill(unclaimed, startUnclaimed-startLook, on))
	require.Empty(t, c.standstill(running, 0, on))
	require.Equal(t, "no executor has claimed the run in 10s: is an executor running for agent coder, or is the run paused or quarantined? "+
		"See: waymark --fleet a plan r1", c.standstill(unclaimed, startUnclaimed, on))
	require.Contains(t, c.standstill(asks, startUnclaimed, on), "waymark --fleet a input r1")
}
