package deploycheck_test

import (
	"bytes"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/compose-spec/compose-go/v2/loader"
	"github.com/compose-spec/compose-go/v2/types"
	"github.com/moby/buildkit/frontend/dockerfile/instructions"
	"github.com/moby/buildkit/frontend/dockerfile/parser"
	"github.com/stretchr/testify/require"
)

func TestTheComposeFileLoads(t *testing.T) {
	dir, err := filepath.Abs(in("compose"))
	require.NoError(t, err)
	project, err := loader.LoadWithContext(t.Context(), types.ConfigDetails{
		WorkingDir: dir, ConfigFiles: []types.ConfigFile{{Filename: filepath.Join(dir, "compose.yaml")}}, Environment: types.Mapping{},
	})
	require.NoError(t, err)
	require.Len(t, project.Services, 7)
	for name, service := range project.Services {
		require.Equal(t, []string{"ALL"}, service.CapDrop, name)
		require.Contains(t, service.SecurityOpt, "no-new-privileges:true", name)
		for _, port := range service.Ports {
			require.Equal(t, "127.0.0.1", port.HostIP, "%s is for this machine", name)
		}
		for _, v := range service.Volumes {
			// Secrets are made by whoever starts it.
			if v.Type == types.VolumeTypeBind && !strings.Contains(v.Source, "secrets") {
				require.FileExists(t, v.Source, name)
			}
		}
	}
}

func TestTheDockerfileMakesAStaticImageWithoutRoot(t *testing.T) {
	parsed, err := parser.Parse(bytes.NewReader(read(t, "container", "Dockerfile")))
	require.NoError(t, err)
	require.Empty(t, parsed.Warnings)
	stages, _, err := instructions.Parse(parsed.AST, nil)
	require.NoError(t, err)
	last := stages[len(stages)-1]
	require.Equal(t, "scratch", last.BaseName)
	user := ""
	for _, c := range last.Commands {
		if u, ok := c.(*instructions.UserCommand); ok {
			user = u.User
		}
		_, runs := c.(*instructions.RunCommand)
		require.False(t, runs, "nothing runs in an image from scratch")
	}
	require.Equal(t, "65532:65532", user)
	static := slices.ContainsFunc(stages[0].Commands, func(c instructions.Command) bool {
		r, ok := c.(*instructions.RunCommand)
		return ok && strings.Contains(strings.Join(r.CmdLine, " "), "CGO_ENABLED=0")
	})
	require.True(t, static)
}
