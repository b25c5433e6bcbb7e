package mutant_test

import (
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/harness/mutant"
)

func TestAll_PatchFiles_SayWhatTheyBreak(t *testing.T) {
	t.Parallel()
	all, err := mutant.All()
	require.NoError(t, err)
	require.GreaterOrEqual(t, len(all), 12)
	for _, m := range all {
		require.Regexp(t, `^[a-z]+(-[a-z]+)*$`, m.Name)
		require.Regexp(t, `^(internal/(harness/)?)?[a-z0-9]+\.Test\w+$`, m.FoundBy, m.Name)
	}
}

// It passes with the overlay and without it: "make chaos-check" runs it with the overlay.
func TestSwitch_OneMutant_IsOnUntilUndone(t *testing.T) {
	require.False(t, mutant.On("no-cas"))
	_, err := mutant.Switch("no-cash")
	require.ErrorContains(t, err, "there is no mutant")
	undo, err := mutant.Switch("no-cas")
	if !mutant.Overlaid {
		require.ErrorContains(t, err, "build it with the overlay")
		require.False(t, mutant.On("no-cas"))
		return
	}
	require.NoError(t, err)
	require.True(t, mutant.On("no-cas"))
	require.False(t, mutant.On("no-barrier"))
	undo()
	require.False(t, mutant.On("no-cas"))
}

// TestVariable_OfAProcess_SwitchesOneMutant starts this binary again.
func TestVariable_OfAProcess_SwitchesOneMutant(t *testing.T) {
	if os.Getenv(mutant.Variable) != "" {
		require.True(t, mutant.On(os.Getenv(mutant.Variable)))
		return
	}
	t.Parallel()
	child := func(name string) (string, error) {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run", "^"+t.Name()+"$")
		cmd.Env = append(os.Environ(), mutant.Variable+"="+name)
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	out, err := child("no-cash")
	require.Error(t, err)
	require.Contains(t, out, "there is no mutant")
	out, err = child("no-cas")
	if !mutant.Overlaid {
		require.Error(t, err)
		require.Contains(t, out, "build it with the overlay")
		return
	}
	require.NoError(t, err, out)
}

// eachMistake requires that a check finds nothing wrong in the product, and exactly what it must in each mutant.
func eachMistake(t *testing.T, check func(*testing.T) []string, wants map[string]string) {
	t.Helper()
	require.Empty(t, check(t))
	if !mutant.Overlaid {
		return // "make chaos-check" runs it with the overlay
	}
	for name, want := range wants {
		off, err := mutant.Switch(name)
		require.NoError(t, err)
		wrong := check(t)
		off()
		require.Equal(t, []string{want}, wrong, name)
	}
}
