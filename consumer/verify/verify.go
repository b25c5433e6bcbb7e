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
	"github.com/waymarkio/waymark/internal/eventlog"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

// ErrNoRun is returned for a run of which the shard stores nothing: look in the other shards that can hold it.
var ErrNoRun = errors.New("no such run")

// Where a finding lies.
const (
	InCheckpoint = "checkpoint"
	InSegment    = "segment"
	InLog        = "log"
	// InBase is the part of another run that a fork begins with.
	InBase = "base"
)

// Finding is something stored of a run that is not what it must be.
type Finding struct {
	// In is checkpoint, segment or log.
	In string `json:"in"`
	// Revision of the checkpoint, Segment by its number.
	Revision schema.Revision `json:"revision,omitzero"`
	Segment  int             `json:"segment,omitzero"`
	// Event is the first event concerned, as far as it can be named: its place, its id, or the epoch and sequence that is missing.
	Event    schema.Position `json:"event,omitzero"`
	Epoch    schema.Epoch    `json:"epoch,omitzero"`
	Sequence schema.Sequence `json:"sequence,omitzero"`
	// Problem in words.
	Problem string `json:"problem"`
	// Instead is what a recovery uses instead; empty when nothing has what is missing.
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

// Result is what was found about one run. It is whole when nothing was found.
type Result struct {
	Run   string `json:"run"`
	Shard int    `json:"shard"`
	// Events accepted by the fold, Records with those that were not, Segments and Checkpoints that were read.
	Events      int64 `json:"events"`
	Records     int64 `json:"records"`
	Segments    int   `json:"segments"`
	Checkpoints int   `json:"checkpoints"`
	// Position and Digest of the run's last event, from its segments and the log.
	Position schema.Position `json:"position"`
	Digest   string          `json:"digest"`
	// LogMissing counts the events that segments have and the log has no more, although it has earlier ones of the run, while the
	// purger walks through the log again after an unclean start: the crash took a purge back in part. Nothing is missing.
	LogMissing int64     `json:"log_missing,omitzero"`
	Findings   []Finding `json:"findings"`
	// Base of a fork. It is another run's, perhaps in another shard: see [Bases].
	Base *schema.BaseRef `json:"base,omitzero"`
}

// tries bounds how often a run is verified again because more of it was sealed and purged meanwhile.
const tries = 3

// Run folds a run again from its segments and the log and compares all that is stored of it with that: the sums, links,
// counts and digests of its segments, the sequences of its events, what the log still has of what was sealed,
// and every checkpoint that is kept. It reads from the leaders, writes nothing, and holds 40 bytes an event.
// [ErrNoRun] says that nothing is stored of the run in this shard; other errors that it could not be read.
func Run(ctx context.Context, js jetstream.JetStream, shard *kvstore.Shard, fleet, run string) (*Result, error) {
	keys, err := kvstore.ReadKeys(ctx, js, fleet)
	if err != nil {
		return nil, fmt.Errorf("verify run %s: %w", run, err)
	}
	for try := 1; ; try++ {
		v := &verifier{
			js: js, keys: keys, shard: shard, head: schema.NewHead(fleet, run), sums: map[schema.StreamSequence]replay.Sum{},
			checkpoints: map[schema.StreamSequence][]kvstore.Stored{}, links: map[schema.StreamSequence]link{},
			is: Result{Run: run, Shard: shard.Names.Shard, Findings: []Finding{}},
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

// verifier is one verification under way.
type verifier struct {
	js    jetstream.JetStream
	keys  *schema.Keys
	shard *kvstore.Shard
	is    Result
	head  schema.Head
	// index is what the segments add up to, by their number; index[0] is none.
	index []schema.SegmentIndex
	// broken is the first segment that cannot be folded, 0 for none; mended says that the log has its events.
	broken int
	// sums are those of the sealed events, and sealed is where they end.
	sums   map[schema.StreamSequence]replay.Sum
	sealed schema.StreamSequence
	last   schema.StreamSequence
	// links are what the run must be at the end of segments behind a broken one.
	links map[schema.StreamSequence]link
	// logFrom is where the log begins. walking: purges may have been taken back, and the purger is about to look.
	logFrom schema.StreamSequence
	walking bool
	// checkpoints that are to be compared, by their places.
	checkpoints map[schema.StreamSequence][]kvstore.Stored
	counted     int
	// compared are checkpoints whose heads are right, and how many records were folded there.
	compared []comparedAt
	scratch  []byte
	// base is what is looked for in the other run of a fork, and at the head that the run has there.
	base *schema.BaseRef
	at   *schema.Head
	// suspect is the first event whose content is not what its id says.
	suspect *Finding
}

// comparedAt is a checkpoint and the number of records up to it.
type comparedAt struct {
	stored  kvstore.Stored
	records int64
}

// link is a segment's word about the run at its end.
type link struct {
	segment int
	digest  string
}

func (v *verifier) found(f *Finding) { v.is.Findings = append(v.is.Findings, *f) }

// verify does it. moved reports that a hole may be none: more was sealed meanwhile.
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
	switch mark, _, err := kvstore.NewPurgeMarks(v.js).Get(ctx, v.shard.Names); {
	case err == nil:
		v.walking = mark.Position.Stream <= 1
	case !errors.Is(err, kvstore.ErrNotFound) && !errors.Is(err, kvstore.ErrCorrupt):
		return false, err
	}
	v.conclude()
	v.is.Events, v.is.Position, v.is.Digest, v.is.Base = v.head.Counts.Events, v.head.Position, v.head.Digest, v.head.Base
	if len(v.is.Findings) == 0 {
		return false, nil
	}
	return v.moved(ctx)
}

// empty reports whether nothing is there of the run. A mark that it was begun in another shard is nothing of it.
func (v *verifier) empty() bool {
	c := &v.head.Counts
	return v.is.Segments == 0 && c.Events == 0 && c.DeadLetters == 0 && c.Duplicates == 0
}

// moved reports whether there is a segment behind those that were read, so that what is missing may be in it.
func (v *verifier) moved(ctx context.Context) (bool, error) {
	_, err := v.shard.Segments.GetFresh(ctx, v.is.Run, len(v.index))
	if errors.Is(err, kvstore.ErrNotFound) || errors.Is(err, kvstore.ErrStreamMissing) {
		return false, nil
	}
	return err == nil && v.broken == 0, err
}

// readCheckpoints reads those that are kept. One that is gone is no fault: it is derived.
func (v *verifier) readCheckpoints(ctx context.Context) error {
	list, err := v.shard.Checkpoints.History(ctx, v.is.Run)
	if err != nil && !errors.Is(err, kvstore.ErrNotFound) && !errors.Is(err, kvstore.ErrStreamMissing) {
		return err
	}
	readable := schema.Revision(0)
	for _, c := range list {
		if c.Err == nil {
			readable = max(readable, c.Revision)
		}
	}
	for _, c := range list {
		v.is.Checkpoints++
		if c.Err != nil {
			instead := "segments and log"
			if readable != 0 {
				instead = fmt.Sprintf("checkpoint %d, or segments and log", readable)
			}
			v.found(&Finding{In: InCheckpoint, Revision: c.Revision, Problem: c.Err.Error(), Instead: instead})
			continue
		}
		if c.Checkpoint.Status == schema.StatusErased {
			return ErrNoRun // what may be left of it, a check of its removal tells
		}
		at := c.Checkpoint.Position.Stream
		v.checkpoints[at] = append(v.checkpoints[at], c)
		v.counted = max(v.counted, c.Checkpoint.Segments.Count)
	}
	return nil
}

// readSegments folds the run's segments, and checks those behind one that cannot be folded by their links.
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

// follows checks what a segment says of itself against the one before it, if that could be read.
func (v *verifier) follows(info, before *schema.SegmentInfo, n int) error {
	digest := before.DigestAfter
	if n > 1 && before.Number == 0 {
		digest = info.DigestBefore
	}
	return replay.Continues(info, v.is.Run, n, digest)
}

// breakAt says that a segment cannot be used. What the log has of it is seen later.
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

// foldSegment folds a segment, or notes what its events are when one before it is broken.
func (v *verifier) foldSegment(n int, info *schema.SegmentInfo, frames []byte, stored int) error {
	before, folded, place := v.head.Clone(), v.is.Records, v.last
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
		v.head, v.is.Records, v.last = before, folded, place
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

// fold applies a record, and compares what stands at its place.
func (v *verifier) fold(rec *schema.Record, in string, segment int) {
	if rec.Stream <= v.last {
		v.head.Position = schema.Position{} // sequences that damage freed were used again
	}
	v.last = rec.Stream
	verdict := v.head.Apply(v.keys, rec)
	v.is.Records++
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

// suspicious is the finding of a rejected event that damage or forgery made what it is; nil for one that was never lawful.
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

// compare compares a checkpoint with the fold at its place.
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

// compareCounts compares what a checkpoint counts with the segments there are.
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

// readLog folds what the log has behind the segments, and compares what it still has of what they hold. Any server may
// answer, and may be behind: the leader says what comes next.
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

// readBeginning looks where the log begins now if something before its end was not there: what was purged meanwhile is no hole.
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

// missing returns the first and the number of the sealed events that the log does not have behind its beginning.
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

// logged takes one record of the log.
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

// conclude says what only the whole shows: gaps, and checkpoints that know more than there is.
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
	// The log is purged from its beginning, also while it is read; what was purged before a crash may be back in any subset.
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
