package runs

import (
	"bytes"
	"testing"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/cli/base"
	"github.com/waymarkio/waymark/internal/cli/output"
)

// What an agent's output has in it is not obeyed by the terminal of who waits for it.
func TestStart_OutputWithControlCharacters_IsEscaped(t *testing.T) {
	var out bytes.Buffer
	said := &started{Run: "r1", Agent: "coder", Result: &result{Status: "completed", Output: jsontext.Value("\"\u009b31mred\u202egnp.exe\x7f\"")}}
	require.NoError(t, StartCmd{}.show(&base.App{Flags: new(base.Flags), Stdout: &out}, nil, said))
	line := string(bytes.TrimSuffix(out.Bytes(), []byte("\n")))
	require.Equal(t, output.Printable(line), line)
}
