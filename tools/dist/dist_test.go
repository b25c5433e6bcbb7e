package main

import (
	"bytes"
	"context"
	"debug/buildinfo"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/stretchr/testify/require"
)

// checkVariable is the folder that "make distcheck" fills: releases 0.1.0, 0.1.1 and once more 0.1.1, and the root of a Debian system.
const checkVariable = "WAYMARK_DISTCHECK"

// built is that folder.
func built(t *testing.T) string {
	t.Helper()
	dir := os.Getenv(checkVariable)
	if dir == "" {
		t.Skip("packages and image: NOT PROVEN here; run, as root on Linux: make distcheck")
	}
	return dir
}

// theFile is the one that a pattern names.
func theFile(t *testing.T, pattern ...string) string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(pattern...))
	require.NoError(t, err)
	require.Len(t, files, 1, "%s", pattern)
	return files[0]
}

func TestRelease_SameCommitTwice_SameBytes(t *testing.T) {
	dir := built(t)
	once, err := os.ReadFile(filepath.Join(dir, "0.1.1", "SHA256SUMS"))
	require.NoError(t, err)
	again, err := os.ReadFile(filepath.Join(dir, "again", "SHA256SUMS"))
	require.NoError(t, err)
	require.Equal(t, string(once), string(again))
	for _, kind := range []string{`\.tar\.gz`, `\.deb`, `\.rpm`, `_image\.tar`, `\.cdx\.json`} {
		require.Regexp(t, `(?m)^[0-9a-f]{64}  waymark\S*`+kind+`$`, string(once))
	}
	sums := exec.CommandContext(t.Context(), "sha256sum", "--check", "--strict", "SHA256SUMS")
	sums.Dir = filepath.Join(dir, "0.1.1")
	out, err := sums.CombinedOutput()
	require.NoError(t, err, "%s", out)
}

func TestPackages_Lifecycle_KeepsTheRuns(t *testing.T) {
	dir := built(t)
	for _, mode := range []string{"systemd", "plain"} {
		for _, kind := range []string{"deb", "rpm"} {
			t.Run(kind+"_"+mode, func(t *testing.T) { lifecycle(t, dir, kind, mode) })
		}
	}
}

// lifecycle runs the script in a machine of its own: a Debian system whose changes are thrown away, without any network but its loopback.
func lifecycle(t *testing.T, dir, kind, mode string) {
	t.Helper()
	out := filepath.Join(t.TempDir(), "out")
	require.NoError(t, os.Mkdir(out, 0o700))
	here, err := filepath.Abs("testdata")
	require.NoError(t, err)
	args := []string{
		"--quiet", "--register=no", "--keep-unit", "--private-network", "--volatile=overlay", "--directory=" + filepath.Join(dir, "root"),
		"--bind-ro=" + dir + ":/pkg", "--bind-ro=" + here + ":/script", "--bind=" + out + ":/out",
	}
	script := "/bin/sh /script/lifecycle.sh " + kind + " " + mode + " >/out/said 2>&1"
	if mode == "systemd" {
		unit := filepath.Join(t.TempDir(), "distcheck.service")
		require.NoError(t, os.WriteFile(unit, []byte("[Unit]\nSuccessAction=exit\nFailureAction=exit\n[Service]\nType=oneshot\nExecStart=/bin/sh -c '"+script+"'\n"), 0o644)) //nolint:gosec // as units are
		args = append(args, "--bind-ro="+unit+":/etc/systemd/system/distcheck.service", "--boot", "systemd.wants=distcheck.service", "systemd.show_status=no")
	} else {
		args = append(args, "--as-pid2", "/bin/sh", "-c", script)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	machine := exec.CommandContext(ctx, "systemd-nspawn", args...) //nolint:gosec // named above
	machine.Env = append(os.Environ(), "SYSTEMD_NSPAWN_LOCK=0")
	console, err := machine.CombinedOutput()
	said, readErr := os.ReadFile(filepath.Join(out, "said"))
	require.NoError(t, readErr, "%s", console)
	t.Logf("%s", said)
	require.NoError(t, err, "%s", console)
	require.True(t, strings.HasSuffix(strings.TrimSpace(string(said)), "== passed: "+kind+" "+mode), "the script did not come to its end")
}

func TestImage_NewVersionOnTheVolume_KeepsTheRuns(t *testing.T) {
	dir := built(t)
	work := t.TempDir()
	var roots []string
	var command []string
	for _, version := range []string{"0.1.0", "0.1.1"} {
		oci, root := filepath.Join(work, version+".oci"), filepath.Join(work, version)
		require.NoError(t, os.Mkdir(oci, 0o700))
		require.NoError(t, os.Mkdir(root, 0o755)) //nolint:gosec // the image's user enters it
		untar(t, nil, "-xf", theFile(t, dir, version, "*_image.tar"), "-C", oci)
		index, err := layout.ImageIndexFromPath(oci)
		require.NoError(t, err)
		outer, err := index.IndexManifest()
		require.NoError(t, err)
		require.Len(t, outer.Manifests, 1)
		require.Equal(t, version, outer.Manifests[0].Annotations["org.opencontainers.image.ref.name"])
		platforms, err := index.ImageIndex(outer.Manifests[0].Digest)
		require.NoError(t, err)
		inner, err := platforms.IndexManifest()
		require.NoError(t, err)
		require.Equal(t, "amd64", inner.Manifests[0].Platform.Architecture)
		if version == "0.1.0" {
			require.Equal(t, "arm64", inner.Manifests[1].Platform.Architecture)
		}
		img, err := platforms.Image(inner.Manifests[0].Digest)
		require.NoError(t, err)
		config, err := img.ConfigFile()
		require.NoError(t, err)
		require.Equal(t, "65532:65532", config.Config.User)
		require.Equal(t, []string{"/usr/local/bin/waymark"}, config.Config.Entrypoint)
		require.Contains(t, config.Config.Env, "WAYMARK_STATE_DIR=/var/lib/waymark")
		command = config.Config.Cmd
		untar(t, mutate.Extract(img), "-x", "--numeric-owner", "-C", root)
		require.NoError(t, os.Mkdir(filepath.Join(root, "proc"), 0o755)) //nolint:gosec // a container has it
		info, err := buildinfo.ReadFile(filepath.Join(root, "usr/local/bin/waymark"))
		require.NoError(t, err)
		require.Equal(t, "v"+version, info.Main.Version)
		roots = append(roots, root)
	}
	script := exec.CommandContext(t.Context(), "unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "sh", "testdata/image.sh", roots[0], roots[1]) //nolint:gosec // named above
	script.Env = []string{"PATH=" + os.Getenv("PATH"), "IMAGE_CMD=" + strings.Join(command, " ")}
	out, err := script.CombinedOutput()
	t.Logf("%s", out)
	require.NoError(t, err)
	verified := regexp.MustCompile(`(?m)^[2-9] runs with \d+ events verified, 0 damaged$`).FindAllString(string(out), -1)
	require.Len(t, verified, 2)
	require.Equal(t, verified[0], verified[1], "the newer version has what the older one wrote")
	require.Contains(t, string(out), "== passed: image")
}

func untar(t *testing.T, in io.Reader, args ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "tar", args...) //nolint:gosec // named above
	cmd.Stdin = in
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
}

// What the Dockerfile builds and what is released are the same image, by what both say of it.
func TestImage_Config_IsThatOfTheDockerfile(t *testing.T) {
	text, err := os.ReadFile("../../deploy/container/Dockerfile")
	require.NoError(t, err)
	r := &release{root: "../..", version: "0.1.0", time: time.Unix(1, 0).UTC()}
	img, err := r.platformImage(platform{"linux", "amd64"}, []byte("binary"))
	require.NoError(t, err)
	config, err := img.ConfigFile()
	require.NoError(t, err)
	_, last, _ := strings.Cut(string(text), "FROM scratch\n")
	require.Contains(t, last, "USER "+config.Config.User+"\n")
	require.Contains(t, last, `ENTRYPOINT ["`+strings.Join(config.Config.Entrypoint, `", "`)+`"]`)
	require.Contains(t, last, `CMD ["`+strings.Join(config.Config.Cmd, `", "`)+`"]`)
	require.Contains(t, last, "STOPSIGNAL "+config.Config.StopSignal+"\n")
	require.Contains(t, config.Config.Env, regexp.MustCompile(`(?m)^ENV (\S+)$`).FindStringSubmatch(last)[1])
	for volume := range config.Config.Volumes {
		require.Contains(t, last, `VOLUME ["`+volume+`"]`)
	}
}

func TestAuthorities_EachBlock_IsACertificate(t *testing.T) {
	require.Greater(t, bytes.Count(authorities(), []byte("-----BEGIN CERTIFICATE-----\n")), 100)
}

func TestNotices_TextsOfOwners_AreThere(t *testing.T) {
	text, err := notices(t.Context(), "../..")
	require.NoError(t, err)
	for _, words := range []string{"Copyright 2009 The Go Authors", "github.com/nats-io/nats-server/v2 v", "Apache License", "github.com/klauspost/compress v"} {
		require.Contains(t, string(text), words)
	}
	require.Greater(t, strings.Count(string(text), strings.Repeat("=", 80)), 25)
}

func TestVersion_NotSemantic_IsRefused(t *testing.T) {
	for version, want := range map[string]bool{"0.1.0": true, "1.2.3-rc.1": true, "v0.1.0": false, "0.1": false, "0.1.0~rc1": false, "01.1.0": false} {
		require.Equal(t, want, semantic.MatchString(version), version)
	}
}
