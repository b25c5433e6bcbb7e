package publisher

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestBlobCache_Full_KeepsItsBound(t *testing.T) {
	t.Parallel()
	c := blobCache{most: 10, blobs: make(map[string][]byte)}
	for i := range 20 {
		c.add(fmt.Sprint(i), []byte("abc"))
		require.Equal(t, "abc", string(c.get(fmt.Sprint(i))), "the latest is kept")
		require.LessOrEqual(t, c.size, c.most)
		require.EqualValues(t, 3*len(c.blobs), c.size)
	}
	require.Len(t, c.blobs, 3)
	c.add("large", make([]byte, 11))
	require.Nil(t, c.get("large"))
	require.Len(t, c.blobs, 3, "it drops no other")
}

func TestBlobCache_CallerChangesItsCopy_EntryStays(t *testing.T) {
	t.Parallel()
	c := blobCache{most: 10, blobs: make(map[string][]byte)}
	given := []byte("abc")
	c.add("a", given)
	given[0] = 'x'
	c.get("a")[1] = 'x'
	require.Equal(t, "abc", string(c.get("a")))
	none := new(blobCache)
	none.add("a", given)
	require.Nil(t, none.get("a"))
}
