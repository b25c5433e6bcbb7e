package archive

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/waymarkio/waymark/internal/blob"
	"github.com/waymarkio/waymark/internal/eventlog"
	"github.com/waymarkio/waymark/internal/keyring"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

const (
	// batchEvents and batchBytes bound one publish, which is atomic: a run with fewer events is never imported in
	// part.
	batchEvents = eventlog.MaxBatch
	batchBytes  = 16 << 20
	// batchWait is how long one batch may take.
	batchWait = time.Minute
)

// Fates of a run that was imported.
const (
	FateImported  = "imported"
	FateContinued = "continued"
	FateThere     = "already there"
)

// Target is the fleet for an import, and its options.
type Target struct {
	// Fleet to import into, of the name that the archive has. Required.
	Fleet string
	// Source reads the fleet's runs. Required.
	Source Source
	// Live allows runs that have not ended: executors of the fleet will continue them.
	Live bool
	// Continue extends a run of which the fleet has the beginning.
	Continue bool
}

// Imported is the result for one run.
type Imported struct {
	Run string `json:"run"`
	// Fate is imported, continued or already there.
	Fate    string        `json:"fate"`
	Status  schema.Status `json:"status"`
	Records int64         `json:"records"`
	// Before is how many of them existed already, Since how many followed them.
	Before int64 `json:"records_before,omitzero"`
	Since  int64 `json:"records_since,omitzero"`
	// Digest of the run after its last event in the archive.
	Digest string `json:"digest"`
}

var (
	// errOther ends a comparison with a run that is another one.
	errOther = errors.New("it is another run")
	// errFound ends a search.
	errFound = errors.New("it is found")
)

// Import imports the runs of an archive into a fleet. Every run is checked, and compared with an existing run of its
// id, before the first is written. It returns [ErrOtherFleet], [ErrOtherKeys], [ErrRunExists], [ErrPartly],
// [ErrNotEnded], [ErrBase], and the publisher's errors.
func Import(ctx context.Context, js jetstream.JetStream, a *Archive, to Target) ([]Imported, error) {
	if to.Fleet != a.Manifest.Fleet {
		return nil, fmt.Errorf("%w: the archive is of fleet %s, this one is %s", ErrOtherFleet, a.Manifest.Fleet, to.Fleet)
	}
	settings, _, err := kvstore.NewFleets(js).Get(ctx, to.Fleet)
	if err != nil {
		return nil, err
	}
	keys, err := keyring.Parse(to.Fleet, settings.Keys)
	if err != nil {
		return nil, err
	}
	im := &importer{js: js, a: a, to: &to, settings: settings, keys: keys}
	var errs []error
	for i := range a.Manifest.Runs {
		if err := im.plan(ctx, &a.Manifest.Runs[i]); err != nil {
			errs = append(errs, fmt.Errorf("run %s: %w", a.Manifest.Runs[i].Run, err))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	done := make([]Imported, 0, len(im.plans))
	for _, p := range im.plans {
		if err := im.write(ctx, p); err != nil {
			return done, fmt.Errorf("run %s: %w", p.is.Run, err)
		}
		done = append(done, p.is)
	}
	return done, nil
}

type importer struct {
	js       jetstream.JetStream
	a        *Archive
	to       *Target
	settings schema.FleetSettings
	keys     *schema.Keys
	plans    []*plan
}

// plan is what to do with one run.
type plan struct {
	was   *Run
	is    Imported
	names schema.Names
	// last is the stream sequence of the run's last existing message.
	last uint64
}

// plan compares a run with the fleet's, and refuses runs that must not be imported.
func (im *importer) plan(ctx context.Context, was *Run) error {
	p := &plan{was: was, is: Imported{Run: was.Run, Status: was.Status, Records: was.Records, Digest: was.Digest}}
	if !was.Status.Terminal() && !im.to.Live {
		return fmt.Errorf("%w: it is %s", ErrNotEnded, was.Status)
	}
	if was.Base != nil {
		if err := im.findBase(ctx, was.Base); err != nil {
			return err
		}
	}
	if err := im.place(ctx, p); err != nil {
		return err
	}
	if p.last != 0 {
		if err := im.compare(ctx, p); err != nil {
			return err
		}
	}
	if p.is.Fate != FateThere {
		if err := im.accepted(p); err != nil {
			return err
		}
	}
	im.plans = append(im.plans, p)
	return nil
}

// accepted folds a run with the keys of the target fleet: it would refuse events that were signed with other keys.
func (im *importer) accepted(p *plan) error {
	t := newTally(im.keys, p.was.Run)
	if err := im.a.records(p.was.Run, func(rec *schema.Record) error {
		rec.Stored = 0 // it will be stored again
		t.add(rec)
		return nil
	}); err != nil {
		return err
	}
	if differs := t.same(p.was); differs != "" {
		return fmt.Errorf("%w: %s", ErrOtherKeys, differs)
	}
	return nil
}

// findBase finds the base of a fork: in the archive, or in the fleet.
func (im *importer) findBase(ctx context.Context, b *schema.BaseRef) error {
	keys, read := im.keys, func(yield func(*schema.Record) error) error {
		return im.to.Source.Events(ctx, b.Run, func(rec schema.Record) error { return yield(&rec) })
	}
	if _, err := im.a.Manifest.Run(b.Run); err == nil {
		keys, read = im.a.Keys, func(yield func(*schema.Record) error) error { return im.a.records(b.Run, yield) }
	}
	t := newTally(keys, b.Run)
	err := read(func(rec *schema.Record) error {
		if t.add(rec); t.head.Position.ID == b.Position.ID && t.head.Digest == b.Digest {
			return errFound
		}
		return nil
	})
	switch {
	case errors.Is(err, errFound):
		return nil
	case err == nil, errors.Is(err, publisher.ErrRunNotFound):
		return fmt.Errorf("%w: run %s up to message %d", ErrBase, b.Run, b.Records)
	}
	return err
}

// place finds the shard of the run. A new run is imported into its home, which every executor checks before it begins
// the run, or into the shard that a tombstone there names.
func (im *importer) place(ctx context.Context, p *plan) error {
	home := schema.ShardOf(p.is.Run, im.settings.Mapped())
	begins := home
	for _, i := range schema.ShardsOf(p.is.Run, im.settings.Generations) {
		names := schema.NamesOf(im.to.Fleet, i)
		rec, there, err := eventlog.Last(ctx, im.js, names, p.is.Run)
		if err != nil {
			return err
		}
		if !there {
			continue
		}
		if mark, ok := schema.PlacedOfRecord(&rec); ok {
			if i == home && im.settings.Holds(p.is.Run, mark.Shard) {
				begins = mark.Shard
			}
			continue
		}
		p.names, p.last = names, uint64(rec.Stream)
		return nil
	}
	p.names = schema.NamesOf(im.to.Fleet, begins)
	return nil
}

// compare compares an existing run with that of the archive.
func (im *importer) compare(ctx context.Context, p *plan) error {
	there, stop := make(chan *schema.Record), make(chan struct{})
	ended := make(chan error, 1)
	go func() {
		err := im.a.records(p.was.Run, func(rec *schema.Record) error {
			select {
			case there <- rec:
				return nil
			case <-stop:
				return errOther
			}
		})
		close(there)
		ended <- err
	}()
	err := im.to.Source.Events(ctx, p.is.Run, func(rec schema.Record) error {
		want, more := <-there
		if !more {
			p.is.Since++
			return nil
		}
		have := rec
		have.Stream = want.Stream
		if !have.Equal(want) {
			return errOther
		}
		p.is.Before++
		return nil
	})
	close(stop)
	for range there { // drain the messages in flight
	}
	if workErr := <-ended; workErr != nil && !errors.Is(workErr, errOther) {
		return workErr
	}
	switch {
	case errors.Is(err, errOther):
		return fmt.Errorf("%w: %s", ErrRunExists, p.is.Run)
	case err != nil:
		return err
	case p.is.Before == p.is.Records:
		p.is.Fate = FateThere
	case !im.to.Continue:
		return fmt.Errorf("%w: %d of %d messages of %s", ErrPartly, p.is.Before, p.is.Records, p.is.Run)
	default:
		p.is.Fate = FateContinued
	}
	return nil
}

// write imports one run into the fleet.
func (im *importer) write(ctx context.Context, p *plan) error {
	if p.is.Fate == FateThere {
		return nil
	}
	if p.is.Fate == "" {
		p.is.Fate = FateImported
	}
	if err := im.writeBlobs(ctx, p); err != nil {
		return err
	}
	var batch []*nats.Msg
	size, n := 0, int64(0)
	err := im.a.records(p.was.Run, func(rec *schema.Record) error {
		if n++; n <= p.is.Before {
			return nil
		}
		msg := &nats.Msg{Subject: p.names.EventSubject(p.is.Run), Header: nats.Header(maps.Clone(rec.Header)), Data: slices.Clone(rec.Body)}
		if msg.Header == nil {
			msg.Header = nats.Header{}
		}
		if len(batch) > 0 && (len(batch) == batchEvents || size+len(msg.Data) > batchBytes) {
			if err := im.publish(ctx, p, batch); err != nil {
				return err
			}
			batch, size = nil, 0
		}
		batch, size = append(batch, msg), size+len(msg.Data)
		return nil
	})
	if err == nil && len(batch) > 0 {
		err = im.publish(ctx, p, batch)
	}
	return err
}

// publish stores messages of a run after its existing ones, all or none of them.
func (im *importer) publish(ctx context.Context, p *plan, batch []*nats.Msg) error {
	ctx, cancel := context.WithTimeout(ctx, batchWait)
	defer cancel()
	nc, last := im.js.Conn(), schema.StreamSequence(p.last)
	var a eventlog.Appended
	if len(batch) == 1 {
		a = eventlog.Append(ctx, nc.RequestMsgWithContext, batch[0], last)
	} else {
		a = eventlog.AppendBatch(ctx, nc, nc.RequestMsgWithContext, batch, last)
	}
	switch {
	case a.Outcome == eventlog.Stored:
		p.last = uint64(a.Stream)
		return nil
	case a.Outcome == eventlog.Outdated:
		return fmt.Errorf("%w: another client wrote to it during the import: %w", ErrRunExists, a.Err)
	case errors.Is(a.Err, context.DeadlineExceeded), errors.Is(a.Err, nats.ErrTimeout):
		return fmt.Errorf("its events may be stored or not: import it again: %w", a.Err)
	default:
		return a.Err
	}
}

// writeBlobs stores the blobs of the run's events, before them.
func (im *importer) writeBlobs(ctx context.Context, p *plan) error {
	if p.was.Blobs == 0 {
		return nil
	}
	store, err := blob.Open(ctx, im.js, schema.BlobBucket(im.to.Fleet))
	if err != nil {
		return err
	}
	return im.a.again(func(n name, _ string, content []byte) error {
		if n.run != p.was.Run || n.blob == "" {
			return nil
		}
		sum := sha256.Sum256(content)
		digest := hex.EncodeToString(sum[:])
		if _, err := store.Load(ctx, p.is.Run, digest, int64(len(content))); err == nil {
			return nil
		}
		if err := store.Replace(ctx, p.is.Run, digest, content); err != nil {
			return fmt.Errorf("blob %s: %w", schema.BlobName(p.is.Run, digest), err)
		}
		return nil
	})
}
