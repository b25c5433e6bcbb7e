package schema_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/schema"
)

func TestBlobID_Object_NamesOwner(t *testing.T) {
	// As sha256sum prints it, so that executors in other languages can make the same.
	require.Equal(t, "82f3e9c695dc6b8d1b11818d5701919e", schema.BlobMark("r1"))
	longest := schema.BlobID(strings.Repeat("r", schema.MaxName), strings.Repeat("x", 31))
	require.True(t, schema.ValidName(longest), "it is one token of a subject")
	for _, run := range []string{"r1", "r11", "R1", strings.Repeat("r", schema.MaxName)} {
		id := schema.BlobID(run, "x")
		mark, ok := schema.MarkOfBlobID(id)
		require.True(t, ok)
		require.Equal(t, schema.BlobMark(run), mark)
		require.False(t, schema.ForeignBlobID(run, id))
		require.True(t, schema.ForeignBlobID("another", id))
	}
	mark := schema.BlobMark("r1")
	for _, without := range []string{
		"", "-", "2dWhqLr1m9uWTE4sD3cCqj", mark, mark + "-", mark + "x", mark[1:] + "-x", strings.ToUpper(mark) + "-x", "g" + mark[1:] + "-x", "*" + mark[1:] + "-x",
	} {
		_, ok := schema.MarkOfBlobID(without)
		require.False(t, ok, without)
		require.False(t, schema.ForeignBlobID("r2", without), "it belongs to the run that describes it: %s", without)
	}
}
