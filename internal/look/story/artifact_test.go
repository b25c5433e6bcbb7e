package story

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func FuzzArtifact(f *testing.F) {
	f.Add([]byte(`"YQ=="`))
	f.Add([]byte(`{"a":1}`))
	f.Add([]byte(nil))
	f.Fuzz(func(t *testing.T, value []byte) {
		list := Contents(value)
		require.NotEmpty(t, list)
		require.Equal(t, string(value), string(list[len(list)-1]), "the value itself is always among what it may stand for")
	})
}
