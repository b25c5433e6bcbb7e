package kvstore

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// paged is a server that answers with pages of some keys.
func paged(keys *[]string, size int, between func(offset int)) func(int) ([]string, bool, error) {
	return func(offset int) ([]string, bool, error) {
		between(offset)
		from := min(offset, len(*keys))
		page := slices.Clone((*keys)[from:min(from+size, len(*keys))])
		return page, len(page) > 0 && offset+len(page) < len(*keys), nil
	}
}

func TestKeys_DeletedBetweenPages_HideNone(t *testing.T) {
	for _, goes := range []int{0, 1, 3, 9, 40, 99} {
		t.Run(fmt.Sprintf("%d go", goes), func(t *testing.T) {
			var keys, stay []string
			for i := range 100 {
				key := fmt.Sprintf("k%02d", i)
				keys = append(keys, key)
				if i >= goes {
					stay = append(stay, key)
				}
			}
			asked := 0
			var got []string
			require.NoError(t, everyPage(paged(&keys, 10, func(int) {
				if asked++; asked == 5 {
					keys = slices.Clone(keys[goes:])
				}
			}), func(key string) { got = append(got, key) }))
			require.True(t, slices.IsSorted(got))
			require.Equal(t, got, slices.Compact(slices.Clone(got)), "each comes once")
			for _, key := range stay {
				require.Contains(t, got, key)
			}
		})
	}
}

func TestKeys_Pages_End(t *testing.T) {
	for size := 2; size < 7; size++ {
		for n := range 13 {
			var keys, got []string
			for i := range n {
				keys = append(keys, fmt.Sprintf("k%02d", i))
			}
			require.NoError(t, everyPage(paged(&keys, size, func(int) {}), func(key string) { got = append(got, key) }))
			require.Equal(t, keys, got, "%d keys in pages of %d", n, size)
		}
	}
	// A server that counts more than it shows: keys that are no valid text look alike.
	require.NoError(t, everyPage(func(int) ([]string, bool, error) { return []string{"k", "k\ufffd"}, true, nil }, func(string) {}))
}
