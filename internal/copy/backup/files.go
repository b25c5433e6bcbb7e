package backup

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"path/filepath"
)

// file is a file being written, with the sum of its content.
type file struct {
	f     *os.File
	sum   hash.Hash
	bytes int64
}

func create(path string) (*file, error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, err
	}
	return &file{f: f, sum: sha256.New()}, nil
}

func (f *file) Write(b []byte) (int, error) {
	n, err := f.f.Write(b)
	_, _ = f.sum.Write(b[:n]) // a hash takes all
	f.bytes += int64(n)
	return n, err
}

// finish makes the file durable and describes it.
func (f *file) finish() (File, error) {
	err := errors.Join(f.f.Sync(), f.f.Close())
	return File{Name: filepath.Base(f.f.Name()), Bytes: f.bytes, SHA256: hex.EncodeToString(f.sum.Sum(nil))}, err
}

// writeFile writes a small file and makes it durable.
func writeFile(path string, content []byte) (File, error) {
	f, err := create(path)
	if err != nil {
		return File{}, err
	}
	_, err = f.Write(content)
	is, err2 := f.finish()
	return is, errors.Join(err, err2)
}

// checkedReader reads a file and compares it with its description at its end.
type checkedReader struct {
	f    *os.File
	name string
	is   File
	sum  hash.Hash
	n    int64
}

func openChecked(path string, is File) (*checkedReader, error) {
	f, err := openRegular(path)
	if err != nil {
		if errors.Is(err, os.ErrNotExist) {
			return nil, fmt.Errorf("%s: %w: it is missing", path, ErrDamaged)
		}
		return nil, err
	}
	return &checkedReader{f: f, name: path, is: is, sum: sha256.New()}, nil
}

func (r *checkedReader) Read(b []byte) (int, error) {
	n, err := r.f.Read(b)
	_, _ = r.sum.Write(b[:n]) // a hash takes all
	r.n += int64(n)
	return n, err
}

// finish reads the rest and checks that the file matches its description.
func (r *checkedReader) finish() error {
	if _, err := io.Copy(io.Discard, r); err != nil {
		return err
	}
	sum := hex.EncodeToString(r.sum.Sum(nil))
	switch {
	case r.n != r.is.Bytes:
		return fmt.Errorf("%s: %w: it has %d bytes, the manifest says %d", r.name, ErrDamaged, r.n, r.is.Bytes)
	case sum != r.is.SHA256:
		return fmt.Errorf("%s: %w: its SHA-256 is %.16s…, the manifest says %.16s…", r.name, ErrDamaged, sum, r.is.SHA256)
	}
	return nil
}

func (r *checkedReader) Close() error { return r.f.Close() }

// openRegular opens a file of a backup. A pipe or a device in its place may never end.
func openRegular(path string) (*os.File, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s: %w: it is no regular file", path, ErrDamaged)
	}
	return os.Open(path)
}

// readRegular reads a whole file of at most so many bytes.
func readRegular(path string, limit int64) ([]byte, error) {
	f, err := openRegular(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // it was only read
	b, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err != nil {
		return nil, err
	}
	if int64(len(b)) > limit {
		return nil, fmt.Errorf("%s: %w: it is larger than %d bytes", path, ErrDamaged, limit)
	}
	return b, nil
}
