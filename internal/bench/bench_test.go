package bench_test

import (
	"bytes"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/bench"
	"github.com/waymarkio/waymark/internal/natstest"
)

// quick are options under which a case takes seconds.
func quick(t *testing.T) bench.Options {
	t.Helper()
	return bench.Options{Quick: true, Child: child, Store: t.TempDir(), Version: "test", Logger: natstest.Logger(t)}
}

// measure runs cases and returns their lines, after they were written and read again.
func measure(t *testing.T, o bench.Options, cases ...bench.Case) []bench.Result {
	t.Helper()
	var lines bytes.Buffer
	require.NoError(t, bench.Run(t.Context(), cases, o, func(r *bench.Result) error {
		_, err := r.WriteTo(&lines)
		return err
	}))
	results, err := bench.ReadResults(&lines)
	require.NoError(t, err)
	left, err := os.ReadDir(o.Store)
	require.NoError(t, err)
	require.Empty(t, left, "the temporary directories are gone")
	return results
}

func TestEveryCaseGivesAWellFormedLineForEachVariant(t *testing.T) {
	for _, c := range bench.Cases() {
		t.Run(c.Name, func(t *testing.T) {
			t.Parallel()
			o := quick(t)
			results := measure(t, o, c)
			require.Len(t, results, len(c.Variants(o.Defaults())))
			for _, r := range results {
				require.Empty(t, r.Error)
				require.Equal(t, c.Name, r.Case)
				require.True(t, r.Quick)
				require.NotZero(t, r.Verified, "it was read back")
				require.NotNil(t, r.Ours)
				require.Positive(t, r.Ours.Count)
				require.NotEmpty(t, r.Aims, "it says what is to be reached")
				require.Equal(t, "test", r.Version)
				require.NotZero(t, r.Machine.CPUs)
				require.NotEmpty(t, r.Began)
			}
		})
	}
}
