package main

import (
	"bytes"
	"encoding/pem"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/crypto/x509roots/fallback/bundle"
)

// image writes an OCI image for all platforms, as a tar of an OCI layout: what deploy/container/Dockerfile makes, without Docker.
func (r *release) image(binaries map[platform][]byte, work string) error {
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, p := range r.platforms {
		if binaries[p] == nil {
			continue
		}
		img, err := r.platformImage(p, binaries[p])
		if err != nil {
			return err
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{
			Add: img, Descriptor: v1.Descriptor{MediaType: types.OCIManifestSchema1, Platform: &v1.Platform{OS: p.os, Architecture: p.arch}},
		})
	}
	dir := filepath.Join(work, "image")
	to, err := layout.Write(dir, empty.Index)
	if err != nil {
		return err
	}
	if err := to.AppendIndex(index, layout.WithAnnotations(map[string]string{"org.opencontainers.image.ref.name": r.version})); err != nil {
		return err
	}
	var list []file
	err = filepath.WalkDir(dir, func(name string, entry fs.DirEntry, err error) error { // in the order of names
		if err != nil || name == dir {
			return err
		}
		inside, err := filepath.Rel(dir, name)
		if err != nil {
			return err
		}
		f := file{name: filepath.ToSlash(inside), mode: 0o644}
		if entry.IsDir() {
			f.name, f.mode = f.name+"/", 0o755
		} else if f.data, err = os.ReadFile(name); err != nil {
			return err
		}
		list = append(list, f)
		return nil
	})
	if err != nil {
		return err
	}
	var b bytes.Buffer
	if err := r.tar(&b, list); err != nil {
		return err
	}
	return r.write("waymark_"+r.version+"_image.tar", b.Bytes())
}

// platformImage is the image for one processor.
func (r *release) platformImage(p platform, binary []byte) (v1.Image, error) {
	licence, err := os.ReadFile(filepath.Join(r.root, "LICENSE"))
	if err != nil {
		return nil, err
	}
	var contents bytes.Buffer
	err = r.tar(&contents, []file{
		{name: "etc/", mode: 0o755},
		{name: "etc/ssl/", mode: 0o755},
		{name: "etc/ssl/certs/", mode: 0o755},
		{name: "etc/ssl/certs/ca-certificates.crt", mode: 0o644, data: authorities()},
		{name: "licenses/", mode: 0o755},
		{name: "licenses/LICENSE", mode: 0o644, data: licence},
		{name: "licenses/THIRD_PARTY_LICENSES.txt", mode: 0o644, data: r.notices},
		{name: "usr/", mode: 0o755},
		{name: "usr/local/", mode: 0o755},
		{name: "usr/local/bin/", mode: 0o755},
		{name: "usr/local/bin/waymark", mode: 0o755, data: binary},
		{name: "var/", mode: 0o755},
		{name: "var/lib/", mode: 0o755},
		{name: "var/lib/waymark/", mode: 0o700, owner: stateOwner},
	})
	if err != nil {
		return nil, err
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(contents.Bytes())), nil },
		tarball.WithMediaType(types.OCILayer))
	if err != nil {
		return nil, err
	}
	img := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	img, err = mutate.Append(img, mutate.Addendum{
		Layer: layer, MediaType: types.OCILayer, History: v1.History{Created: v1.Time{Time: r.time}, CreatedBy: "make dist"},
	})
	if err != nil {
		return nil, err
	}
	config, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture, config.Created = p.os, p.arch, v1.Time{Time: r.time}
	config.Config = v1.Config{
		User: imageUser, Env: []string{"PATH=/usr/local/bin", "WAYMARK_STATE_DIR=/var/lib/waymark"},
		Entrypoint: []string{"/usr/local/bin/waymark"}, Cmd: []string{"serve", "--log-format", "json"},
		Volumes: map[string]struct{}{"/var/lib/waymark": {}}, StopSignal: "SIGTERM",
		Labels: map[string]string{
			"org.opencontainers.image.source": "https://github.com/waymarkio/waymark", "org.opencontainers.image.licenses": "Apache-2.0",
			"org.opencontainers.image.version": r.version, "org.opencontainers.image.revision": r.commit,
		},
	}
	return mutate.ConfigFile(img, config)
}

// authorities are Mozilla's root certificates as the Go project passes them on, so that they do not depend on the machine that builds.
// Those that Go constrains cannot be said in a file of certificates, and are left out.
func authorities() []byte {
	var blocks [][]byte
	for root := range bundle.Roots() {
		if root.Constraint == nil {
			blocks = append(blocks, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: root.Certificate}))
		}
	}
	slices.SortFunc(blocks, bytes.Compare)
	return bytes.Join(blocks, nil)
}
