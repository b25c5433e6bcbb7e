package main

import (
	"regexp"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/waymarkio/waymark/internal/natsd"
	"github.com/waymarkio/waymark/schema"
)

// versionInfo is what version prints.
type versionInfo struct {
	Waymark    string `json:"waymark"`
	Revision   string `json:"revision,omitzero"`
	NATSServer string `json:"nats_server"`
	Checkpoint int    `json:"checkpoint_format"`
	Go         string `json:"go"`
	Platform   string `json:"platform"`
}

// versions reads what the toolchain stamped into the binary.
func versions() versionInfo {
	v := versionInfo{
		Waymark: "devel", NATSServer: natsd.Version(), Checkpoint: schema.CheckpointFormat,
		Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH,
	}
	build, ok := debug.ReadBuildInfo()
	if !ok {
		return v
	}
	if build.Main.Version != "" && build.Main.Version != "(devel)" {
		v.Waymark = build.Main.Version
	}
	for _, s := range build.Settings {
		if s.Key == "vcs.revision" {
			v.Revision = s.Value
		}
	}
	return v
}

type versionCmd struct{}

// Run prints the versions.
func (versionCmd) Run(a *app) error {
	v := versions()
	if a.cli.JSON {
		return document(a.stdout, v)
	}
	return printFields(a.stdout, "waymark", v.Waymark, "revision", v.Revision, "nats-server", v.NATSServer,
		"go", v.Go, "platform", v.Platform)
}

// serviceVersion is the version as NATS micro wants it: semantic, without the v.
func serviceVersion() string {
	version := strings.TrimPrefix(versions().Waymark, "v")
	if !semantic.MatchString(version) {
		return "0.0.0-" + version
	}
	return version
}

// semantic is the form that NATS micro accepts.
var semantic = regexp.MustCompile(`^(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(-[0-9A-Za-z.-]+)?(\+[0-9A-Za-z.-]+)?$`)
