package archive

import (
	"archive/tar"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/klauspost/compress/zstd"

	"github.com/waymarkio/waymark/schema"
)

// Archive is an archive that was read completely and is correct.
type Archive struct {
	// Manifest of the archive.
	Manifest *Manifest
	// Keys of the fleet that it was made of.
	Keys   *schema.Keys
	r      io.ReadSeeker
	limits Limits
}

// Open reads a whole archive and checks it: see the package's documentation. If it returns an error, nothing else of
// the archive may be used. The error is an [*EntryError]: [ErrHostile], [ErrTooLarge], [ErrDamaged] or [ErrFormat].
// The reader is read again later.
func Open(r io.ReadSeeker, limits Limits) (*Archive, error) {
	a := &Archive{r: r, limits: limits.withDefaults()}
	c := &checker{keys: schema.NoKeys}
	if err := a.walk(c.entry); err != nil {
		return nil, err
	}
	m, err := c.finish()
	a.Manifest, a.Keys = m, c.keys
	return a, err
}

// walk calls yield for each entry, with its content. It checks names, sizes and the form of the container, not the
// sums.
func (a *Archive) walk(yield func(entry string, content []byte) error) error {
	if _, err := a.r.Seek(0, io.SeekStart); err != nil {
		return err
	}
	unpacked, err := zstd.NewReader(a.r, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(2*window))
	if err != nil {
		return damaged("", "it cannot be unpacked: %s", err)
	}
	defer unpacked.Close()
	within := &limited{unpacked, a.limits.Bytes}
	t := tar.NewReader(within)
	at := "" // the last entry, for errors after it
	broken := func(err error) error {
		if errors.Is(err, ErrTooLarge) {
			return tooLarge(at, "all entries together are more than %d bytes", a.limits.Bytes)
		}
		return damaged(at, "the archive breaks off at or behind it: %s", err)
	}
	for n := 0; ; n++ {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			// Neither the packed data nor the file need end at the end of the tar file.
			var one [1]byte
			k, err := io.ReadFull(within, one[:])
			if k > 0 {
				return damaged(at, "something follows the archive's end")
			}
			if !errors.Is(err, io.EOF) {
				return broken(err)
			}
			if at != manifestName {
				return damaged(at, "it ends without %s", manifestName)
			}
			return nil
		}
		if err != nil {
			return broken(err)
		}
		most, err := admit(h, at, n)
		at = h.Name
		switch {
		case err != nil:
			return err
		case n >= a.limits.Entries:
			return tooLarge(at, "there are more than %d entries", a.limits.Entries)
		case h.Size > most:
			return tooLarge(at, "it is to have %d bytes, at most %d are allowed", h.Size, most)
		case h.Size > within.left:
			return tooLarge(at, "all entries together are more than %d bytes", a.limits.Bytes)
		}
		// It grows with the actual data, not with the declared size. Records share its memory, so that each entry has
		// its own.
		content, err := readAll(t, h.Size)
		if err != nil {
			return broken(err)
		}
		if err := yield(at, content); err != nil {
			return err
		}
	}
}

// readAll reads a number of bytes.
func readAll(r io.Reader, size int64) ([]byte, error) {
	const step = 1 << 20
	var b []byte
	for size > 0 {
		n := min(size, step)
		from := len(b)
		b = append(b, make([]byte, n)...)
		if _, err := io.ReadFull(r, b[from:]); err != nil {
			return b, err
		}
		size -= n
	}
	return b, nil
}

// admit reports whether an archive may have such an entry after a number of others, and how large it may be.
func admit(h *tar.Header, before string, entries int) (most int64, err error) {
	switch {
	case before == manifestName:
		return 0, damaged(h.Name, "it follows %s, which is the last entry", manifestName)
	case h.Typeflag != tar.TypeReg:
		return 0, hostile(h.Name, "it is no regular file (type %q)", h.Typeflag)
	case h.Linkname != "":
		return 0, hostile(h.Name, "it is a link to %.80q", h.Linkname)
	case len(h.PAXRecords) > 0 || h.Size < 0:
		return 0, hostile(h.Name, "it has extended attributes")
	case h.Name == keysName:
		if entries > 0 {
			return 0, hostile(h.Name, "it is not the first entry")
		}
		return maxKeysEntry, nil
	case h.Name == manifestName:
		return min(maxManifest, manifestOfNone+int64(entries)*manifestOfEntry), nil
	}
	n, ok := parseName(h.Name)
	if !ok {
		return 0, hostile(h.Name, "its name is not runs/RUN/events/NUMBER, runs/RUN/blobs/SHA-256, %s or %s", keysName, manifestName)
	}
	if n.blob != "" {
		return maxBlob, nil
	}
	return maxEvents, nil
}

// checker checks that entries are in order, and match the manifest.
type checker struct {
	entries []Entry
	// run is the run of the current entries, with its tally; its blobs were seen up to last.
	run  *tally
	next int
	last string
	// runs so far, with their ids, and the number of their blobs.
	runs  []*tally
	seen  map[string]bool
	blobs map[string]int
	m     *Manifest
	// keys of the fleet that the archive is of.
	keys *schema.Keys
}

// entry checks one entry.
func (c *checker) entry(entry string, content []byte) error {
	if entry == manifestName {
		m, err := decodeManifest(content)
		c.m = m
		return err
	}
	sum := sha256.Sum256(content)
	c.entries = append(c.entries, Entry{Name: entry, Bytes: int64(len(content)), SHA256: hex.EncodeToString(sum[:])})
	if entry == keysName {
		keys, err := readKeys(content)
		c.keys = keys
		return err
	}
	n, _ := parseName(entry) // admit has accepted it
	if c.run == nil || c.run.head.Run != n.run {
		if c.seen == nil {
			c.seen, c.blobs = map[string]bool{}, map[string]int{}
		}
		if c.seen[n.run] || n.number != 1 {
			return hostile(entry, "it is out of order")
		}
		c.seen[n.run] = true
		c.run, c.next, c.last = newTally(c.keys, n.run), 1, ""
		c.runs = append(c.runs, c.run)
	}
	if n.blob != "" {
		switch {
		case n.blob <= c.last:
			return hostile(entry, "it is there twice, or out of order")
		case hex.EncodeToString(sum[:]) != n.blob:
			return damaged(entry, "its content has SHA-256 %x", sum)
		case !c.run.blobs[n.blob]:
			return hostile(entry, "no event refers to it")
		}
		c.last = n.blob
		c.blobs[n.run]++
		return nil
	}
	if n.number != c.next || c.last != "" {
		return hostile(entry, "it is there twice, or out of order")
	}
	c.next++
	return frames(entry, content, func(rec *schema.Record) error {
		c.run.add(rec) // refused events are part of the run as well
		return nil
	})
}

// frames reads the records of an entry.
func frames(entry string, content []byte, yield func(*schema.Record) error) error {
	r := schema.NewFrameReader(content)
	for {
		rec, err := r.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return damaged(entry, "%s", err)
		}
		for name := range rec.Header {
			// An export has none. Published again they would be instructions to the server.
			if strings.HasPrefix(strings.ToLower(name), "nats-") {
				return hostile(entry, "a message has the header %.40q, which is the server's", name)
			}
		}
		if err := yield(&rec); err != nil {
			return err
		}
	}
}

// finish compares everything with the manifest.
func (c *checker) finish() (*Manifest, error) {
	if len(c.entries) != len(c.m.Entries) {
		return nil, damaged(manifestName, "it lists %d entries, there are %d", len(c.m.Entries), len(c.entries))
	}
	for i, e := range c.entries {
		if c.m.Entries[i] != e {
			return nil, damaged(e.Name, "it has %d bytes with SHA-256 %.16s…, the manifest says %.160q has %d with %.16s…", e.Bytes, e.SHA256,
				c.m.Entries[i].Name, c.m.Entries[i].Bytes, c.m.Entries[i].SHA256)
		}
	}
	if len(c.runs) != len(c.m.Runs) {
		return nil, damaged(manifestName, "it lists %d runs, there are %d", len(c.m.Runs), len(c.runs))
	}
	if c.keys.Any() && c.keys.Fleet() != c.m.Fleet {
		return nil, damaged(manifestName, "the archive is of fleet %.64s, its keys are of %s", c.m.Fleet, c.keys.Fleet())
	}
	for i, t := range c.runs {
		want := &c.m.Runs[i]
		if t.head.Run != want.Run {
			return nil, damaged(manifestName, "run %d is %s, there is %s", i+1, want.Run, t.head.Run)
		}
		if differs := t.same(want); differs != "" {
			return nil, damaged(manifestName, "run %s: %s", want.Run, differs)
		}
		if t.head.Fleet != "" && t.head.Fleet != c.m.Fleet {
			return nil, damaged(manifestName, "run %s is of fleet %.64s, it says %s", want.Run, t.head.Fleet, c.m.Fleet)
		}
		if c.blobs[want.Run] != want.Blobs {
			return nil, damaged(manifestName, "run %s has %d of %d blobs", want.Run, c.blobs[want.Run], want.Blobs)
		}
	}
	return c.m, nil
}

// again walks through the archive again, and checks that it is unchanged.
func (a *Archive) again(yield func(n name, entry string, content []byte) error) error {
	i := 0
	return a.walk(func(entry string, content []byte) error {
		if entry == manifestName {
			return nil
		}
		sum := sha256.Sum256(content)
		if i >= len(a.Manifest.Entries) || a.Manifest.Entries[i] != (Entry{entry, int64(len(content)), hex.EncodeToString(sum[:])}) {
			return damaged(entry, "it was changed since the archive was checked")
		}
		i++
		if entry == keysName {
			return nil
		}
		n, _ := parseName(entry) // admit has accepted it
		return yield(n, entry, content)
	})
}

// records calls yield with the records of a run.
func (a *Archive) records(run string, yield func(*schema.Record) error) error {
	return a.again(func(n name, entry string, content []byte) error {
		if n.run != run || n.blob != "" {
			return nil
		}
		return frames(entry, content, yield)
	})
}

// Run returns the manifest's entry of a run.
func (m *Manifest) Run(id string) (*Run, error) {
	for i := range m.Runs {
		if m.Runs[i].Run == id {
			return &m.Runs[i], nil
		}
	}
	return nil, fmt.Errorf("the archive has no run %s", id)
}
