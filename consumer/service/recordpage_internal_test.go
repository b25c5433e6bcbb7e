package service

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/schema"
)

// A page of 2,048 records of 400 KiB each was held whole, 800 MiB of it, for an answer of a megabyte.
func TestRecordPage_MoreThanFits_IsNotHeld(t *testing.T) {
	t.Parallel()
	const n, fit = 2048, 4
	view := func(i int64) *schema.RecordView {
		return &schema.RecordView{Record: i, Event: []byte(strings.Repeat("x", 1000-recordOverhead))}
	}
	newest := recordPage{limit: fit*1000 + 100, head: 50}
	for i := range int64(n) {
		require.NoError(t, newest.add(view(i+1)))
		require.LessOrEqual(t, len(newest.list), fit)
		require.LessOrEqual(t, cap(newest.list), 4*fit, "dropped records are not held")
	}
	require.EqualValues(t, n-fit+1, newest.list[0].Record)
	first := recordPage{limit: fit*1000 + 100, head: 50, ahead: true}
	for i := range int64(fit) {
		require.NoError(t, first.add(view(i+1)))
	}
	require.ErrorIs(t, first.add(view(fit+1)), errPageFull, "nothing is read that is not shown")
	require.Len(t, first.list, fit)
	single := recordPage{limit: 10, ahead: true}
	require.NoError(t, single.add(view(1)), "a page has one record at least")
}
