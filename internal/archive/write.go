package archive

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	"github.com/klauspost/compress/zstd"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// Source is where runs are read: a [publisher.Reader].
type Source interface {
	// Events calls yield for each of a run's records, in order.
	Events(ctx context.Context, run string, yield func(schema.Record) error) error
	// Blob returns the content of a dataref.
	Blob(ctx context.Context, dataref string) ([]byte, error)
}

// Export selects the content of an archive.
type Export struct {
	// Fleet that the runs are of, and their ids.
	Fleet string
	Runs  []string
	// Keys of the fleet, as its settings have them.
	Keys []schema.FleetKey
	// Bases adds the bases of forks.
	Bases bool
	// Made is the time of the export.
	Made time.Time
}

// Write writes an archive of the current state of runs. After an error the output is no archive. It returns
// [ErrIncomplete] for a run with missing events.
func Write(ctx context.Context, w io.Writer, from Source, what Export) (*Manifest, error) {
	if len(what.Runs) == 0 {
		return nil, errors.New("no run is named")
	}
	packed, err := zstd.NewWriter(w, zstd.WithWindowSize(window), zstd.WithEncoderConcurrency(1))
	if err != nil {
		return nil, err
	}
	x := &exporter{
		from: from, what: &what, tar: tar.NewWriter(packed), done: map[string]bool{},
		m: &Manifest{Format: Format, Fleet: what.Fleet, Made: schema.FormatTime(what.Made)},
	}
	if err := x.addKeys(); err != nil {
		return nil, errors.Join(err, packed.Close())
	}
	for _, run := range what.Runs {
		if err := x.run(ctx, run, 0); err != nil {
			return nil, errors.Join(fmt.Errorf("export run %s: %w", run, err), packed.Close())
		}
	}
	b, err := x.m.encode()
	if err == nil {
		err = x.put(manifestName, b)
	}
	return x.m, errors.Join(err, x.tar.Close(), packed.Close())
}

// exporter is one archive being written.
type exporter struct {
	from Source
	what *Export
	tar  *tar.Writer
	m    *Manifest
	done map[string]bool
	keys *schema.Keys
}

// put writes one entry.
func (x *exporter) put(name string, content []byte) error {
	if err := x.tar.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Size: int64(len(content)), Mode: 0o600, Format: tar.FormatUSTAR}); err != nil {
		return err
	}
	_, err := x.tar.Write(content)
	return err
}

// add writes one entry that the manifest lists.
func (x *exporter) add(name string, content []byte) error {
	sum := sha256.Sum256(content)
	x.m.Entries = append(x.m.Entries, Entry{Name: name, Bytes: int64(len(content)), SHA256: hex.EncodeToString(sum[:])})
	return x.put(name, content)
}

// errBase ends the reading of a fork whose base must be written first.
var errBase = errors.New("its base comes first")

// run writes a run, and its base before it if bases are requested.
func (x *exporter) run(ctx context.Context, run string, depth int) error {
	if x.done[run] {
		return nil
	}
	if depth > schema.MaxBases {
		return fmt.Errorf("its chain of bases has more than %d runs", schema.MaxBases)
	}
	t := newTally(x.keys, run)
	var (
		frames []byte
		number int
	)
	flush := func() error {
		if len(frames) == 0 {
			return nil
		}
		number++
		err := x.add(eventsName(run, number), frames)
		frames = frames[:0]
		return err
	}
	base := ""
	err := x.from.Events(ctx, run, func(rec schema.Record) error {
		v := t.add(&rec)
		if b := t.head.Base; t.records == 1 && b != nil && x.what.Bases && !x.done[b.Run] {
			base = b.Run
			return errBase
		}
		if v.Kind == schema.Regressed || v.Kind == schema.Replayed {
			return fmt.Errorf("message %d: %w", t.records, ErrIncomplete)
		}
		frames = schema.AppendFrame(frames, &rec)
		if len(frames) >= eventsTarget {
			return flush()
		}
		return nil
	})
	switch {
	case errors.Is(err, errBase):
		if number > 0 || x.done[base] {
			return fmt.Errorf("base %s: %w", base, ErrBase)
		}
		if err := x.run(ctx, base, depth+1); err != nil {
			return fmt.Errorf("base %s: %w", base, err)
		}
		return x.run(ctx, run, depth+1)
	case errors.Is(err, publisher.ErrIncomplete):
		return fmt.Errorf("%w: %w", ErrIncomplete, err)
	case err != nil:
		return err
	case t.head.Counts.Gaps > 0:
		return fmt.Errorf("%w: its gaps: %d", ErrIncomplete, t.head.Counts.Gaps)
	}
	if err := flush(); err != nil {
		return err
	}
	for _, sum := range slices.Sorted(maps.Keys(t.blobs)) {
		content, err := x.from.Blob(ctx, schema.DataRef(run, sum))
		if err != nil {
			return err
		}
		if err := x.add(blobName(run, sum), content); err != nil {
			return err
		}
	}
	x.done[run] = true
	x.m.Runs = append(x.m.Runs, t.run())
	return nil
}
