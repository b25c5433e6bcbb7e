package service

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/schema"
)

// An index entry of an older version does not count the held calls, and one that cannot be read counts nothing. The run's
// checkpoint decides about both.
func TestList_Held_EntryOfAnOlderVersionIsNotLeftOut(t *testing.T) {
	t.Parallel()
	entry := func(format, open, held int) *schema.Ended {
		return &schema.Ended{Format: format, RunSummary: schema.RunSummary{Status: schema.StatusCancelled, OpenCalls: open, Held: held}}
	}
	for _, all := range []bool{false, true} {
		l := &listing{req: &schema.ListRequest{Held: !all}}
		match := l.query(0, 0).Match
		require.True(t, match(entry(schema.EndedFormat, 1, 1)))
		require.True(t, match(entry(schema.EndedFormat, 1, 0)), "older")
		require.True(t, match(entry(0, 0, 0)), "unreadable")
		require.Equal(t, all, match(entry(schema.EndedFormat, 0, 0)))
	}
}
