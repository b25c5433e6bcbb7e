package runs

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/cli/base"
)

// What cannot become a value of the state is refused before the run is taken over and before other values are written.
func TestStateFile_WhatNoValueCanBe_IsRefused(t *testing.T) {
	t.Parallel()
	for name, body := range map[string]string{
		"deep":        `{"a":1,"z":` + strings.Repeat("[", 600) + strings.Repeat("]", 600) + `}`,
		"long key":    `{"a":1,"` + strings.Repeat("k", 300) + `":1}`,
		"control key": `{"a":1,"b\u001b":1}`,
	} {
		file := filepath.Join(t.TempDir(), "state.json")
		require.NoError(t, os.WriteFile(file, []byte(body), 0o600))
		_, err := stateFile(&base.App{}, file)
		require.ErrorContains(t, err, "state.json", name)
	}
	file := filepath.Join(t.TempDir(), "state.json")
	require.NoError(t, os.WriteFile(file, []byte(`{"a":1,"b":{"c":[]}}`), 0o600))
	values, err := stateFile(&base.App{}, file)
	require.NoError(t, err)
	require.Len(t, values, 2)
}

func TestCheckpoint_NameThatNoMarkHas_IsRefusedBeforeTheRunIsTaken(t *testing.T) {
	t.Parallel()
	err := CheckpointCmd{Run_: "r", Unset: []string{"a"}, Name: strings.Repeat("n", 300)}.Run(t.Context(), &base.App{})
	require.ErrorContains(t, err, "--name")
}
