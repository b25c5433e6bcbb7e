package fold

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/harness/fleettest"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

func TestSafeMark_WatermarkAges_IsPutOnceItIsOldEnough(t *testing.T) {
	t.Parallel()
	w := fleettest.New(t)
	x := &safeMark{store: kvstore.NewSafeWatermarks(w.JS), names: w.Names, after: time.Second, now: w.Clock.Now}
	_, err := x.read(t.Context())
	require.ErrorIs(t, err, kvstore.ErrNotFound)
	at := func(n schema.StreamSequence) *kvstore.Watermark {
		return &kvstore.Watermark{Incarnation: "i", Position: schema.Position{Stream: n, ID: "x"}}
	}
	require.NoError(t, x.move(t.Context(), at(5)))
	_, err = x.read(t.Context())
	require.ErrorIs(t, err, kvstore.ErrNotFound, "a power cut may still take it back")
	w.Clock.Forward(x.after / 2)
	require.NoError(t, x.move(t.Context(), at(7)))
	w.Clock.Forward(x.after / 2)
	require.NoError(t, x.move(t.Context(), at(9)))
	safe, err := x.read(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 5, safe.Position.Stream)

	// Another worker puts its own: this worker's revision is no longer that of the bucket.
	other := &safeMark{store: x.store, names: x.names, after: time.Second, now: w.Clock.Now, rev: x.rev}
	require.NoError(t, other.move(t.Context(), at(20)))
	w.Clock.Forward(time.Second)
	require.NoError(t, other.move(t.Context(), at(20)))
	require.ErrorIs(t, x.move(t.Context(), at(9)), errSuperseded)
}
