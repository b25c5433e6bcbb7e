package main

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/publisher/waymarktest"
)

func TestRun_Files_WrittenAndListed(t *testing.T) {
	t.Parallel()
	w := waymarktest.Start(t)
	var out, complaints bytes.Buffer
	cfg := publisher.Config{Conn: w.Conn()}
	require.NoError(t, run(t.Context(), []string{"-prefix", "again-", "transcript/testdata/mill-array.json"}, cfg, &out, &complaints))
	require.Equal(t, "again-mill-array-1\tagent openai-chat\t1 turns\t0 calls\t2 messages\nagain-second\tagent openai-chat\t1 turns\t0 calls\t2 messages\n", out.String())
	require.Empty(t, complaints.String())
	require.Equal(t, "completed", string(w.Status("again-second")))

	require.NoError(t, run(t.Context(), []string{"-dry-run", "transcript/testdata/mill-array.json"}, cfg, &out, &complaints))
	_, err := w.Reader().Head(t.Context(), "second")
	require.ErrorIs(t, err, publisher.ErrRunNotFound)

	require.ErrorContains(t, run(t.Context(), nil, cfg, &out, &complaints), "no file")
	require.ErrorContains(t, run(t.Context(), []string{"main.go"}, cfg, &out, &complaints), "main.go")
}
