package fold

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/schema"
)

func TestSafeMark_PositionAges_SafeOnceItIsOldEnough(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_700_000_000, 0)
	at := func(n schema.StreamSequence) schema.Position { return schema.Position{Stream: n, ID: "x"} }
	x := safeMark{after: time.Second}
	x.begin(at(2), at(5), now)
	require.Equal(t, at(2), x.position(now), "a power cut may still undo the others")
	now = now.Add(x.after / 2)
	x.note(at(7), now)
	x.note(at(7), now.Add(x.after/4))
	require.Equal(t, at(2), x.position(now))
	now = now.Add(x.after / 2)
	x.note(at(9), now)
	require.Equal(t, at(5), x.position(now))
	require.Equal(t, at(7), x.position(now.Add(x.after/2)))
	require.Equal(t, at(9), x.position(now.Add(time.Hour)))
}
