package verify

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/waymarkio/waymark/consumer/internal/replay"
	"github.com/waymarkio/waymark/internal/nats/eventlog"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

// ErrNoRun is returned for a run without stored data in the shard: look in the other shards that can hold it.
var ErrNoRun = errors.New("no such run")

// Places of findings.
const (
	InCheckpoint = "checkpoint"
	InSegment    = "segment"
	InLog        = "log"
	// InBase is the part of another run in which a fork begins.
	InBase = "base"
)

// Finding is an error in the stored data of a run.
type Finding struct {
	// In is checkpoint, segment, log, blob or base.
	In string `json:"in"`
	// Revision of the checkpoint, Segment by its number.
	Revision schema.Revision `json:"revision,omitzero"`
	Segment  int             `json:"segment,omitzero"`
	// Event is the first affected event, as far as known: its position, its id, or the missing epoch and sequence.
	Event    schema.Position `json:"event,omitzero"`
	Epoch    schema.Epoch    `json:"epoch,omitzero"`
	Sequence schema.Sequence `json:"sequence,omitzero"`
	// Problem is the description for people.
	Problem string `json:"problem"`
	// Instead is the copy that recovery reads instead; empty if no copy has the missing data.
	Instead string `json:"instead,omitzero"`
}

// String is the finding in one line.
func (f *Finding) String() string {
	s := f.In
	switch f.In {
	case InCheckpoint:
		s += fmt.Sprintf(" %d", f.Revision)
	case InSegment:
		s += fmt.Sprintf(" %d", f.Segment)
	}
	s += ": " + f.Problem
	if f.Event.ID != "" {
		s += fmt.Sprintf("; first bad event %s at %d", f.Event.ID, f.Event.Stream)
	} else if f.Sequence != 0 {
		s += fmt.Sprintf("; first bad event epoch %d, sequence %d", f.Epoch, f.Sequence)
	}
	return s
}

// Result is the result for one run. It is whole if there are no findings.
type Result struct {
	Run   string `json:"run"`
	Shard int    `json:"shard"`
	// Events accepted by the fold, Records including refused ones, Segments and Checkpoints that were read.
	Events      int64 `json:"events"`
	Records     int64 `json:"records"`
	Segments    int   `json:"segments"`
	Checkpoints int   `json:"checkpoints"`
	// Position and Digest of the run's last event, from its segments and the log.
	Position schema.Position `json:"position"`
	Digest   string          `json:"digest"`
	// LogMissing counts the events that segments have and the log no longer has, although it has earlier ones of the
	// run, while the purger walks through the log again after an unclean start: the crash partly undid a purge.
	// Nothing is missing.
	LogMissing int64     `json:"log_missing,omitzero"`
	Findings   []Finding `json:"findings"`
	// Mistakes of the executors that wrote the run. They damage nothing.
	Mistakes []Mistake `json:"mistakes,omitempty"`
	// Base of a fork. It belongs to another run, perhaps in another shard: see [Bases].
	Base *schema.BaseRef `json:"base,omitzero"`
}

// tries bounds how often a run is verified again because more of it was sealed and purged in the meantime.
const tries = 3

// Run folds a run again from its segments and the log and compares all its stored data with the result: the sums,
// links, counts and digests of its segments, the sequences of its events, sealed events that the log still has, every
// stored checkpoint, and the large fields of its events. It also judges the executors that wrote the run. It reads
// from the leaders, writes nothing, and needs 40 bytes of memory per event, and 200 per large field.
// [ErrNoRun] says that the shard has no data of the run; other errors say that it could not be read.
func Run(ctx context.Context, js jetstream.JetStream, shard *kvstore.Shard, fleet, run string) (*Result, error) {
	keys, err := kvstore.ReadKeys(ctx, js, fleet)
	if err != nil {
		return nil, fmt.Errorf("verify run %s: %w", run, err)
	}
	for try := 1; ; try++ {
		v := &verifier{
			js: js, keys: keys, shard: shard, head: schema.NewHead(fleet, run), sums: map[schema.StreamSequence]replay.Sum{},
			checkpoints: map[schema.StreamSequence][]kvstore.Stored{}, links: map[schema.StreamSequence]link{},
			fields: map[string]field{},
			is:     Result{Run: run, Shard: shard.Names.Shard, Findings: []Finding{}}, conduct: newConduct(),
		}
		moved, err := v.verify(ctx)
		if err != nil {
			return nil, fmt.Errorf("verify run %s: %w", run, err)
		}
		if !moved || try == tries {
			return &v.is, nil
		}
	}
}

// verifier is one verification in progress.
type verifier struct {
	js    jetstream.JetStream
	keys  *schema.Keys
	shard *kvstore.Shard
	is    Result
	head  schema.Head
	// index is the sum of the segments, by their number; index[0] is empty.
	index []schema.SegmentIndex
	// broken is the first segment that cannot be folded, 0 for none; mended says that the log has its events.
	broken int
	// sums are those of the sealed events, and sealed is their end.
	sums   map[schema.StreamSequence]replay.Sum
	sealed schema.StreamSequence
	order  schema.Order
	// links are the expected states of the run at the ends of segments after a broken one.
	links map[schema.StreamSequence]link
	// logFrom is the beginning of the log. walking: purges may have been undone, and the purger is about to check.
	logFrom schema.StreamSequence
	walking bool
	// checkpoints to compare, by their positions.
	checkpoints map[schema.StreamSequence][]kvstore.Stored
	counted     int
	// compared are checkpoints with correct heads, and the number of records folded there.
	compared []comparedAt
	scratch  []byte
	// base is the base to find in the other run of a fork, and at the head that the run has there.
	base *schema.BaseRef
	at   *schema.Head
	// fields are the large fields, by their digests; nil while a base is folded.
	fields map[string]field
	// suspect is the first event whose content does not match its id.
	suspect *Finding
	// conduct judges the executors that wrote the run; nil while a base is folded.
	conduct *conduct
}

// comparedAt is a checkpoint and the number of records up to it.
type comparedAt struct {
	stored  kvstore.Stored
	records int64
}

// link is a segment's description of the run at its end.
type link struct {
	segment int
	digest  string
}

func (v *verifier) found(f *Finding) { v.is.Findings = append(v.is.Findings, *f) }

// verify verifies the run once. moved reports that a gap may be none, because more was sealed in the meantime.
func (v *verifier) verify(ctx context.Context) (moved bool, err error) {
	if err := v.readCheckpoints(ctx); err != nil {
		return false, err
	}
	if err := v.readSegments(ctx); err != nil {
		return false, err
	}
	if err := v.readLog(ctx); err != nil {
		return false, err
	}
	if err := v.readBeginning(ctx); err != nil {
		return false, err
	}
	if v.empty() && v.is.Checkpoints == 0 && len(v.is.Findings) == 0 {
		return false, ErrNoRun
	}
	switch mark, _, err := v.shard.PurgeMark(ctx); {
	case err == nil:
		v.walking = mark.Position.Stream <= 1
	case !errors.Is(err, kvstore.ErrNotFound) && !errors.Is(err, kvstore.ErrCorrupt):
		return false, err
	}
	v.conclude()
	if err := v.readBlobs(ctx); err != nil {
		return false, err
	}
	v.is.Events, v.is.Position, v.is.Digest, v.is.Base = v.head.Counts.Events, v.head.Position, v.head.Digest, v.head.Base
	v.is.Mistakes = v.conduct.mistakes
	if len(v.is.Findings) == 0 {
		return false, nil
	}
	return v.moved(ctx)
}

// empty reports whether there is no data of the run.
func (v *verifier) empty() bool {
	c := &v.head.Counts
	return v.is.Segments == 0 && c.Events == 0 && c.DeadLetters == 0 && c.Duplicates == 0
}

// moved reports whether there is a segment after those that were read, which may have the missing events.
func (v *verifier) moved(ctx context.Context) (bool, error) {
	_, err := v.shard.Segments.GetFresh(ctx, v.is.Run, len(v.index))
	if errors.Is(err, kvstore.ErrNotFound) || errors.Is(err, kvstore.ErrStreamMissing) {
		return false, nil
	}
	return err == nil && v.broken == 0, err
}

// readCheckpoints reads the stored checkpoints. A missing one is no fault: it is derived.
func (v *verifier) readCheckpoints(ctx context.Context) error {
	list, err := v.shard.Checkpoints.History(ctx, v.is.Run)
	if err != nil && !errors.Is(err, kvstore.ErrNotFound) && !errors.Is(err, kvstore.ErrStreamMissing) {
		return err
	}
	for _, c := range list {
		v.is.Checkpoints++
		if c.Err != nil {
			v.found(&Finding{In: InCheckpoint, Revision: c.Revision, Problem: c.Err.Error(), Instead: "segments and log"})
			continue
		}
		if c.Checkpoint.Status == schema.StatusErased {
			return ErrNoRun // a check of the run's removal reports what is left of it
		}
		at := c.Checkpoint.Position.Stream
		v.checkpoints[at] = append(v.checkpoints[at], c)
		v.counted = max(v.counted, c.Checkpoint.Segments.Count)
	}
	return nil
}

// readSegments folds the run's segments, and checks those after an unfoldable one by their links.
func (v *verifier) readSegments(ctx context.Context) error {
	v.index = []schema.SegmentIndex{{}}
	before := schema.SegmentInfo{}
	for n := 1; ; n++ {
		stored, err := v.shard.Segments.GetFresh(ctx, v.is.Run, n)
		if errors.Is(err, kvstore.ErrStreamMissing) {
			err = kvstore.ErrNotFound
		}
		if errors.Is(err, kvstore.ErrNotFound) {
			if n > v.counted {
				return nil
			}
			v.breakAt(n, "it is counted and not there")
			before = schema.SegmentInfo{}
			continue
		}
		if err != nil {
			return err
		}
		v.is.Segments++
		info, frames, err := schema.DecodeSegment(stored)
		if err == nil {
			err = v.follows(&info, &before, n)
		}
		if err != nil {
			v.breakAt(n, err.Error())
			before = schema.SegmentInfo{}
			continue
		}
		if err := v.foldSegment(n, &info, frames, len(stored)); err != nil {
			v.breakAt(n, err.Error())
		} else if v.broken == 0 {
			v.compareKeyframe(n, stored)
		}
		before = info
	}
}

// follows compares a segment's description with the segment before it, if that was readable.
func (v *verifier) follows(info, before *schema.SegmentInfo, n int) error {
	digest := before.DigestAfter
	if n > 1 && before.Number == 0 {
		digest = info.DigestBefore
	}
	return replay.Continues(info, v.is.Run, n, digest)
}

// breakAt records that a segment is unusable. Its events in the log are checked later.
func (v *verifier) breakAt(n int, problem string) {
	if v.broken == 0 {
		v.broken = n
	}
	f := Finding{In: InSegment, Segment: n, Problem: problem}
	if n == v.broken {
		f.Epoch, f.Sequence = max(v.head.Epoch, 1), v.head.Sequence+1
	}
	v.found(&f)
}

// foldSegment folds a segment, or only records its events if an earlier one is broken.
func (v *verifier) foldSegment(n int, info *schema.SegmentInfo, frames []byte, stored int) error {
	before, folded, place := v.head.Clone(), v.is.Records, v.order
	records, last := 0, schema.Position{}
	err := schema.ReadFrames(frames, func(rec schema.Record) bool {
		records++
		last = schema.PositionOf(&rec)
		v.sums[rec.Stream], v.scratch = replay.SumOf(v.scratch, &rec)
		if v.broken == 0 {
			v.fold(&rec, InSegment, n)
		}
		return true
	})
	switch {
	case err != nil:
	case last != info.Last:
		err = fmt.Errorf("ends with %s at %d, described as %s at %d: %w", last.ID, last.Stream, info.Last.ID, info.Last.Stream, schema.ErrCorrupt)
	case records != info.Events:
		err = fmt.Errorf("holds %d events, described as %d: %w", records, info.Events, schema.ErrCorrupt)
	case v.broken == 0 && v.head.Digest != info.DigestAfter:
		err = fmt.Errorf("folds to digest %.16s…, described as %.16s…: %w", v.head.Digest, info.DigestAfter, schema.ErrCorrupt)
	}
	if err != nil {
		v.head, v.is.Records, v.order = before, folded, place
		return err
	}
	v.sealed = max(v.sealed, info.Last.Stream)
	if v.broken != 0 {
		v.links[info.Last.Stream] = link{n, info.DigestAfter}
		return nil
	}
	v.index = append(v.index, replay.Count(v.index[n-1], info, stored))
	return nil
}

// fold applies a record, and compares the data at its position.
func (v *verifier) fold(rec *schema.Record, in string, segment int) {
	v.order.Next(&v.head, rec)
	verdict := v.apply(rec)
	v.is.Records++
	if v.fields != nil && (verdict.Kind == schema.Applied || verdict.Kind == schema.Evidence) {
		v.name(&verdict)
	}
	if v.base != nil && v.head.Records == v.base.Records {
		at := v.head.Clone()
		v.at = &at
	}
	if verdict.Kind == schema.Rejected && v.suspect == nil {
		v.suspect = suspicious(rec, &verdict, in, segment)
	}
	if l, ok := v.links[rec.Stream]; ok && v.head.Digest != l.digest {
		v.found(&Finding{
			In: InSegment, Segment: l.segment, Event: v.head.Position,
			Problem: fmt.Sprintf("ends with digest %.16s…, the events up to there have %.16s…", l.digest, v.head.Digest),
		})
	}
	for _, c := range v.checkpoints[rec.Stream] {
		v.compare(&c)
	}
	delete(v.checkpoints, rec.Stream)
}

// suspicious returns the finding for a rejected event that damage or forgery may have changed; nil for an event that
// was never valid.
func suspicious(rec *schema.Record, verdict *schema.Verdict, in string, segment int) *Finding {
	at := schema.PositionOf(rec)
	e := verdict.Event
	f := &Finding{In: in, Segment: segment, Event: at, Problem: fmt.Sprintf("%s: %s", verdict.Reason, verdict.Detail)}
	switch verdict.Reason {
	case schema.ReasonGap, schema.ReasonEpochAhead, schema.ReasonStaleTakeover, schema.ReasonNotCloudEvent,
		schema.ReasonUnsigned, schema.ReasonMisplaced:
		return f
	case schema.ReasonInvalidAttribute:
		if e != nil && e.Sequence != 0 && strings.HasPrefix(e.ID, e.Subject+".") && e.ID != schema.EventID(e.Subject, e.Epoch, e.Sequence, e.ContentHash()) {
			f.Epoch, f.Sequence = e.Epoch, e.Sequence
			return f
		}
	default:
	}
	return nil
}

// compare compares a checkpoint with the fold at its position.
func (v *verifier) compare(s *kvstore.Stored) {
	c := s.Checkpoint
	bad := func(format string, args ...any) {
		v.found(&Finding{
			In: InCheckpoint, Revision: s.Revision, Event: c.Position, Problem: fmt.Sprintf(format, args...), Instead: "segments and log",
		})
	}
	if c.Position != v.head.Position {
		bad("stands at event %s, segments and log have %s there", c.Position.ID, v.head.Position.ID)
		return
	}
	if names := differing(&c.Head, &v.head); len(names) > 0 {
		bad("is not the fold of the events up to it: %s differ", strings.Join(names, ", "))
		return
	}
	v.compared = append(v.compared, comparedAt{*s, v.is.Records})
}

// compareCounts compares a checkpoint's counts with the stored segments.
func (v *verifier) compareCounts(at *comparedAt) {
	c := at.stored.Checkpoint
	bad := func(format string, args ...any) {
		v.found(&Finding{In: InCheckpoint, Revision: at.stored.Revision, Problem: fmt.Sprintf(format, args...), Instead: "segments and log"})
	}
	if c.Segments.Count >= len(v.index) {
		if v.broken == 0 {
			bad("counts %d segments, there are %d", c.Segments.Count, len(v.index)-1)
		}
		return
	}
	index := v.index[c.Segments.Count]
	switch tail := at.records - index.Events; {
	case c.Segments != index:
		bad("counts %d segments with %d events in %d bytes up to %d, they have %d in %d up to %d or end otherwise", c.Segments.Count,
			c.Segments.Events, c.Segments.Bytes, c.Segments.Last.Stream, index.Events, index.Bytes, index.Last.Stream)
	case c.TailEvents != tail:
		bad("counts %d events behind its segments, there are %d", c.TailEvents, tail)
	}
}

// differing are the members in which two heads differ.
func differing(a, b *schema.Head) []string {
	var names []string
	members := func(h *schema.Head) map[string]jsontext.Value {
		text, err := json.Marshal(h, json.Deterministic(true))
		all := map[string]jsontext.Value{}
		if err == nil {
			err = json.Unmarshal(text, &all)
		}
		if err != nil {
			names = append(names, err.Error())
		}
		return all
	}
	left, right := members(a), members(b)
	for name, value := range left {
		if string(right[name]) != string(value) {
			names = append(names, name)
		}
	}
	for name := range right {
		if _, both := left[name]; !both {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// readLog folds the log after the segments, and compares the sealed events that it still has. Any server may answer,
// and may lag: the leader decides what comes next.
func (v *verifier) readLog(ctx context.Context) error {
	from := schema.StreamSequence(1)
	for {
		next, found, err := eventlog.Next(ctx, v.js, v.shard.Names, v.is.Run, from)
		if err != nil || !found {
			return err
		}
		v.logged(&next)
		from = next.Stream + 1
		err = eventlog.Read(ctx, v.js, v.shard.Names, v.is.Run, from, func(rec schema.Record) error {
			v.logged(&rec)
			from = rec.Stream + 1
			return nil
		})
		if err != nil {
			return err
		}
	}
}

// readBeginning reads where the log begins now, if an event before its end was missing: events purged in the meantime
// are no gap.
func (v *verifier) readBeginning(ctx context.Context) error {
	if _, events := v.missing(); events == 0 {
		return nil
	}
	first, found, err := eventlog.Next(ctx, v.js, v.shard.Names, v.is.Run, 1)
	switch {
	case err != nil:
		return err
	case !found:
		v.logFrom = 0
	default:
		v.logFrom = first.Stream
	}
	return nil
}

// missing returns the first and the number of the sealed events that the log lacks after its beginning.
func (v *verifier) missing() (first schema.StreamSequence, events int64) {
	for at := range v.sums {
		if v.logFrom != 0 && at > v.logFrom {
			if events++; first == 0 || at < first {
				first = at
			}
		}
	}
	return first, events
}

// logged handles one record of the log.
func (v *verifier) logged(rec *schema.Record) {
	if v.logFrom == 0 {
		v.logFrom = rec.Stream
	}
	want, sealed := v.sums[rec.Stream]
	if sealed {
		delete(v.sums, rec.Stream)
		var got replay.Sum
		if got, v.scratch = replay.SumOf(v.scratch, rec); got != want {
			v.found(&Finding{In: InLog, Event: schema.PositionOf(rec), Problem: "is not the event that was sealed", Instead: "its segment"})
			return
		}
	}
	switch {
	case v.broken == 0 && rec.Stream <= v.sealed:
		if !sealed {
			v.found(&Finding{In: InLog, Event: schema.PositionOf(rec), Problem: "is before the end of the segments and in none of them"})
		}
	case rec.Stream > v.head.Position.Stream || v.broken == 0:
		v.fold(rec, InLog, 0)
	}
}

// conclude reports findings that only the complete run shows: gaps, and checkpoints that are ahead of the data.
func (v *verifier) conclude() {
	var newest *kvstore.Stored
	for i := range v.compared {
		v.compareCounts(&v.compared[i])
		if s := &v.compared[i].stored; newest == nil || s.Revision > newest.Revision {
			newest = s
		}
	}
	if newest != nil {
		for _, g := range newest.Checkpoint.Lost {
			v.found(&Finding{In: InLog, Epoch: g.Epoch, Sequence: g.From, Event: g.At, Problem: fmt.Sprintf(
				"%d to %d of epoch %d were folded once, and the log, which went back behind %s, has them no more", g.From, g.To, g.Epoch, g.At.ID)})
		}
	}
	whole := v.head.Complete()
	if whole && v.broken != 0 {
		for i := range v.is.Findings {
			if f := &v.is.Findings[i]; f.In == InSegment && f.Instead == "" {
				f.Instead = "the log"
			}
		}
	}
	// The log is purged from its beginning, also during the read; after a crash, any subset of purged events may be
	// back.
	missing, events := v.missing()
	switch {
	case events > 0 && v.walking:
		v.is.LogMissing = events
	case events > 0:
		v.found(&Finding{
			In: InLog, Event: schema.Position{Stream: missing}, Instead: "its segment",
			Problem: fmt.Sprintf("%d events that were sealed are gone, and not from its beginning, the first at %d; a server that crashed and "+
				"took a purge back in part leaves the same", events, missing),
		})
	}
	if !whole && v.suspect != nil {
		v.found(v.suspect)
	}
	for i := range v.head.Gaps {
		g := &v.head.Gaps[i]
		problem := fmt.Sprintf("%d to %d of epoch %d are missing or do not follow (%s)", g.From, g.To, g.Epoch, g.Reason)
		if g.Reason == schema.ReasonLost {
			problem = "the server stored a message before it that log and segments have no more"
		}
		v.found(&Finding{In: InLog, Epoch: g.Epoch, Sequence: g.From, Event: g.At, Problem: problem})
	}
	left := make([]kvstore.Stored, 0, len(v.checkpoints))
	for _, list := range v.checkpoints {
		left = append(left, list...)
	}
	slices.SortFunc(left, func(a, b kvstore.Stored) int {
		return int(b.Checkpoint.Position.Stream) - int(a.Checkpoint.Position.Stream)
	}) //nolint:gosec // places in one log
	for _, c := range left {
		v.found(&Finding{In: InCheckpoint, Revision: c.Revision, Event: c.Checkpoint.Position, Problem: fmt.Sprintf(
			"stands at %d, where segments and log have nothing of the run", c.Checkpoint.Position.Stream)})
	}
}
