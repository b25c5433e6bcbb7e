package publisher_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

func TestRead_AtPoint_Exact(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve()
	f := w.fleet()
	run := start(t, f, "r1")
	for n := range 4 {
		_, err := openTurn(t, run).Answer(t.Context(), publisher.Answer{Message: assistant(schema.Text(fmt.Sprint(n)))})
		require.NoError(t, err)
		if n == 1 {
			require.NoError(t, run.Mark(t.Context(), "half"))
		}
	}
	log := w.log("r1")
	for text, n := range map[string]int{"turn:2": 3, "mark:half": 4, "seq:1": 1, "seq:1.5": 5, "turn:4": 6, "end": 6} {
		point, err := schema.ParsePoint(text)
		require.NoError(t, err)
		want := schema.NewState("default", "r1")
		for i := range n {
			want.Apply(schema.NoKeys, &log[i])
		}
		want.Settle()
		state, err := f.GetAt(t.Context(), "r1", point)
		require.NoError(t, err)
		require.Equal(t, want, state, text)
		head, err := f.HeadAt(t.Context(), "r1", point)
		require.NoError(t, err)
		require.Equal(t, want.Head, head, text)
		var got []schema.Record
		require.NoError(t, f.Walk(t.Context(), "r1", point, func(step *schema.Step) error {
			got = append(got, step.Record)
			return nil
		}))
		require.Len(t, got, n)
		require.True(t, log[n-1].Equal(&got[n-1]))
	}

	missing := schema.Point{Kind: schema.PointTurn, Number: 9}
	_, err := f.GetAt(t.Context(), "r1", missing)
	require.ErrorIs(t, err, publisher.ErrPointNotFound)
	_, err = f.HeadAt(t.Context(), "r1", missing)
	require.ErrorIs(t, err, publisher.ErrPointNotFound)

	run = resume(t, f, "r1")
	require.NoError(t, run.Mark(t.Context(), "later"))
	_, err = f.GetAt(t.Context(), "r1", schema.Point{Kind: schema.PointSequence, Number: 1})
	require.ErrorIs(t, err, publisher.ErrPointAmbiguous)
}
