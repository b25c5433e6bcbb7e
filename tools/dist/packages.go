package main

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"time"

	"github.com/goreleaser/nfpm/v2"
	_ "github.com/goreleaser/nfpm/v2/deb" // a form of packages
	"github.com/goreleaser/nfpm/v2/files"
	_ "github.com/goreleaser/nfpm/v2/rpm" // another
)

const maintainer = "The Waymark authors <waymark@waymark.invalid>"

// packages writes the .deb and the .rpm of a platform.
func (r *release) packages(p platform, binary []byte, work string) error {
	stage := filepath.Join(work, "stage-"+p.arch)
	if err := os.MkdirAll(stage, 0o700); err != nil {
		return err
	}
	manual, err := r.gzip(r.manual)
	if err != nil {
		return err
	}
	made := map[string][]byte{
		"waymark": binary, "waymark.1.gz": manual, "THIRD_PARTY_LICENSES.txt": r.notices,
		"changelog.yml": fmt.Appendf(nil, "- semver: %s\n  date: %s\n  packager: %s\n  changes:\n    - note: CHANGELOG.md in this directory has the changes.\n",
			r.version, r.time.Format(time.RFC3339), maintainer),
	}
	for name, data := range made {
		if err := os.WriteFile(filepath.Join(stage, name), data, 0o600); err != nil {
			return err
		}
	}
	staged := func(name string) string { return filepath.Join(stage, name) }
	repo := func(name string) string { return filepath.Join(r.root, filepath.FromSlash(name)) }
	contents := files.Contents{
		regular(staged("waymark"), "/usr/bin/waymark", 0o755),
		// It may name passwords.
		{Source: repo("deploy/packages/waymark.env"), Destination: "/etc/waymark/waymark.env", Type: files.TypeConfigNoReplace, FileInfo: &files.ContentFileInfo{Mode: 0o640}},
	}
	units, err := r.units()
	if err != nil {
		return err
	}
	for _, unit := range units {
		contents = append(contents, regular(repo(unit), "/usr/lib/systemd/system/"+path.Base(unit), 0o644))
	}
	own := map[string]files.Contents{
		"deb": {
			regular(repo("deploy/packages/copyright"), "/usr/share/doc/waymark/copyright", 0o644),
			regular(staged("THIRD_PARTY_LICENSES.txt"), "/usr/share/doc/waymark/THIRD_PARTY_LICENSES.txt", 0o644),
		},
		"rpm": {
			{Source: repo("LICENSE"), Destination: "/usr/share/licenses/waymark/LICENSE", Type: files.TypeRPMLicense, FileInfo: &files.ContentFileInfo{Mode: 0o644}},
			{
				Source: staged("THIRD_PARTY_LICENSES.txt"), Destination: "/usr/share/licenses/waymark/THIRD_PARTY_LICENSES.txt", Type: files.TypeRPMLicense,
				FileInfo: &files.ContentFileInfo{Mode: 0o644},
			},
		},
	}
	for kind, form := range map[string]string{"deb": files.TypeFile, "rpm": files.TypeRPMDoc} {
		for from, to := range map[string]string{
			staged("waymark.1.gz"): "man/man1/waymark.1.gz", repo("README.md"): "doc/waymark/README.md", repo("CHANGELOG.md"): "doc/waymark/CHANGELOG.md",
		} {
			c := regular(from, "/usr/share/"+to, 0o644)
			c.Type = form
			own[kind] = append(own[kind], c)
		}
	}
	// The package that adds the user.
	depends := map[string]string{"deb": "passwd", "rpm": "shadow-utils"}
	for _, kind := range []string{"deb", "rpm"} {
		info := nfpm.WithDefaults(&nfpm.Info{
			Name: "waymark", Arch: p.arch, Platform: p.os, Version: r.version, Section: "net", Priority: "optional",
			Maintainer: maintainer, Homepage: "https://github.com/waymarkio/waymark", License: "Apache-2.0",
			Description: "checkpoint daemon for AI agents on NATS JetStream\nKeeps fleets of AI agents recoverable: executors record each step, and another\none goes on where one died.",
			MTime:       r.time, Changelog: staged("changelog.yml"),
			Overridables: nfpm.Overridables{
				Depends: []string{depends[kind]}, Contents: append(copied(contents), copied(own[kind])...),
				Scripts: nfpm.Scripts{PostInstall: repo("deploy/packages/postinst"), PreRemove: repo("deploy/packages/prerm"), PostRemove: repo("deploy/packages/postrm")},
				RPM:     nfpm.RPM{BuildHost: "localhost", Summary: "Checkpoint daemon for AI agents on NATS JetStream", Group: "System Environment/Daemons"},
			},
		})
		if err := nfpm.PrepareForPackager(info, kind); err != nil {
			return err
		}
		packager, err := nfpm.Get(kind)
		if err != nil {
			return err
		}
		var b bytes.Buffer
		if err := packager.Package(info, &b); err != nil {
			return err
		}
		if err := r.write(path.Base(packager.ConventionalFileName(info)), b.Bytes()); err != nil {
			return err
		}
	}
	return nil
}

func regular(source, destination string, mode os.FileMode) *files.Content {
	return &files.Content{Source: source, Destination: destination, Type: files.TypeFile, FileInfo: &files.ContentFileInfo{Mode: mode}}
}

// copied returns a copy, so that one packager does not change the input of the next.
func copied(list files.Contents) files.Contents {
	var out files.Contents
	for _, c := range list {
		one, info := *c, *c.FileInfo
		one.FileInfo = &info
		out = append(out, &one)
	}
	return out
}

// gzip compresses without a name and a time.
func (r *release) gzip(data []byte) ([]byte, error) {
	var b bytes.Buffer
	z, err := gzip.NewWriterLevel(&b, gzip.BestCompression)
	if err != nil {
		return nil, err
	}
	_, err = z.Write(data)
	err = errors.Join(err, z.Close())
	return b.Bytes(), err
}

// stateOwner is the user of the image, as a number.
const stateOwner = 65532

var imageUser = strconv.Itoa(stateOwner) + ":" + strconv.Itoa(stateOwner)

// units are the files of systemd, relative to the repository.
func (r *release) units() ([]string, error) {
	found, err := filepath.Glob(filepath.Join(r.root, "deploy", "systemd", "waymark*"))
	for i := range found {
		found[i] = "deploy/systemd/" + filepath.Base(found[i])
	}
	return found, err
}
