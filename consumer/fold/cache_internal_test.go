package fold

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func cached(c *runCache) (ids []string) {
	c.each(func(r *run) bool {
		ids = append(ids, r.id)
		return true
	})
	return ids
}

func TestRunCache_MoreThanItKeeps_EvictsTheOldest(t *testing.T) {
	t.Parallel()
	c := newRunCache(2)
	for _, id := range []string{"old", "used", "new"} {
		c.add(&run{id: id, tail: tailbuffer{room: &frameRoom{}}})
	}
	require.Equal(t, "used", c.get("used").id)
	require.Equal(t, "old", c.peek("old").id, "a look does not count as use")
	require.Nil(t, c.get("none"))
	c.evict()
	require.Equal(t, []string{"used", "new"}, cached(&c))
	c.add(&run{id: "next", tail: tailbuffer{room: &frameRoom{}}})
	c.evict()
	require.Equal(t, []string{"next", "used"}, cached(&c))
}

func TestRunCache_RunIsDropped_IsNotInMemory(t *testing.T) {
	t.Parallel()
	c := newRunCache(2)
	c.drop("none")
	c.add(&run{id: "run-1", tail: tailbuffer{room: &frameRoom{}}})
	c.drop("run-1")
	require.Nil(t, c.peek("run-1"))
	require.Empty(t, cached(&c))
}

func TestRunCache_DroppedWhileItIsWalked_WalkGoesOn(t *testing.T) {
	t.Parallel()
	c := newRunCache(3)
	for _, id := range []string{"a", "b", "c"} {
		c.add(&run{id: id, tail: tailbuffer{room: &frameRoom{}}})
	}
	var seen []string
	c.each(func(r *run) bool {
		seen = append(seen, r.id)
		c.drop(r.id)
		return r.id != "b"
	})
	require.Equal(t, []string{"c", "b"}, seen)
	require.Equal(t, []string{"a"}, cached(&c))
}
