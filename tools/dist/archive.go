package main

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"time"
)

// file is a file or folder of an archive. A folder's name ends with a slash.
type file struct {
	name string
	mode int64
	data []byte
	// owner is the number of user and group; 0 is root.
	owner int
}

// archive writes the archive of a platform: zip for Windows, tar.gz for the others.
func (r *release) archive(p platform, binary []byte) error {
	program := "waymark"
	if p.os == "windows" {
		program += ".exe"
	}
	files := []file{
		{name: program, mode: 0o755, data: binary},
		{name: "THIRD_PARTY_LICENSES.txt", mode: 0o644, data: r.notices},
		{name: "man/waymark.1", mode: 0o644, data: r.manual},
	}
	from := []string{"LICENSE", "README.md", "CHANGELOG.md"}
	if p.os == "linux" {
		units, err := r.units()
		if err != nil {
			return err
		}
		from = append(append(from, units...), "deploy/packages/waymark.env")
	}
	for _, name := range from {
		text, err := os.ReadFile(filepath.Join(r.root, filepath.FromSlash(name)))
		if err != nil {
			return err
		}
		if path.Dir(name) != "." {
			name = "systemd/" + path.Base(name)
		}
		files = append(files, file{name: name, mode: 0o644, data: text})
	}
	for i := range files {
		files[i].name = r.name(p) + "/" + files[i].name
	}
	var b bytes.Buffer
	suffix := ".tar.gz"
	write := r.tarGz
	if p.os == "windows" {
		suffix, write = ".zip", r.zip
	}
	if err := write(&b, files); err != nil {
		return err
	}
	return r.write(r.name(p)+suffix, b.Bytes())
}

func (r *release) tarGz(to io.Writer, files []file) error {
	z, err := gzip.NewWriterLevel(to, gzip.BestCompression)
	if err != nil {
		return err
	}
	return errors.Join(r.tar(z, files), z.Close())
}

// tar writes files in their order, with the commit's time.
func (r *release) tar(to io.Writer, files []file) error {
	t := tar.NewWriter(to)
	for _, f := range files {
		h := &tar.Header{Name: f.name, Mode: f.mode, Size: int64(len(f.data)), Uid: f.owner, Gid: f.owner, ModTime: r.time, Typeflag: tar.TypeReg, Format: tar.FormatPAX}
		if f.name[len(f.name)-1] == '/' {
			h.Typeflag = tar.TypeDir
		}
		if err := t.WriteHeader(h); err != nil {
			return err
		}
		if _, err := t.Write(f.data); err != nil {
			return err
		}
	}
	return t.Close()
}

func (r *release) zip(to io.Writer, files []file) error {
	z := zip.NewWriter(to)
	for _, f := range files {
		h := &zip.FileHeader{Name: f.name, Method: zip.Deflate, Modified: r.time}
		h.SetMode(os.FileMode(f.mode)) //nolint:gosec // permissions
		w, err := z.CreateHeader(h)
		if err != nil {
			return err
		}
		if _, err := w.Write(f.data); err != nil {
			return err
		}
	}
	return z.Close()
}

// write writes one file of the release.
func (r *release) write(name string, data []byte) error {
	r.say("%s: %d bytes", name, len(data))
	full := filepath.Join(r.out, name)
	if err := os.WriteFile(full, data, 0o644); err != nil { //nolint:gosec // every user may read it
		return err
	}
	return os.Chtimes(full, time.Time{}, r.time)
}

// checksums writes the SHA-256 of each file, as sha256sum --check reads them.
func (r *release) checksums() error {
	entries, err := os.ReadDir(r.out)
	if err != nil {
		return err
	}
	var b bytes.Buffer
	for _, e := range entries {
		text, err := os.ReadFile(filepath.Join(r.out, e.Name()))
		if err != nil {
			return err
		}
		fmt.Fprintf(&b, "%x  %s\n", sha256.Sum256(text), e.Name())
	}
	return r.write("SHA256SUMS", b.Bytes())
}
