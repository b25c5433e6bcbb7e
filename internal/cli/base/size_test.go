package base

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestByteSize_Texts_ParseAndPrint(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]ByteSize{
		"0": 0, "4096": 4096, "64KiB": 64 << 10, "1.5MiB": 3 << 19, "10GiB": 10 << 30, "10g": 10 << 30, "1GB": 1e9, " 2 TB ": 2e12, "7b": 7,
	} {
		got, err := parseByteSize(text)
		require.NoError(t, err, text)
		require.Equal(t, want, got, text)
	}
	for _, text := range []string{"", "x", "-1", "1PiB", "NaN", "1e30", "GiB", "10 000"} {
		_, err := parseByteSize(text)
		require.ErrorContains(t, err, "is not a size", text)
	}
}

func TestByteSize_AsAFlag_IsReadAsTheSameSize(t *testing.T) {
	t.Parallel()
	for size, want := range map[ByteSize]string{
		1: "1", 1000: "1000", 1 << 10: "1KiB", 64<<20 + 1: "67108865", 1536 << 10: "1536KiB", 3 << 30: "3GiB", 5 << 40: "5120GiB",
	} {
		require.Equal(t, want, size.Flag())
		back, err := parseByteSize(size.Flag())
		require.NoError(t, err)
		require.Equal(t, size, back)
	}
}
