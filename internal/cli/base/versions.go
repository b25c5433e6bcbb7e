package base

import (
	"io"
	"regexp"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/waymarkio/waymark/internal/base/output"
	"github.com/waymarkio/waymark/internal/nats/natsd"
)

// VersionInfo is what --version prints.
type VersionInfo struct {
	Waymark, Revision string
	// CommitTime of the revision, RFC 3339. Modified: the build has uncommitted changes.
	CommitTime               string
	Modified                 bool
	NATSServer, Go, Platform string
}

// Versions reads the version stamps of the Go toolchain from the binary.
func Versions() VersionInfo {
	v := VersionInfo{
		Waymark: "devel", NATSServer: natsd.Version(),
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
		switch s.Key {
		case "vcs.revision":
			v.Revision = s.Value
		case "vcs.time":
			v.CommitTime = s.Value
		case "vcs.modified":
			v.Modified = s.Value == "true"
		}
	}
	return v
}

// Write prints the versions for people.
func (v VersionInfo) Write(w io.Writer) error {
	commit := v.Revision
	if commit == "" {
		commit = "unknown: this build did not record it"
	}
	if v.CommitTime != "" {
		commit += ", of " + v.CommitTime
	}
	if v.Modified {
		commit += ", with uncommitted changes"
	}
	return output.Fields(w, "waymark", v.Waymark, "commit", commit, "go", v.Go, "nats-server", v.NATSServer, "platform", v.Platform)
}

// ServiceVersion is the version in the form of NATS micro: semantic, without the v. That of no release has its commit.
func ServiceVersion() string {
	v := Versions()
	version := strings.TrimPrefix(v.Waymark, "v")
	switch {
	case semantic.MatchString(version):
		return version
	case v.Revision != "":
		return "0.0.0-" + version + "+" + v.Revision[:min(len(v.Revision), 12)]
	}
	return "0.0.0-" + version
}

// semantic is the form that NATS micro accepts.
var semantic = regexp.MustCompile(`^(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(-[0-9A-Za-z.-]+)?(\+[0-9A-Za-z.-]+)?$`)
