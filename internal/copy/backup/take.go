package backup

import (
	"context"
	"crypto/rand"
	stdjson "encoding/json" // the form of stream descriptions is defined by it
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/waymarkio/waymark/internal/base/durable"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

// Config is what to back up, and where to.
type Config struct {
	// Fleet to back up. Required.
	Fleet string
	// Dir is the directory to create. Required; it must not exist, its parent must.
	Dir string
	// Actor is the name under which the backup is recorded. Required.
	Actor string
	// Now tells the time. Required.
	Now func() time.Time
	// OnStream is called when a stream is about to be read or restored, with its size. It may be nil.
	OnStream func(stream string, bytes uint64)
}

func (c *Config) validate() error {
	switch {
	case c.Dir == "":
		return fmt.Errorf("%w: no directory is named", ErrConfig)
	case c.Now == nil:
		return fmt.Errorf("%w: there is no clock", ErrConfig)
	}
	return errors.Join(schema.CheckName("fleet", c.Fleet), schema.CheckName("actor", c.Actor))
}

// Take backs a running fleet up into a directory. See the package's documentation for its content. The directory
// appears when it is complete. Take returns [ErrExists], [ErrSnapshot], [ErrStale], [ErrChanged], and kvstore's
// errors for a fleet that does not exist.
func Take(ctx context.Context, js jetstream.JetStream, cfg Config) (*Manifest, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	m, err := take(ctx, js, &cfg)
	if err != nil {
		return nil, fmt.Errorf("back up fleet %s: %w", cfg.Fleet, err)
	}
	return m, nil
}

func take(ctx context.Context, js jetstream.JetStream, cfg *Config) (m *Manifest, err error) {
	settings, rev, err := kvstore.NewFleets(js).Get(ctx, cfg.Fleet)
	if err != nil {
		return nil, err
	}
	if _, err := os.Lstat(cfg.Dir); err == nil {
		return nil, fmt.Errorf("%s: %w", cfg.Dir, ErrExists)
	}
	parent, base := filepath.Split(filepath.Clean(cfg.Dir))
	if parent == "" {
		parent = "."
	}
	if err := sweep(parent, cfg.Now().Add(-abandonedAfter)); err != nil {
		return nil, err
	}
	partial, err := os.MkdirTemp(parent, "."+base+".partial-")
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(partial))
		}
	}()
	t := &taker{js: js, cfg: cfg, dir: partial, m: &Manifest{
		Format: Format, ID: rand.Text(), Fleet: cfg.Fleet, Settings: settings, Began: schema.FormatTime(cfg.Now()),
	}}
	if err := t.streams(ctx); err != nil {
		return nil, err
	}
	if _, now, err := kvstore.NewFleets(js).Get(ctx, cfg.Fleet); err != nil || now != rev {
		return nil, errors.Join(err, fmt.Errorf("the settings: %w", ErrChanged))
	}
	t.m.Ended = schema.FormatTime(cfg.Now())
	b, err := t.m.encode()
	if err != nil {
		return nil, err
	}
	// The manifest comes last, and the directory's own name after it.
	if err := durable.SyncDir(filepath.Join(partial, streamsDir)); err != nil {
		return nil, err
	}
	if _, err := writeFile(filepath.Join(partial, manifestName), b); err != nil {
		return nil, err
	}
	if err := durable.SyncDir(partial); err != nil {
		return nil, err
	}
	if _, err := os.Lstat(cfg.Dir); err == nil {
		return nil, fmt.Errorf("%s: %w", cfg.Dir, ErrExists) // a rename would replace an empty one
	}
	if err := os.Rename(partial, cfg.Dir); err != nil {
		return nil, err
	}
	if err := durable.SyncDir(parent); err != nil {
		return nil, err
	}
	record := kvstore.BackupRecord{ID: t.m.ID, Began: t.m.Began, Ended: t.m.Ended, Bytes: t.m.Bytes(), By: cfg.Actor}
	if err := kvstore.PutBackup(ctx, js, cfg.Fleet, record); err != nil {
		return t.m, fmt.Errorf("the backup in %s is complete, but could not be recorded: %w", cfg.Dir, err)
	}
	return t.m, nil
}

// abandonedAfter is how long a backup writes nothing until the next one in the same directory takes its process for dead.
const abandonedAfter = 24 * time.Hour

// sweep removes what killed backups have left in a directory: those in which no file was written since a time.
func sweep(parent string, since time.Time) error {
	entries, err := os.ReadDir(parent)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if !entry.IsDir() || !strings.HasPrefix(entry.Name(), ".") || !strings.Contains(entry.Name(), ".partial-") {
			continue
		}
		alive, dir := false, filepath.Join(parent, entry.Name())
		err := filepath.WalkDir(dir, func(_ string, d os.DirEntry, err error) error {
			if err == nil {
				var info os.FileInfo
				info, err = d.Info()
				alive = alive || err == nil && info.ModTime().After(since)
			}
			return err
		})
		switch {
		case errors.Is(err, os.ErrNotExist): // another backup finished or removed it
		case err != nil:
			return err
		case !alive:
			if err := os.RemoveAll(dir); err != nil {
				return err
			}
		}
	}
	return nil
}

// taker is one backup in progress.
type taker struct {
	js  jetstream.JetStream
	cfg *Config
	dir string
	m   *Manifest
	// before is the content of each shard's log before any stream was read, and of the blob store when it was read.
	before      []amount
	blobsBefore amount
	// segmentsBefore is the last sequence of each shard's segments, and blobsGone the number of messages that had left the
	// blob store by then.
	segmentsBefore []uint64
	blobsGone      uint64
	// about are the descriptions of the streams.
	about map[string]description
}

// amount is the number of messages of a stream up to a sequence, without barriers.
type amount struct{ last, messages uint64 }

const (
	// tries is the number of attempts to read the streams without a loss of data during the read.
	tries = 3
	// renewEvery is how often the pause of purges and removals is renewed.
	renewEvery = kvstore.PauseFor / 3
)

// streams reads all streams, while the daemon pauses purges and removals. The daemon purges a full
// log all the same. Then try reads everything again.
func (t *taker) streams(ctx context.Context) error {
	if err := kvstore.Pause(ctx, t.js, t.cfg.Fleet, t.cfg.Now().Add(kvstore.PauseFor)); err != nil {
		return err
	}
	reading, stop := context.WithCancel(ctx)
	var renewing sync.WaitGroup
	renewing.Go(func() {
		again := time.NewTicker(renewEvery)
		defer again.Stop()
		for {
			select {
			case <-again.C:
				// What leaves a stream after a pause that was not renewed is noticed.
				_ = kvstore.Pause(reading, t.js, t.cfg.Fleet, t.cfg.Now().Add(kvstore.PauseFor))
			case <-reading.Done():
				return
			}
		}
	})
	defer func() {
		stop()
		renewing.Wait()
		ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
		defer cancel()
		_ = kvstore.Pause(ending, t.js, t.cfg.Fleet, t.cfg.Now()) // it ends by itself, too
	}()
	for try := 1; ; try++ {
		err := t.try(ctx)
		if err == nil || try == tries || !errors.Is(err, ErrChanged) {
			return err
		}
		if err := os.RemoveAll(filepath.Join(t.dir, streamsDir)); err != nil {
			return err
		}
	}
}

// try reads all streams once, segments before logs before blobs. It is complete if no data left a stream during the read.
func (t *taker) try(ctx context.Context) error {
	if err := os.Mkdir(filepath.Join(t.dir, streamsDir), 0o700); err != nil {
		return err
	}
	list := streamNames(&t.m.Settings)
	t.m.Shards, t.m.Streams = nil, make([]Stream, len(list))
	t.before, t.segmentsBefore, t.about = nil, nil, map[string]description{}
	for i := range t.m.Settings.Shards {
		if err := t.begin(ctx, i); err != nil {
			return fmt.Errorf("shard %d: %w", i, err)
		}
	}
	blobs := "OBJ_" + schema.BlobBucket(t.cfg.Fleet)
	has, err := t.reach(ctx, blobs, t.nothingIn(blobs))
	if err != nil {
		return err
	}
	t.blobsGone = has.LastSeq - has.Msgs
	for _, kind := range []kind{segmentStream, logStream, blobStream, letterStream} {
		for i, s := range list {
			if s.kind != kind {
				continue
			}
			if err := t.read(ctx, s, &t.m.Streams[i]); err != nil {
				return err
			}
		}
	}
	return nil
}

// begin reaches the leaders of a shard's streams by an action that needs a quorum: an isolated server would not know
// messages acknowledged elsewhere.
func (t *taker) begin(ctx context.Context, shard int) error {
	names := schema.NamesOf(t.cfg.Fleet, shard)
	e := schema.Event{
		ID: schema.BarrierRun + "." + rand.Text(), Source: schema.Source(t.cfg.Fleet, t.cfg.Actor),
		Type: schema.TypeOf(schema.Barrier), Subject: schema.BarrierRun, Time: schema.FormatTime(t.cfg.Now()),
	}
	header, body := e.Encode()
	wait, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	ack, err := t.js.PublishMsg(wait, &nats.Msg{Subject: names.EventSubject(schema.BarrierRun), Header: header, Data: body})
	if err != nil {
		return fmt.Errorf("barrier: %w", err)
	}
	t.m.Shards = append(t.m.Shards, ShardCut{Shard: shard, Barrier: schema.StreamSequence(ack.Sequence)})
	log, err := t.js.Stream(ctx, names.EventStream())
	if err != nil {
		return fmt.Errorf("stream %s: %w", names.EventStream(), err)
	}
	barriers := names.EventSubject(schema.BarrierRun)
	info, err := log.Info(ctx, jetstream.WithSubjectFilter(barriers))
	if err != nil {
		return fmt.Errorf("stream %s: %w", names.EventStream(), err)
	}
	t.before = append(t.before, amount{info.State.LastSeq, info.State.Msgs - info.State.Subjects[barriers]})
	segments, err := t.reach(ctx, "KV_"+names.SegmentBucket(), nothingIn(names))
	t.segmentsBefore = append(t.segmentsBefore, segments.LastSeq)
	return err
}

// reach makes a stream's leader purge nothing, which needs a quorum, and returns the stream's state.
func (t *taker) reach(ctx context.Context, stream, nothing string) (jetstream.StreamState, error) {
	s, err := t.js.Stream(ctx, stream)
	if err == nil {
		err = s.Purge(ctx, jetstream.WithPurgeSubject(nothing))
	}
	var info *jetstream.StreamInfo
	if err == nil {
		info, err = s.Info(ctx)
	}
	if err != nil {
		return jetstream.StreamState{}, fmt.Errorf("stream %s: %w", stream, err)
	}
	return info.State, nil
}

// path of a stream's file.
func (t *taker) path(stream, name string) string {
	return filepath.Join(t.dir, streamsDir, stream, name)
}

// read writes one stream's files from the server's delivery.
func (t *taker) read(ctx context.Context, s named, is *Stream) error {
	if err := os.Mkdir(filepath.Join(t.dir, streamsDir, s.name), 0o700); err != nil {
		return err
	}
	content, err := create(t.path(s.name, contentName))
	if err != nil {
		return err
	}
	is.Name = s.name
	atLeast := uint64(0)
	switch s.kind {
	case segmentStream:
		atLeast = t.segmentsBefore[s.shard]
	case logStream:
		atLeast = uint64(t.m.Shards[s.shard].Barrier)
	case blobStream, letterStream:
		// No message stored before the log's cut may be missing: the delivering server must know all of them.
		has, err := t.reach(ctx, s.name, t.nothingIn(s.name))
		if err != nil {
			_, err2 := content.finish()
			return errors.Join(err, err2)
		}
		atLeast = has.LastSeq
	}
	err = snapshot(ctx, t.js, s.name, content, func(about description, has state) error {
		t.about[s.name] = about
		is.FirstSeq, is.LastSeq = has.FirstSeq, has.LastSeq
		if has.LastSeq < atLeast {
			return fmt.Errorf("stream %s ends at %d, before %d: %w", s.name, has.LastSeq, atLeast, ErrStale)
		}
		if s.kind == logStream {
			t.m.Shards[s.shard].Cut = schema.StreamSequence(has.LastSeq)
		}
		if s.kind == blobStream {
			if t.blobsBefore = (amount{has.LastSeq, has.Messages}); has.LastSeq-has.Messages != t.blobsGone {
				return fmt.Errorf("stream %s: messages left it: %w", s.name, ErrChanged)
			}
		}
		if t.cfg.OnStream != nil {
			t.cfg.OnStream(s.name, has.Bytes)
		}
		return nil
	})
	file, err2 := content.finish()
	if err := errors.Join(err, err2); err != nil {
		return err
	}
	is.Files = []File{{}, file}
	if err := t.count(s, is); err != nil {
		return err
	}
	return t.describe(is)
}

// count reads a stream's file once, so that only complete files are kept, and counts its messages. No event may have
// left a log since before the segments were read: up to there their number is the same, and each later event follows
// the one that it names. No blob may have left its stream while that was read.
func (t *taker) count(s named, is *Stream) error {
	f, err := os.Open(t.path(s.name, contentName))
	if err != nil {
		return err
	}
	var before amount
	barriers := ""
	switch s.kind {
	case logStream:
		before, barriers = t.before[s.shard], schema.NamesOf(t.cfg.Fleet, s.shard).EventSubject(schema.BarrierRun)
	case blobStream:
		before = t.blobsBefore
	case segmentStream, letterStream:
	}
	older, last := uint64(0), map[string]uint64{}
	err = readContent(f, func(stdjson.RawMessage) error { return nil }, func(m *message) error {
		is.Messages++
		if m.subject == barriers {
			return nil
		}
		if m.seq <= before.last {
			older++
		}
		if s.kind != logStream {
			return nil
		}
		if behind := m.behind(); behind > before.last && last[m.subject] != behind {
			return fmt.Errorf("event %d left it: %w", behind, ErrChanged)
		}
		last[m.subject] = m.seq
		return nil
	})
	switch {
	case errors.Is(err, ErrDamaged):
		err = fmt.Errorf("%w: %w", ErrSnapshot, err)
	case err == nil && older != before.messages:
		err = fmt.Errorf("%d of %d messages are left: %w", older, before.messages, ErrChanged)
	}
	for subject := range last {
		if schema.NamesOf(t.cfg.Fleet, s.shard).RunOfSubject(subject) != "" {
			t.m.Shards[s.shard].Runs++
		}
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("stream %s: %w", s.name, err)
	}
	return nil
}

// nothingIn is a subject of a segment bucket without messages.
func nothingIn(names schema.Names) string { return "$KV." + names.SegmentBucket() + "._.backup" }

// nothingIn is a subject of the large payloads or dead letters without messages.
func (t *taker) nothingIn(stream string) string {
	if stream == schema.DeadLetterStream(t.cfg.Fleet) {
		return "waymark.deadletters." + t.cfg.Fleet + "._backup._backup"
	}
	return "$O." + schema.BlobBucket(t.cfg.Fleet) + ".C._backup"
}
