package archive

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/schema"
)

func TestOpen_ManifestContradictsRun_Refused(t *testing.T) {
	t.Parallel()
	w := schema.Writer{Fleet: "alpha", Run: "r1", Executor: "exec-1", Epoch: 1}
	e, err := w.Event(&schema.RunStartedData{Agent: "coder", Executor: "exec-1"}, 0, time.Unix(1_700_000_000, 0), 0)
	require.NoError(t, err)
	header, body := e.Encode()
	rec := schema.NewRecord(1, header, body)
	is := newTally(schema.NoKeys, "r1")
	is.add(&rec)
	want := is.run()
	require.Equal(t, "coder", want.Agent)
	require.Empty(t, is.same(&want))
	want.Agent = "another-agent"
	require.Contains(t, is.same(&want), "agent")
	want = is.run()
	want.Base = &schema.BaseRef{Run: "another", Records: 1}
	require.Contains(t, is.same(&want), "base")
}
