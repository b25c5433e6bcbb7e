package main

import (
	"bytes"
	"context"
	"debug/buildinfo"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, os.Args[1:], os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "dist:", err)
		os.Exit(1) //nolint:forbidigo // this is main
	}
}

// release is a release in the making.
type release struct {
	// root of a clone of its own, in which all is built, and the folder for the files.
	root, out string
	// version without the v, such as 0.1.0; commit is what is built, and time when that was made.
	version, commit string
	time            time.Time
	platforms       []platform
	stdout          io.Writer
	// cyclonedx is the program that writes lists of parts; empty leaves them out.
	cyclonedx string

	notices, manual []byte
}

// platform is a system with a processor, in Go's words.
type platform struct{ os, arch string }

func (p platform) String() string { return p.os + "/" + p.arch }

// all platforms of a release. Linux comes first: its packages fail soonest.
const all = "linux/amd64,linux/arm64,darwin/amd64,darwin/arm64,windows/amd64,windows/arm64"

func parsePlatforms(list string) (platforms []platform, err error) {
	for text := range strings.SplitSeq(list, ",") {
		system, arch, found := strings.Cut(text, "/")
		if !found {
			return nil, fmt.Errorf("%w: -platforms has %q, which is not OS/ARCH", errUsage, text)
		}
		platforms = append(platforms, platform{system, arch})
	}
	return platforms, nil
}

var (
	errUsage     = errors.New("usage")
	errUnstamped = errors.New("the toolchain recorded another version or commit than was built")
	semantic     = regexp.MustCompile(`^(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(-[0-9A-Za-z.]+)?$`)
)

func run(ctx context.Context, args []string, stdout io.Writer) error {
	flags := flag.NewFlagSet("dist", flag.ContinueOnError)
	out := flags.String("out", "", "folder for the files; emptied first")
	version := flags.String("version", "", "version, such as 0.1.0; default: the tag of this commit, else -next with -dev and the commit's time")
	next := flags.String("next", "0.1.0", "version that is worked on")
	platforms := flags.String("platforms", all, "platforms, separated by commas")
	cyclonedx := flags.String("cyclonedx", "", "path of cyclonedx-gomod; without it no lists of parts are written")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *out == "" || flags.NArg() > 0 {
		flags.Usage()
		return errUsage
	}
	root, err := git(ctx, ".", "rev-parse", "--show-toplevel")
	if err != nil {
		return err
	}
	r := &release{root: root, version: *version, cyclonedx: *cyclonedx, stdout: stdout}
	if r.out, err = filepath.Abs(*out); err != nil {
		return err
	}
	if r.platforms, err = parsePlatforms(*platforms); err != nil {
		return err
	}
	if err := r.identify(ctx, *next); err != nil {
		return err
	}
	work, err := os.MkdirTemp("", "waymark-dist-")
	if err != nil {
		return err
	}
	return errors.Join(r.make(ctx, work), os.RemoveAll(work))
}

// identify finds commit and version.
func (r *release) identify(ctx context.Context, next string) (err error) {
	if r.commit, err = git(ctx, r.root, "rev-parse", "HEAD"); err != nil {
		return err
	}
	if status, err := git(ctx, r.root, "status", "--porcelain"); err != nil {
		return err
	} else if status != "" {
		r.say("not built, as it is in no commit:\n%s", status)
	}
	seconds, err := git(ctx, r.root, "log", "-1", "--format=%ct")
	if err != nil {
		return err
	}
	unix, err := strconv.ParseInt(seconds, 10, 64)
	if err != nil {
		return fmt.Errorf("time of the commit: %w", err)
	}
	r.time = time.Unix(unix, 0).UTC()
	if r.version == "" {
		tags, err := git(ctx, r.root, "tag", "--points-at", "HEAD", "--list", "v*", "--sort=-version:refname")
		if err != nil {
			return err
		}
		tag, _, _ := strings.Cut(tags, "\n")
		if r.version = strings.TrimPrefix(tag, "v"); tag == "" {
			r.version = next + "-dev." + r.time.Format("20060102150405")
		}
	}
	if !semantic.MatchString(r.version) {
		return fmt.Errorf("%w: the version %q is not like 0.1.0 or 0.1.0-rc.1", errUsage, r.version)
	}
	// The library that writes packages takes the times of files without one from there.
	return os.Setenv("SOURCE_DATE_EPOCH", seconds)
}

// clone makes a clone whose only tag is the version: the toolchain and the list of parts take the version from it, and only what is committed
// is built.
func (r *release) clone(ctx context.Context, to string) error {
	if _, err := git(ctx, r.root, "clone", "--quiet", "--no-tags", "--no-checkout", r.root, to); err != nil {
		return err
	}
	r.root = to
	if _, err := git(ctx, to, "-c", "advice.detachedHead=false", "checkout", "--quiet", "--detach", r.commit); err != nil {
		return err
	}
	_, err := git(ctx, to, "update-ref", "refs/tags/v"+r.version, r.commit)
	return err
}

// make makes everything, one platform after the other.
func (r *release) make(ctx context.Context, work string) error {
	if err := os.RemoveAll(r.out); err != nil {
		return err
	}
	if err := os.MkdirAll(r.out, 0o755); err != nil { //nolint:gosec // every user may read it
		return err
	}
	if err := r.clone(ctx, filepath.Join(work, "clone")); err != nil {
		return err
	}
	if err := r.prepare(ctx, work); err != nil {
		return err
	}
	images := map[platform][]byte{}
	for _, p := range r.platforms {
		binary, err := r.build(ctx, p, work)
		if err != nil {
			return err
		}
		if err := r.archive(p, binary); err != nil {
			return fmt.Errorf("archive of %s: %w", p, err)
		}
		if err := r.parts(ctx, p, work); err != nil {
			return err
		}
		if p.os != "linux" {
			continue
		}
		images[p] = binary
		if err := r.packages(p, binary, work); err != nil {
			return fmt.Errorf("packages of %s: %w", p, err)
		}
	}
	if len(images) > 0 {
		if err := r.image(images, work); err != nil {
			return fmt.Errorf("image: %w", err)
		}
	}
	return r.checksums()
}

// prepare makes the common parts of all platforms.
func (r *release) prepare(ctx context.Context, work string) (err error) {
	if r.notices, err = notices(ctx, r.root); err != nil {
		return err
	}
	manual := filepath.Join(work, "waymark.1")
	if _, err := r.command(ctx, nil, "go", "run", "./tools/manpages", "docs/cli.md", manual); err != nil {
		return err
	}
	if r.manual, err = os.ReadFile(manual); err != nil {
		return err
	}
	return nil
}

// build returns the binary of a platform. GOFLAGS of the machine do not count.
func (r *release) build(ctx context.Context, p platform, work string) ([]byte, error) {
	out := r.binary(p, work)
	env := []string{"GOOS=" + p.os, "GOARCH=" + p.arch, "CGO_ENABLED=0", "GOFLAGS=", "GOAMD64=v1", "GOARM64=v8.0", "GOEXPERIMENT="}
	begun := time.Now()
	if _, err := r.command(ctx, env, "go", "build", "-trimpath", "-buildvcs=true", "-ldflags=-s -w", "-o", out, "./cmd/waymark"); err != nil {
		return nil, err
	}
	if err := r.stamped(out); err != nil {
		return nil, err
	}
	binary, err := os.ReadFile(out)
	if err == nil {
		r.say("waymark %s for %s: %d bytes, %s", r.version, p, len(binary), time.Since(begun).Round(time.Second))
	}
	return binary, err
}

// say reports progress.
func (r *release) say(format string, args ...any) {
	_, _ = fmt.Fprintf(r.stdout, "dist: "+format+"\n", args...)
}

// stamped returns an error unless a binary has the version and commit of the release.
func (r *release) stamped(binary string) error {
	info, err := buildinfo.ReadFile(binary)
	if err != nil {
		return err
	}
	said := map[string]string{}
	for _, s := range info.Settings {
		said[s.Key] = s.Value
	}
	if info.Main.Version != "v"+r.version || said["vcs.revision"] != r.commit || said["vcs.modified"] != "false" {
		return fmt.Errorf("%w: version %q, commit %q, modified %q", errUnstamped, info.Main.Version, said["vcs.revision"], said["vcs.modified"])
	}
	return nil
}

// parts writes the list of a binary's parts, read from the binary, without time and random number: the same binary gives
// the same file. The modules are in the cache since the build; no proxy has the main module.
func (r *release) parts(ctx context.Context, p platform, work string) error {
	if r.cyclonedx == "" {
		return nil
	}
	name := filepath.Join(r.out, r.name(p)+".cdx.json")
	_, err := r.command(ctx, []string{"GOPROXY=off"}, r.cyclonedx, "bin", "-json", "-licenses", "-std", "-noserial", "-notimestamp",
		"-version", "v"+r.version, "-output", name, r.binary(p, work))
	return err
}

// binary is where the build leaves a platform's program.
func (r *release) binary(p platform, work string) string {
	return filepath.Join(work, "waymark-"+p.os+"-"+p.arch)
}

// name of a platform's files, without extension.
func (r *release) name(p platform) string {
	return "waymark_" + r.version + "_" + p.os + "_" + p.arch
}

// command runs a program in the repository's root, and returns its output.
func (r *release) command(ctx context.Context, env []string, name string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, name, args...) //nolint:gosec // named above
	cmd.Dir, cmd.Env = r.root, append(os.Environ(), env...)
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, said.Bytes())
	}
	return out, nil
}

func git(ctx context.Context, dir string, args ...string) (string, error) {
	r := release{root: dir}
	out, err := r.command(ctx, nil, "git", args...)
	return strings.TrimSpace(string(out)), err
}
