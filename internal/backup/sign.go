package backup

import (
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/nats-io/nkeys"
)

const (
	// signatureName is the file with the signature of the manifest: the public key, a space, and the signature in base64.
	signatureName = "manifest.sig"
	// maxSignature bounds it, in bytes.
	maxSignature = 4 << 10
	// signedPrefix begins the signed bytes. A NATS server chooses the nonce that its clients sign. The nonce is text and never begins with 0xFF,
	// so a server cannot obtain a backup's signature.
	signedPrefix = "\xffwaymark backup\n"
)

// Trust is what a backup must prove before it is used.
type Trust struct {
	// Key is the public NKey that must have signed the manifest; empty requires no signature.
	Key string
	// MaxBytes bounds the messages of the backup when unpacked; 0 means 100 times the size of its files, and 64 MiB at least.
	MaxBytes int64
}

// most is how many bytes the messages of a backup may have.
func (t Trust) most(m *Manifest) uint64 {
	if t.MaxBytes > 0 {
		return uint64(t.MaxBytes)
	}
	return max(64<<20, 100*uint64(max(m.Bytes(), 0))) //nolint:gosec // not below 0
}

// sign returns the content of the signature file for a manifest.
func sign(key nkeys.KeyPair, manifest []byte) ([]byte, error) {
	public, err := key.PublicKey()
	if err != nil {
		return nil, fmt.Errorf("%w: key: %w", ErrConfig, err)
	}
	sum, err := key.Sign([]byte(signedPrefix + string(manifest)))
	if err != nil {
		return nil, fmt.Errorf("%w: key %s: %w", ErrConfig, public, err)
	}
	return []byte(public + " " + base64.StdEncoding.EncodeToString(sum) + "\n"), nil
}

// check returns [ErrSignature] unless the manifest of a backup is signed as required.
func (t Trust) check(dir string, manifest []byte) error {
	if t.Key == "" {
		return nil
	}
	key, err := nkeys.FromPublicKey(t.Key)
	if err != nil {
		return fmt.Errorf("%w: Trust.Key is not a public NKey", ErrConfig) // it may be a seed, so no message shows it
	}
	bad := func(format string, args ...any) error {
		return fmt.Errorf("%s: %w: %s", filepath.Join(dir, signatureName), ErrSignature, fmt.Sprintf(format, args...))
	}
	b, err := readRegular(filepath.Join(dir, signatureName), maxSignature)
	if errors.Is(err, fs.ErrNotExist) {
		return bad("there is none")
	}
	if err != nil {
		return err
	}
	by, text, _ := strings.Cut(strings.TrimSuffix(string(b), "\n"), " ")
	if by != t.Key && !nkeys.IsValidPublicKey(by) {
		return bad("it names no public key")
	}
	if by != t.Key {
		return bad("it is of key %s, not of %s", by, t.Key)
	}
	sum, err := base64.StdEncoding.Strict().DecodeString(text)
	if err != nil || key.Verify([]byte(signedPrefix+string(manifest)), sum) != nil {
		return bad("key %s did not sign this manifest", t.Key)
	}
	return nil
}

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
