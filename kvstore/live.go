package kvstore

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/waymarkio/waymark/internal/nats/eventlog"
	"github.com/waymarkio/waymark/schema"
)

const (
	// liveMarkAge is how long the delete marker of an entry stays.
	liveMarkAge = 10 * time.Second
	// deletesInFlight bounds the concurrent requests that delete keys.
	deletesInFlight = 16
)

// LiveEntry is a run's entry of the live index, or what is known of it.
type LiveEntry struct {
	// Run in the key.
	Run string
	// Live is nil if the entry was deleted, or is unreadable.
	Live *schema.Live
	// Revision of the entry, or of its deletion.
	Revision schema.Revision
	// Untold: it is an entry of the index of ends that a parent was not told of instead; Gone if it was deleted.
	Untold, Gone bool
	// Err says why the entry is unreadable: it wraps [ErrCorrupt], and the fold worker puts the entry again from the
	// run's checkpoint; or schema.ErrFormat for another version.
	Err error
}

// LivePut is an entry to put into the live index.
type LivePut struct {
	Live schema.Live
	// Revision that the entry must have; 0 puts over any entry.
	Revision schema.Revision
}

// LiveAt is an entry of the live index at a revision.
type LiveAt struct {
	Run      string
	Revision schema.Revision
}

func liveEntry(run string, e entry) LiveEntry {
	l := LiveEntry{Run: run, Revision: e.rev}
	if e.deleted {
		return l
	}
	live, err := decodeFormat[schema.Live](e.value, schema.LiveFormat)
	if err == nil && live.Run != run {
		err = fmt.Errorf("it is one of run %.64q: %w", live.Run, ErrCorrupt)
	}
	if err != nil {
		l.Err = fmt.Errorf("live entry of run %s: %w", run, err)
		return l
	}
	l.Live = &live
	return l
}

// PutLive puts entries into the live index and returns their revisions. Call it before the first checkpoint of a run
// is put, so that no live run is ever missing from the index, and again when an entry changes. Every put gives an
// entry a new revision, even without a change. The size of an entry is bounded by the caps of the head.
//
// An error names the first entry that was not put: [ErrConflict] if it did not have the given revision. Entries that
// were not put have revision 0.
func (c *Checkpoints) PutLive(ctx context.Context, entries ...LivePut) (revisions []schema.Revision, err error) {
	for i, r := range c.bucket.fly(ctx, len(entries), func(i int) (*nats.Msg, error) {
		e := &entries[i]
		if err := schema.CheckName("run id", e.Live.Run); err != nil {
			return nil, err
		}
		return c.bucket.entryOf(schema.LiveKeyPrefix+e.Live.Run, &e.Live, e.Revision)
	}) {
		if r.Err != nil && err == nil {
			err = fmt.Errorf("put run %.64q into the live index: %w", entries[i].Live.Run, r.Err)
		}
		revisions = append(revisions, r.Revision)
	}
	return revisions, err
}

// EraseLive deletes entries from the live index, each only at its revision: a run that was reopened in the meantime
// has another one, and stays. Call it after the put of the checkpoint that ends the run, with revisions known before.
// The results are the revision of the deletion, or [ErrConflict].
//
// The server keeps a delete marker for liveMarkAge, so that watchers of the index see the deletion. After kill -9 of a
// single server even the entry can come back: the fold worker that finds one of an ended run deletes it again.
func (c *Checkpoints) EraseLive(ctx context.Context, entries ...LiveAt) []Result {
	results := c.bucket.fly(ctx, len(entries), func(i int) (*nats.Msg, error) {
		e := &entries[i]
		if err := schema.CheckName("run id", e.Run); err != nil {
			return nil, err
		}
		if e.Revision == 0 {
			return nil, fmt.Errorf("without a revision: %w", ErrConflict)
		}
		return c.bucket.erasure(schema.LiveKeyPrefix+e.Run, e.Revision), nil
	})
	for i := range results {
		if results[i].Err != nil {
			results[i].Err = fmt.Errorf("erase run %.64s from the live index: %w", entries[i].Run, results[i].Err)
		}
	}
	return results
}

// erasure builds the deletion of a key at a revision, of which watchers learn.
func (b *bucket) erasure(key string, rev schema.Revision) *nats.Msg {
	header := nats.Header{headerOperation: {operationPurge}, headerRollup: {rollupSubject}, jetstream.MsgTTLHeader: {liveMarkAge.String()}}
	return b.message(key, nil, header, true, rev)
}

// Told deletes the entry of a run's end at its revision: its parent was told. A later end has a later one, and stays.
func (c *Checkpoints) Told(ctx context.Context, run string, rev schema.Revision) error {
	told := c.bucket.fly(ctx, 1, func(int) (*nats.Msg, error) { return c.bucket.erasure(schema.UntoldKeyPrefix+run, rev), nil })[0]
	if told.Err != nil && !errors.Is(told.Err, ErrConflict) {
		return fmt.Errorf("end of run %s: %w", run, told.Err)
	}
	return nil
}

// LiveOf reads one run's entry from the leader, even if it was deleted or is unreadable. It returns [ErrNotFound] if
// there is nothing.
func (c *Checkpoints) LiveOf(ctx context.Context, run string) (LiveEntry, error) {
	if err := schema.CheckName("run id", run); err != nil {
		return LiveEntry{}, err
	}
	e, err := c.bucket.getFresh(ctx, schema.LiveKeyPrefix+run)
	if err != nil && !e.deleted {
		return LiveEntry{Run: run}, fmt.Errorf("live entry of run %s: %w", run, err)
	}
	return liveEntry(run, e), nil
}

// Live returns the entries of some runs, in their order, including unreadable ones; without runs, the whole live index.
// It may be stale: upTo is as in [Checkpoints.Of], for up to a thousand runs.
func (c *Checkpoints) Live(ctx context.Context, runs ...string) (entries []LiveEntry, upTo schema.Revision, err error) {
	if runs == nil {
		if runs, _, err = c.LiveRuns(ctx); err != nil {
			return nil, 0, err
		}
	}
	keys := make([]string, len(runs), len(runs)+1)
	for i, run := range runs {
		keys[i] = schema.LiveKeyPrefix + run
	}
	found := make(map[string]LiveEntry, len(runs))
	upTo, err = c.bucket.many(ctx, append(keys, schema.WatermarkKey), func(e entry) { found[e.key] = liveEntry(strings.TrimPrefix(e.key, schema.LiveKeyPrefix), e) })
	if err != nil {
		return nil, 0, fmt.Errorf("read the live index of %s: %w", c.bucket.name, err)
	}
	for _, key := range keys {
		if e, ok := found[key]; ok {
			entries = append(entries, e)
		}
	}
	return entries, upTo, nil
}

// LiveWatch delivers the content of the live index, and of the index of untold ends, and then their changes.
//
//	watching ──every entry once──▶ synced ──changes, in order──▶ … ──any error──▶ broken
//
// A broken watch is over: close it and begin another, which delivers everything again. That way no change is missed,
// not even that the bucket was deleted and created again.
type LiveWatch struct {
	bucket *bucket
	follow *eventlog.Follower
	synced bool
	told   bool
}

// WatchLive begins a watch. It returns [ErrStreamMissing] if there is no bucket.
func (c *Checkpoints) WatchLive(ctx context.Context) (*LiveWatch, error) {
	ctx, cancel := withDeadline(ctx)
	defer cancel()
	follow, err := eventlog.FollowKeys(ctx, c.bucket.js.Conn(), c.bucket.js, c.bucket.stream, c.bucket.prefix+schema.LiveKeyPrefix+"*", c.bucket.prefix+schema.UntoldKeyPrefix+"*")
	if err != nil {
		return nil, fmt.Errorf("watch the live index: %w", translate(err))
	}
	return &LiveWatch{bucket: &c.bucket, follow: follow, synced: follow.Pending() == 0}, nil
}

// Close ends the watch.
func (w *LiveWatch) Close(ctx context.Context) { w.follow.Close(ctx, w.bucket.js) }

// Next returns the next entry or change, and waits for it until ctx ends. synced is true, once, when all entries that
// existed at the beginning have been returned; then there may be no entry with it (Run is empty). Any error except
// that of ctx means that the watch is broken.
func (w *LiveWatch) Next(ctx context.Context) (e LiveEntry, synced bool, err error) {
	for {
		if w.synced && !w.told {
			w.told = true
			return LiveEntry{}, true, nil
		}
		m, idle, err := w.follow.NextOrIdle(ctx)
		if err != nil {
			return LiveEntry{}, false, err
		}
		if idle {
			// The message that should end the snapshot may have been deleted before it was sent.
			if !w.synced {
				waiting, err := w.follow.Waiting(ctx)
				if err != nil {
					return LiveEntry{}, false, err
				}
				w.synced = waiting == 0
			}
			continue
		}
		w.synced = w.synced || m.Pending == 0
		if run, untold := strings.CutPrefix(m.Subject, w.bucket.prefix+schema.UntoldKeyPrefix); untold {
			return LiveEntry{Run: run, Revision: schema.Revision(m.Record.Stream), Untold: true, Gone: deletion(m.Record.Header)}, false, nil
		}
		run, ours := strings.CutPrefix(m.Subject, w.bucket.prefix+schema.LiveKeyPrefix)
		if !ours || !schema.ValidName(run) {
			continue
		}
		return liveEntry(run, entry{
			value: m.Record.Body, rev: schema.Revision(m.Record.Stream), deleted: deletion(m.Record.Header),
		}), false, nil
	}
}
