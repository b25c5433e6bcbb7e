package cli

import (
	"io"
	"regexp"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/alecthomas/kong"

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
	return v.write(a.stdout)
}

// write prints the versions for people.
func (v versionInfo) write(w io.Writer) error {
	commit := v.Revision
	if commit == "" {
		commit = "not known: this build did not record it"
	}
	return printFields(w, "waymark", v.Waymark, "commit", commit, "go", v.Go, "nats-server", v.NATSServer, "platform", v.Platform)
}

// versionFlag prints the versions and ends the parse.
type versionFlag bool

// BeforeReset is called by kong before the rest of the command line is checked.
func (versionFlag) BeforeReset(ctx *kong.Context) error {
	if err := versions().write(ctx.Stdout); err != nil {
		return err
	}
	return errHelp
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
