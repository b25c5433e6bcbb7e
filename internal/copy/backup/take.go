package backup

import (
	"cmp"
	"context"
	"crypto/rand"
	stdjson "encoding/json" // the form of stream descriptions is defined by it
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
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

// taker is one backup in progress.
type taker struct {
	js  jetstream.JetStream
	cfg *Config
	dir string
	m   *Manifest
	// segmentsBefore is the last sequence of each shard's segments before its log was read.
	segmentsBefore []uint64
	// about are the descriptions of the streams.
	about map[string]description
}

// streams reads all streams and repairs the differences between their moments.
func (t *taker) streams(ctx context.Context) error {
	if err := os.Mkdir(filepath.Join(t.dir, streamsDir), 0o700); err != nil {
		return err
	}
	t.about = map[string]description{}
	for i := range t.m.Settings.Shards {
		if err := t.begin(ctx, i); err != nil {
			return fmt.Errorf("shard %d: %w", i, err)
		}
	}
	for _, s := range streamNames(&t.m.Settings) {
		if err := t.read(ctx, s); err != nil {
			return err
		}
	}
	gone := map[string]bool{}
	for i := range t.m.Settings.Shards {
		if err := t.mend(ctx, i); err != nil {
			return fmt.Errorf("shard %d: %w", i, err)
		}
		for _, run := range t.m.Shards[i].Erased {
			gone[run] = true
		}
	}
	letters, blobs := t.m.of(schema.DeadLetterStream(t.cfg.Fleet)), t.m.of("OBJ_"+schema.BlobBucket(t.cfg.Fleet))
	if err := t.leaveOut(gone, letters, blobs); err != nil {
		return err
	}
	return errors.Join(t.describe(blobs), t.describe(letters))
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
	segments, err := t.reach(ctx, "KV_"+names.SegmentBucket(), nothingIn(names))
	t.segmentsBefore = append(t.segmentsBefore, segments)
	return err
}

// reach makes a stream's leader purge nothing, which needs a quorum, and returns the stream's last sequence.
func (t *taker) reach(ctx context.Context, stream, nothing string) (uint64, error) {
	s, err := t.js.Stream(ctx, stream)
	if err != nil {
		return 0, fmt.Errorf("stream %s: %w", stream, err)
	}
	if err := s.Purge(ctx, jetstream.WithPurgeSubject(nothing)); err != nil {
		return 0, fmt.Errorf("stream %s: %w", stream, err)
	}
	info, err := s.Info(ctx)
	if err != nil {
		return 0, fmt.Errorf("stream %s: %w", stream, err)
	}
	return info.State.LastSeq, nil
}

// path of a stream's file.
func (t *taker) path(stream, name string) string {
	return filepath.Join(t.dir, streamsDir, stream, name)
}

// read writes one stream's files from the server's delivery.
func (t *taker) read(ctx context.Context, s named) error {
	if err := os.Mkdir(filepath.Join(t.dir, streamsDir, s.name), 0o700); err != nil {
		return err
	}
	content, err := create(t.path(s.name, contentName))
	if err != nil {
		return err
	}
	is := Stream{Name: s.name}
	atLeast := uint64(0)
	if s.kind == otherStream {
		// No message stored before the log's cut may be missing: the delivering server must know all of them.
		if atLeast, err = t.reach(ctx, s.name, t.nothingIn(s.name)); err != nil {
			_, err2 := content.finish()
			return errors.Join(err, err2)
		}
	}
	err = snapshot(ctx, t.js, s.name, content, func(about description, has state) error {
		t.about[s.name] = about
		is.FirstSeq, is.LastSeq = has.FirstSeq, has.LastSeq
		if s.kind == logStream {
			cut := &t.m.Shards[s.shard]
			if cut.Cut = schema.StreamSequence(has.LastSeq); cut.Cut < cut.Barrier {
				return fmt.Errorf("stream %s ends at %d, before %d: %w", s.name, cut.Cut, cut.Barrier, ErrStale)
			}
		}
		if has.LastSeq < atLeast {
			return fmt.Errorf("stream %s ends at %d, before %d: %w", s.name, has.LastSeq, atLeast, ErrStale)
		}
		if s.kind == segmentStream && has.LastSeq < t.segmentsBefore[s.shard] {
			return fmt.Errorf("stream %s ends at %d, before %d: %w", s.name, has.LastSeq, t.segmentsBefore[s.shard], ErrStale)
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
	if s.kind == otherStream {
		if err := t.count(&is); err != nil {
			return err
		}
	}
	t.m.Streams = append(t.m.Streams, is)
	return nil
}

// count reads a stream's file once and counts its messages, so that only complete files are kept.
func (t *taker) count(s *Stream) error {
	f, err := os.Open(t.path(s.Name, contentName))
	if err != nil {
		return err
	}
	err = readContent(f, func(stdjson.RawMessage) error { return nil }, func(*message) error {
		s.Messages++
		return nil
	})
	if err != nil {
		err = fmt.Errorf("stream %s: %w: %w", s.Name, ErrSnapshot, err)
	}
	return errors.Join(err, f.Close())
}

// rewrite writes a stream's file again: without the messages that must not be kept, and with the missing ones, which
// are in order. The state at the beginning of the file is counted first.
func (t *taker) rewrite(s *Stream, missing []message, keep func(*message) bool) error {
	old := t.path(s.Name, contentName)
	var counted state
	if err := stdjson.Unmarshal(t.about[s.Name].State, &counted); err != nil {
		return err
	}
	pass := func(add func(*message) error) error {
		left := missing
		upTo := func(seq uint64) error {
			for len(left) > 0 && left[0].seq < seq {
				back := left[0]
				left = left[1:]
				if err := add(&back); err != nil {
					return err
				}
			}
			return nil
		}
		f, err := os.Open(old)
		if err != nil {
			return err
		}
		err = readContent(f, func(stdjson.RawMessage) error { return nil }, func(m *message) error {
			if err := upTo(m.seq); err != nil || !keep(m) {
				return err
			}
			return add(m)
		})
		if err == nil {
			err = upTo(math.MaxUint64)
		}
		return errors.Join(err, f.Close())
	}
	counted.Messages, counted.Bytes = 0, 0
	err := pass(func(m *message) error {
		counted.Messages++
		counted.Bytes += m.stored()
		counted.FirstSeq = min(counted.FirstSeq, m.seq)
		return nil
	})
	if err != nil {
		return err
	}
	st, err := stdjson.Marshal(counted)
	if err != nil {
		return err
	}
	next, err := create(old + ".new")
	if err != nil {
		return err
	}
	w, err := newContentWriter(next, st)
	if err == nil {
		err = pass(w.add)
	}
	if err == nil {
		err = w.end()
	}
	is, err2 := next.finish()
	if err := errors.Join(err, err2); err != nil {
		return err
	}
	if err := os.Rename(old+".new", old); err != nil {
		return err
	}
	is.Name = contentName
	s.Messages, s.FirstSeq, s.Files[1] = counted.Messages, counted.FirstSeq, is
	about := t.about[s.Name]
	about.State = st
	t.about[s.Name] = about
	return nil
}

// subjectsOf are the subjects of a stream that match a filter.
func subjectsOf(ctx context.Context, js jetstream.JetStream, stream, filter string) (map[string]bool, error) {
	s, err := js.Stream(ctx, stream)
	if err != nil {
		return nil, fmt.Errorf("subjects of %s: %w", stream, err)
	}
	info, err := s.Info(ctx, jetstream.WithSubjectFilter(filter))
	if err != nil {
		return nil, fmt.Errorf("subjects of %s: %w", stream, err)
	}
	has := make(map[string]bool, len(info.State.Subjects))
	for subject := range info.State.Subjects {
		has[subject] = true
	}
	return has, nil
}

// mend makes a shard's files those of one moment: its cut.
func (t *taker) mend(ctx context.Context, shard int) error {
	names := schema.NamesOf(t.cfg.Fleet, shard)
	cut := &t.m.Shards[shard]
	events, segments := t.m.of(names.EventStream()), t.m.of("KV_"+names.SegmentBucket())
	// The following requests ask what became of runs while the streams were read: an isolated server would not know.
	if _, err := t.reach(ctx, segments.Name, nothingIn(names)); err != nil {
		return err
	}
	if _, err := t.reach(ctx, events.Name, names.EventSubject("_nothing")); err != nil {
		return err
	}
	there, err := subjectsOf(ctx, t.js, names.EventStream(), names.EventSubjects())
	if err != nil {
		return err
	}
	removed, err := t.removedSince(ctx, names, cut.Cut)
	if err != nil {
		return err
	}
	late, err := t.lateSegments(segments, cut)
	if err != nil {
		return err
	}
	log, err := t.compareLog(names, events, late, there, removed)
	if err != nil {
		return err
	}
	put := log.settle(names, removed, cut)
	if len(put) > 0 || len(log.gone) > 0 {
		if err := t.rewrite(events, put, func(m *message) bool { return !log.gone[m.subject] }); err != nil {
			return fmt.Errorf("stream %s: %w", events.Name, err)
		}
	}
	prefix := "$KV." + names.SegmentBucket() + "."
	keep := func(m *message) bool {
		key := strings.TrimPrefix(m.subject, prefix)
		run, _, _ := strings.Cut(key, ".")
		return late[m.seq] == nil && !log.gone[names.EventSubject(run)]
	}
	if len(late) > 0 || len(log.gone) > 0 {
		if err := t.rewrite(segments, nil, keep); err != nil {
			return fmt.Errorf("stream %s: %w", segments.Name, err)
		}
	}
	return errors.Join(t.describe(events), t.describe(segments))
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

// lateSegment is a segment beyond the cut, with its events up to there.
type lateSegment struct {
	run     string
	records []schema.Record
}

// lateSegments finds the segments that were stored during the backup and reach beyond the cut, by their positions in
// the bucket's stream. If an older one reaches beyond it, the log has lost its end: the segment is kept, as it is the
// only copy.
func (t *taker) lateSegments(s *Stream, cut *ShardCut) (map[uint64]*lateSegment, error) {
	f, err := os.Open(t.path(s.Name, contentName))
	if err != nil {
		return nil, err
	}
	late := map[uint64]*lateSegment{}
	err = readContent(f, func(stdjson.RawMessage) error { return nil }, func(m *message) error {
		s.Messages++
		if m.seq <= t.segmentsBefore[cut.Shard] || len(m.body) == 0 {
			return nil
		}
		info, err := schema.DecodeSegmentInfo(m.body)
		if err != nil || info.Last.Stream <= cut.Cut {
			return nil //nolint:nilerr // damaged data is kept unchanged: verify names it
		}
		_, frames, err := schema.DecodeSegment(m.body)
		if err != nil {
			return fmt.Errorf("segment %d of run %.64s: %w", info.Number, info.Run, err)
		}
		l := &lateSegment{run: info.Run}
		err = schema.ReadFrames(slices.Clone(frames), func(r schema.Record) bool {
			if r.Stream <= cut.Cut {
				l.records = append(l.records, r)
			}
			return true
		})
		late[m.seq] = l
		cut.LeftOut++
		return err
	})
	if err := errors.Join(err, f.Close()); err != nil {
		return nil, fmt.Errorf("stream %s: %w", s.Name, err)
	}
	return late, nil
}

// logged is the content of a log's file, and the changes to it.
type logged struct {
	// missing are the events up to the cut that only a late segment has, by their positions.
	missing map[uint64]message
	// last are the runs that the file has, by subject, with the position of their last message there. gone are those
	// whose content is left out.
	last map[string]uint64
	gone map[string]bool
}

// compareLog compares a log's file with the late segments and with the current log.
func (t *taker) compareLog(names schema.Names, s *Stream, late map[uint64]*lateSegment, there map[string]bool, removed map[string]message) (*logged, error) {
	l := &logged{missing: map[uint64]message{}, last: map[string]uint64{}, gone: map[string]bool{}}
	for _, seg := range late {
		subject := names.EventSubject(seg.run)
		for i := range seg.records {
			r := &seg.records[i]
			if there[subject] {
				l.missing[uint64(r.Stream)] = message{subject: subject, seq: uint64(r.Stream), at: r.Stored, header: encodeHeader(r.Header), body: r.Body}
			}
		}
	}
	f, err := os.Open(t.path(s.Name, contentName))
	if err != nil {
		return nil, err
	}
	err = readContent(f, func(stdjson.RawMessage) error { return nil }, func(m *message) error {
		s.Messages++
		delete(l.missing, m.seq)
		run := names.RunOfSubject(m.subject)
		if run == "" || run == schema.BarrierRun {
			return nil
		}
		l.last[m.subject] = m.seq
		if _, erased := removed[run]; erased || !there[m.subject] {
			l.gone[m.subject] = true
		}
		return nil
	})
	if err := errors.Join(err, f.Close()); err != nil {
		return nil, fmt.Errorf("stream %s: %w: %w", s.Name, ErrSnapshot, err)
	}
	return l, nil
}

// settle records the removed runs in the cut, and returns the messages to add to the log's file, in order.
func (l *logged) settle(names schema.Names, removed map[string]message, cut *ShardCut) (put []message) {
	for _, m := range l.missing {
		if _, erased := removed[names.RunOfSubject(m.subject)]; !erased && !l.gone[m.subject] {
			put = append(put, m)
			continue
		}
		// If a run left the log while that was read, only a late segment has its events.
		l.gone[m.subject] = true
		l.last[m.subject] = max(l.last[m.subject], m.seq)
	}
	cut.PutBack = len(put)
	for subject, last := range l.last {
		if !l.gone[subject] {
			cut.Runs++
			continue
		}
		run := names.RunOfSubject(subject)
		cut.Erased = append(cut.Erased, run)
		if m, ok := removed[run]; ok {
			m.seq = last
			put = append(put, m)
		}
	}
	slices.Sort(cut.Erased)
	slices.SortFunc(put, func(a, b message) int { return cmp.Compare(a.seq, b.seq) })
	return put
}
