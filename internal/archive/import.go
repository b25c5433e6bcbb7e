package archive

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/waymarkio/waymark/internal/blob"
	"github.com/waymarkio/waymark/internal/keyring"
	"github.com/waymarkio/waymark/internal/runlog"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

const (
	// batchEvents and batchBytes bound what is published at once, whole or not at all: a run of fewer events is never there in part.
	batchEvents = 1000
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

// Target says into which fleet runs are imported, and how.
type Target struct {
	// Fleet to import into. Required.
	Fleet string
	// Source reads what the fleet has. Required.
	Source Source
	// Keys of the fleet, with the signer of whoever imports. Required.
	Keys *keyring.Ring
	// As is the new id of the only run of the archive; Prefix is put before the ids of all. Both empty keep the ids.
	As, Prefix string
	// Live allows runs that have not ended: executors of the fleet will go on with them.
	Live bool
	// Continue adds to a run of which the fleet has the beginning.
	Continue bool
	// OnRun is called with each run once it is there. It may be nil.
	OnRun func(Imported)
}

// Imported is what became of one run.
type Imported struct {
	// Run as it is called now, and in the archive.
	Run string `json:"run"`
	Was string `json:"was"`
	// Fate is imported, continued or already there.
	Fate    string        `json:"fate"`
	Status  schema.Status `json:"status"`
	Records int64         `json:"records"`
	// Before is how many of them were there already, Since how many came behind them.
	Before int64 `json:"records_before,omitzero"`
	Since  int64 `json:"records_since,omitzero"`
	// Digest of the run behind its last event of the archive: as in the archive when nothing was renamed.
	Digest string `json:"digest"`
	// Content is the run's [ContentSum], which is always that of the archive.
	Content string `json:"content"`
}

// errOther ends a comparison with a run that is another one.
var errOther = errors.New("it is another run")

// Import brings the runs of an archive into a fleet. What every run will be is worked out before the first is written; runs that
// are there are compared then. It returns [ErrRunExists], [ErrPartly], [ErrNotEnded], [ErrBase], [ErrOpening], and the publisher's errors.
func Import(ctx context.Context, js jetstream.JetStream, a *Archive, to Target) ([]Imported, error) {
	if to.As != "" && len(a.Manifest.Runs) != 1 {
		return nil, fmt.Errorf("one name for %d runs: %w", len(a.Manifest.Runs), ErrRunExists)
	}
	settings, _, err := kvstore.NewFleets(js).Get(ctx, to.Fleet)
	if err != nil {
		return nil, err
	}
	if settings.Opening {
		return nil, ErrOpening
	}
	keys, err := to.Keys.Keys(ctx)
	if err != nil {
		return nil, err
	}
	im := &importer{js: js, a: a, to: &to, settings: settings, keys: keys}
	im.sign = func(e *schema.Event, digest string) error { return to.Keys.Sign(ctx, e, digest) }
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
		if to.OnRun != nil {
			to.OnRun(p.is)
		}
	}
	return done, nil
}

type importer struct {
	js       jetstream.JetStream
	a        *Archive
	to       *Target
	settings kvstore.FleetSettings
	keys     *schema.Keys
	sign     func(e *schema.Event, digest string) error
	plans    []*plan
	// bases are the heads of runs that forks of the archive begin with, by the fork's id in the archive.
	bases map[string]*schema.Base
}

// plan is what is to be done with one run.
type plan struct {
	was   *Run
	is    Imported
	names schema.Names
	base  *schema.Base
	// rewinds are the numbers of the records that the run goes on behind later.
	rewinds []int64
	blobs   map[string]bool
	// last is the stream sequence of the run's last message that is there.
	last uint64
}

func (im *importer) name(run string) string {
	if im.to.As != "" {
		return im.to.As
	}
	return im.to.Prefix + run
}

func (im *importer) renamed(p *plan) *renamed {
	return newRenamed(rekeyed{im.a.Keys, im.keys, im.sign}, im.a.Manifest.Fleet, im.to.Fleet, p.was.Run, p.is.Run, p.base, p.rewinds)
}

// plan works out what a run will be, compares it with what the fleet has, and refuses what must not be.
func (im *importer) plan(ctx context.Context, was *Run) error {
	p := &plan{was: was, is: Imported{Run: im.name(was.Run), Was: was.Run, Status: was.Status, Records: was.Records}}
	if err := schema.CheckName("run id", p.is.Run); err != nil {
		return err
	}
	if !was.Status.Terminal() && !im.to.Live {
		return fmt.Errorf("%w: it is %s", ErrNotEnded, was.Status)
	}
	if err := im.baseOf(ctx, p); err != nil {
		return err
	}
	if err := im.workOut(p); err != nil {
		return err
	}
	if err := im.place(ctx, p); err != nil {
		return err
	}
	if p.last != 0 {
		if err := im.compare(ctx, p); err != nil {
			return err
		}
	}
	im.plans = append(im.plans, p)
	return nil
}

// workOut renames the run once, so that everything that can be wrong with it is known before anything is written, and keeps
// what forks of it in the same archive begin with.
func (im *importer) workOut(p *plan) error {
	var forks []*Run
	for i := range im.a.Manifest.Runs {
		if b := im.a.Manifest.Runs[i].Base; b != nil && b.Run == p.was.Run {
			forks = append(forks, &im.a.Manifest.Runs[i])
		}
	}
	if err := im.rewindsOf(p); err != nil {
		return err
	}
	r, t := im.renamed(p), newTally(im.keys.Now(), p.is.Run)
	err := im.a.records(p.was.Run, func(rec *schema.Record) error {
		is, err := r.next(rec)
		if err != nil {
			return err
		}
		t.add(&is)
		for _, fork := range forks {
			if !at(&r.old, fork.Base) {
				continue
			}
			point, err := schema.ParsePoint(fork.Base.Point)
			if err != nil {
				return err
			}
			if im.bases == nil {
				im.bases = map[string]*schema.Base{}
			}
			base := schema.BaseOf(point, t.head.Records, &t.head, nil) // what it began later is said by the fork
			unplaced(base)
			im.bases[fork.Run] = base
		}
		return nil
	})
	if err != nil {
		return err
	}
	p.is.Digest, p.is.Content, p.blobs = t.head.Digest, t.content.String(), t.blobs
	if p.is.Content != p.was.Content {
		return damaged("", "run %s would have content %.16s… under the name %s, it has %.16s…", p.was.Run, p.is.Content, p.is.Run, p.was.Content)
	}
	return nil
}

// rewindsOf looks for the records that a run goes on behind: what their rewinds say of the run there follows from its name.
func (im *importer) rewindsOf(p *plan) error {
	return im.a.records(p.was.Run, func(rec *schema.Record) error {
		// What is no event stays as it is.
		if e, err := schema.Decode(rec.Header, rec.Body); err == nil && rewoundTo(e) != 0 {
			p.rewinds = append(p.rewinds, rewoundTo(e))
		}
		return nil
	})
}

// at reports whether a run stands where a fork of it begins.
func at(h *schema.Head, base *schema.BaseRef) bool {
	return h.Position.ID == base.Position.ID && h.Digest == base.Digest
}

// baseOf finds what a fork begins with: in the archive, where its name may be another now, or in the fleet.
func (im *importer) baseOf(ctx context.Context, p *plan) error {
	b := p.was.Base
	if b == nil {
		return nil
	}
	if base := im.bases[p.was.Run]; base != nil {
		if base.Run != b.Run || base.Digest != b.Digest {
			p.base = base
		}
		return nil
	}
	t, found := newTally(im.keys, b.Run), false
	err := im.to.Source.Events(ctx, b.Run, func(rec schema.Record) error {
		t.add(&rec)
		if found = at(&t.head, b); found {
			return errOther
		}
		return nil
	})
	switch {
	case found:
		return nil
	case err == nil, errors.Is(err, publisher.ErrRunNotFound):
		return fmt.Errorf("%w: run %s up to message %d", ErrBase, b.Run, b.Records)
	}
	return err
}

// place finds the shard that has the run, or where it is to begin.
func (im *importer) place(ctx context.Context, p *plan) error {
	shards := im.settings.Candidates(p.is.Run)
	for _, i := range shards {
		names := schema.NamesOf(im.to.Fleet, i)
		rec, there, err := runlog.Last(ctx, im.js, names, p.is.Run)
		if err != nil {
			return err
		}
		if !there || isMark(&rec) {
			continue // with a mark the run is, or was to be, in another shard
		}
		p.names, p.last = names, uint64(rec.Stream)
		return nil
	}
	p.names = schema.NamesOf(im.to.Fleet, shards[0])
	return nil
}

// compare compares a run that is there with what it would be.
func (im *importer) compare(ctx context.Context, p *plan) error {
	there, stop := make(chan *schema.Record), make(chan struct{})
	ended := make(chan error, 1)
	go func() {
		r := im.renamed(p)
		err := im.a.records(p.was.Run, func(rec *schema.Record) error {
			is, err := r.next(rec)
			if err != nil {
				return err
			}
			select {
			case there <- &is:
				return nil
			case <-stop:
				return errOther
			}
		})
		close(there)
		ended <- err
	}()
	first := true
	err := im.to.Source.Events(ctx, p.is.Run, func(rec schema.Record) error {
		if first {
			if first = false; isMark(&rec) {
				return nil
			}
		}
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
	for range there { // what was on its way is let go
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

// write brings one run into the fleet.
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
	r := im.renamed(p)
	var batch []*nats.Msg
	size, n := 0, int64(0)
	err := im.a.records(p.was.Run, func(rec *schema.Record) error {
		is, err := r.next(rec)
		if n++; err != nil || n <= p.is.Before {
			return err
		}
		msg := &nats.Msg{Subject: p.names.EventSubject(p.is.Run), Header: nats.Header(maps.Clone(is.Header)), Data: slices.Clone(is.Body)}
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

// publish stores messages of a run behind what it has, all or none of them.
func (im *importer) publish(ctx context.Context, p *plan, batch []*nats.Msg) error {
	ctx, cancel := context.WithTimeout(ctx, batchWait)
	defer cancel()
	id, last := rand.Text(), len(batch)-1
	batch[0].Header[jetstream.ExpectedLastSubjSeqHeader] = []string{strconv.FormatUint(p.last, 10)}
	if last > 0 {
		for i, msg := range batch {
			msg.Header["Nats-Batch-Id"] = []string{id}
			msg.Header["Nats-Batch-Sequence"] = []string{strconv.Itoa(i + 1)}
			if i == last {
				msg.Header["Nats-Batch-Commit"] = []string{"1"}
				break
			}
			if err := im.js.Conn().PublishMsg(msg); err != nil {
				return err // without its end the server drops the batch
			}
		}
	}
	ack, err := im.js.PublishMsg(ctx, batch[last], jetstream.WithRetryAttempts(0))
	if err != nil {
		if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, nats.ErrTimeout) {
			return fmt.Errorf("whether its events are there is not known: import it again: %w", err)
		}
		var api *jetstream.APIError
		if errors.As(err, &api) && api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequence {
			return fmt.Errorf("%w: somebody wrote to it meanwhile: %w", ErrRunExists, err)
		}
		return err
	}
	p.last = ack.Sequence
	return nil
}

// writeBlobs stores what the run's events refer to, before them.
func (im *importer) writeBlobs(ctx context.Context, p *plan) error {
	if len(p.blobs) == 0 {
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

// Describe is one line about a run, for people.
func (i *Imported) Describe() string {
	s := i.Was
	if i.Run != i.Was {
		s += " as " + i.Run
	}
	return strings.Join([]string{s, i.Fate, fmt.Sprintf("%d messages", i.Records)}, ", ")
}
