package deploycheck_test

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/compose-spec/compose-go/v2/loader"
	"github.com/compose-spec/compose-go/v2/types"
	"github.com/distribution/reference"
	"github.com/moby/buildkit/frontend/dockerfile/instructions"
	"github.com/moby/buildkit/frontend/dockerfile/parser"
	"github.com/stretchr/testify/require"
)

func TestCompose_File_Loads(t *testing.T) {
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
		if strings.HasPrefix(name, "nats-") || strings.HasPrefix(name, "waymark-") {
			require.NotNil(t, service.Ulimits["core"], "%s has keys, and a core file would have them, too", name)
			require.Zero(t, service.Ulimits["core"].Single, name)
		}
		for _, port := range service.Ports {
			require.Equal(t, "127.0.0.1", port.HostIP, "%s is for this machine", name)
		}
		for _, v := range service.Volumes {
			// The user that starts it creates the secrets.
			switch secret := strings.Contains(v.Source, "secrets"); {
			case v.Type != types.VolumeTypeBind:
			case secret && filepath.Base(v.Source) == "server":
				// A file that is replaced stays the old one in a container that was given the file: a revoked key would stay valid.
				require.True(t, strings.HasPrefix(name, "nats-"), "%s gets the servers' key", name)
			case secret:
				require.NotEmpty(t, filepath.Ext(v.Source), "%s gets a directory of secrets, %s: name the file", name, v.Source)
				if filepath.Ext(v.Source) == ".nk" {
					require.Equal(t, "payments-daemon.nk", filepath.Base(v.Source), "%s gets the key of another role", name)
					require.True(t, strings.HasPrefix(name, "waymark-"), "%s gets a key", name)
				}
			default:
				require.FileExists(t, v.Source, name)
			}
		}
	}
}

func TestDockerfile_Image_StaticWithoutRoot(t *testing.T) {
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

// Each image of the compose file can be named by its digest, with the variable that the file says; the reference is one that Docker reads.
func TestComposeFile_ImagesByDigest_AreTheImages(t *testing.T) {
	dir, err := filepath.Abs(in("compose"))
	require.NoError(t, err)
	digest := "@sha256:" + strings.Repeat("cd", 32)
	pinned := types.Mapping{
		"NATS_IMAGE": "nats" + digest, "PROMETHEUS_IMAGE": "prom/prometheus:v3.5.0" + digest, "GRAFANA_IMAGE": "grafana/grafana" + digest,
		"WAYMARK_IMAGE": "registry.example.com:5000/waymark" + digest,
	}
	for want, environment := range map[bool]types.Mapping{true: pinned, false: {}} {
		project, err := loader.LoadWithContext(t.Context(), types.ConfigDetails{
			WorkingDir: dir, ConfigFiles: []types.ConfigFile{{Filename: filepath.Join(dir, "compose.yaml")}}, Environment: environment,
		})
		require.NoError(t, err)
		for name, service := range project.Services {
			image, err := reference.ParseNormalizedNamed(service.Image)
			require.NoError(t, err, name)
			_, byDigest := image.(reference.Digested)
			require.Equal(t, want, byDigest, "%s: %s", name, service.Image)
		}
	}
	text := string(read(t, "compose", "compose.yaml"))
	deploy, err := os.ReadFile(filepath.Join("..", "..", "docs", "deploy.md"))
	require.NoError(t, err)
	for _, name := range []string{"NATS_IMAGE", "PROMETHEUS_IMAGE", "GRAFANA_IMAGE", "WAYMARK_IMAGE"} {
		require.Contains(t, text, name)
		require.Contains(t, string(deploy), name, "how to pin it is written down")
	}
}
