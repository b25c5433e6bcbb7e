package publisher

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/schema"
)

// A schema from elsewhere never keeps an agent from its runs: the version leaves out what no event can have.
func TestToolVersion_ForeignSchema_IsRecordable(t *testing.T) {
	t.Parallel()
	tool := Tool{Name: "t", Parameters: []byte(`{"type":"object","properties":{"a\nb":{},"` + strings.Repeat("x", 300) + `":{},"":{},"good":{}},"required":["a\nb"]}`)}
	v := tool.version()
	require.Equal(t, []string{"good"}, v.Optional)
	require.Empty(t, v.Required)
	require.Len(t, v.Schema, 16)
	require.NoError(t, schema.Validate(&schema.TurnStartedData{Turn: 1, Version: &schema.Version{Tools: []schema.ToolVersion{v}}}))
}

// Large tools are a digest, and a large agent leaves room for the others in a heartbeat.
func TestAgentVersions_Large_AreDigests(t *testing.T) {
	t.Parallel()
	var tools []Tool
	for i := range schema.MaxVersionTools {
		var properties []string
		for j := range schema.MaxVersionArguments {
			properties = append(properties, fmt.Sprintf(`"an argument of a long name, number %d":{}`, j))
		}
		tools = append(tools, Tool{Name: fmt.Sprint(i), Parameters: []byte(`{"properties":{` + strings.Join(properties, ",") + `}}`)})
	}
	a := agentVersions{loops: make(map[string]schema.Version), build: "v1"}
	a.add(map[string]Loop{"large": {Tools: tools}, "small": {Tools: tools[:1]}}, true)
	require.Empty(t, a.of("large").Tools)
	require.NotEmpty(t, a.of("large").ToolsDigest)
	require.Len(t, a.of("small").Tools, 1)
	require.Len(t, a.all([]string{"large", "small", schema.AnyAgent}), 2)
	tools[0].Version = "2"
	b := agentVersions{loops: make(map[string]schema.Version), build: "v1"}
	b.add(map[string]Loop{"large": {Tools: tools}}, true)
	require.Equal(t, []string{"the tools changed: they are too many to compare"}, schema.Drift(a.of("large"), b.of("large"), nil))
}
