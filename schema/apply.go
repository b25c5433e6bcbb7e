package schema

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// NewHead returns the head of a run before its first event.
func NewHead(fleet, run string) Head { return Head{Fleet: fleet, Run: run} }

// RecordID is the id that a [Position] holds for a record: the event's id, or "sha256-" and 32 hex digits if the
// record is no CloudEvent. e is the decoded event or nil.
func RecordID(rec *Record, e *Event) string {
	if e != nil {
		return e.ID
	}
	frame := *rec
	frame.Stream, frame.Stored, frame.Behind = 0, 0, 0
	sum := sha256.Sum256(AppendFrame(nil, &frame))
	return "sha256-" + hex.EncodeToString(sum[:16])
}

// PositionOf returns the position of a record, decoding it for the id.
func PositionOf(rec *Record) Position {
	e, err := Decode(rec.Header, rec.Body)
	if err != nil {
		e = nil
	}
	return Position{Stream: rec.Stream, ID: RecordID(rec, e)}
}

// Apply folds one record of the run's log into the head, with the fleet's keys, and returns its verdict. It is pure
// and total: any input gives a verdict. Records arrive in log order. A record at or before the head's position is a
// no-op, so a replay is harmless.
func (h *Head) Apply(keys *Keys, rec *Record) Verdict {
	if h.passed(rec) {
		return Verdict{Kind: Replayed}
	}
	p := Prepare(keys, rec)
	return h.ApplyPrepared(&p)
}

// passed reports whether a record is before the head's position.
func (h *Head) passed(rec *Record) bool { return rec.Stream != 0 && rec.Stream < h.Position.Stream }

// misses reports whether the log lost messages of the run between the last folded record and this one. It compares
// what the server's compare-and-set saw. Nothing else reveals a lost event that has no sequence.
func (h *Head) misses(rec *Record) bool {
	return h.Position.Stream != 0 && h.Position.Stream < rec.Behind && rec.Behind < rec.Stream
}

// ApplyPrepared is [Head.Apply] for a prepared record. The verdict shares memory with the preparation.
func (h *Head) ApplyPrepared(p *Prepared) Verdict {
	if h.passed(p.Record) {
		return Verdict{Kind: Replayed}
	}
	at := p.Position()
	if at.Stream != 0 && at.Stream == h.Position.Stream {
		if at.ID == h.Position.ID {
			return Verdict{Kind: Replayed, Event: p.Event}
		}
		return Verdict{Kind: Regressed, Event: p.Event}
	}
	misses := h.misses(p.Record)
	var v Verdict
	switch {
	case ErasedMark(p.Event):
		v = h.erase(p)
	case p.err == nil:
		v = h.judge(&place{Prepared: p, at: at})
	case errors.Is(p.err, ErrNotCloudEvent):
		v = rejected(ReasonNotCloudEvent, "%s", p.err)
	default:
		v = rejected(ReasonInvalidAttribute, "%s", p.err)
	}
	v.Event = p.Event
	h.Position = at
	if v.Kind != Skipped {
		h.Records++ // a run may have a record that only marks something in one store, and not in another
	}
	switch v.Kind {
	case Applied:
		if p.control {
			h.Requests = h.Requests.with(RequestOf(p.Event), at.Stream)
		}
	case Duplicate:
		h.Counts.Duplicates++
	case Rejected:
		h.Counts.DeadLetters++
		switch v.Reason {
		case ReasonFenced:
			h.Counts.Fenced++
		case ReasonForked:
			h.Counts.Forked++
		default:
		}
	default:
	}
	if misses && h.Status != StatusErased && !v.tellsOfGap() {
		h.noteGap(Gap{Epoch: h.Epoch, Reason: ReasonLost, At: at})
	}
	return v
}

// tellsOfGap reports whether the fold noted a gap with the verdict.
func (v *Verdict) tellsOfGap() bool {
	return v.Reason == ReasonGap || v.Reason == ReasonEpochAhead && v.Event.Name() != RunResumed
}

func rejected(reason Reason, format string, args ...any) Verdict {
	return Verdict{Kind: Rejected, Reason: reason, Detail: fmt.Sprintf(format, args...)}
}

// place is the position and the epoch data of a prepared event in the log.
type place struct {
	*Prepared
	at Position
}

// judge decides about an event: first its place in the log (the gate), then its content.
func (h *Head) judge(p *place) Verdict {
	e := p.Event
	if h.Status == StatusErased {
		return rejected(ReasonErased, "the run was removed")
	}
	if v := h.checkEnvelope(e); v.Kind != 0 {
		return v
	}
	if slices.Contains(h.Window, p.key) {
		return Verdict{Kind: Duplicate}
	}
	if p.refusal != "" {
		return rejected(ReasonUnsigned, "%s", p.refusal)
	}
	if e.Sequence != 0 && strings.HasPrefix(e.ID, e.Subject+".") && e.Subject != "" {
		if want := EventID(e.Subject, e.Epoch, e.Sequence, p.content); e.ID != want {
			return rejected(ReasonInvalidAttribute, "id %.120q does not match the content, which gives %s", e.ID, want)
		}
	}
	if v := h.gate(e, p, p.name); v.Kind != 0 {
		return v
	}
	if p.name == RunResumed && p.control && p.dataErr == nil {
		if v := h.takeover(e, p.data); v.Kind != 0 {
			return v
		}
	}
	if p.bound && e.Extensions[AttributeRunDigest] != h.Digest {
		return rejected(ReasonMisplaced, "%s was signed for the run at digest %.16s…, the run is at %.16s…", e.ID, e.Extensions[AttributeRunDigest], h.Digest)
	}
	if p.own {
		if refusal := h.unsigned(e, p.data); refusal != "" {
			return rejected(ReasonUnsigned, "%s is not signed, and the fleet has keys: %s", p.name, refusal)
		}
	}
	h.advance(e, p, p.name)
	var v Verdict
	switch {
	case p.dataErr != nil:
		v = rejected(ReasonInvalidData, "%s", p.dataErr)
	case p.data == nil:
		h.Counts.Unknown++
		v = Verdict{Kind: Applied}
	default:
		v = h.applyData(e, p, p.data)
		v.Data = p.data
		if v.Kind == Applied && !p.control { // a control request must not make the run need a key that its executor may lack
			h.noteKeys(RefsOf(p.data))
		}
	}
	return v
}

// checkEnvelope compares an event's attributes with the run whose log has it.
func (h *Head) checkEnvelope(e *Event) Verdict {
	if h.Run == "" && ValidName(e.Subject) {
		h.Run = e.Subject
	}
	if e.Subject != "" && e.Subject != h.Run {
		return rejected(ReasonInvalidAttribute, "subject %.80q is not the run %s whose log has it", e.Subject, h.Run)
	}
	if fleet, _, ok := ParseSource(e.Source); ok {
		if h.Fleet == "" {
			h.Fleet = fleet
		}
		if fleet != h.Fleet {
			return rejected(ReasonInvalidAttribute, "source %.160q is not of fleet %s", e.Source, h.Fleet)
		}
	}
	return Verdict{}
}

// gate checks epoch and sequence. A zero Verdict means that the event passes.
func (h *Head) gate(e *Event, p *place, name string) Verdict {
	// An executor without epochs is the valid writer until an executor takes the run over.
	epoch := e.Epoch
	if epoch == 0 {
		epoch = 1
	}
	opened := max(h.Epoch, 1)
	switch {
	case p.control && name == RunResumed:
		if h.Epoch == 0 || epoch > opened+1 {
			return rejected(ReasonEpochAhead, "takeover to epoch %d of a run at epoch %d", epoch, h.Epoch)
		}
		if epoch <= opened {
			return rejected(ReasonFenced, "takeover to epoch %d, the run is at %d", epoch, h.Epoch)
		}
		return Verdict{}
	case epoch < opened:
		return h.fencedOrLate(e, p, name)
	case epoch > opened:
		h.noteGap(Gap{Epoch: epoch, From: min(e.Sequence, 1), To: e.Sequence, Reason: ReasonEpochAhead, At: p.at})
		return rejected(ReasonEpochAhead, "epoch %d, the run is at %d and no takeover opened it", epoch, h.Epoch)
	case e.Sequence == 0:
		return Verdict{}
	case e.Sequence <= h.Sequence:
		if h.Sequence-e.Sequence < WindowEvents/2 {
			return rejected(ReasonForked, "another event has epoch %d sequence %d", e.Epoch, e.Sequence)
		}
		return rejected(ReasonStale, "sequence %d, the run is at %d", e.Sequence, h.Sequence)
	case e.Sequence > h.Sequence+1:
		h.noteGap(Gap{Epoch: epoch, From: h.Sequence + 1, To: e.Sequence, Reason: ReasonGap, At: p.at})
		return rejected(ReasonGap, "sequence %d, the next is %d", e.Sequence, h.Sequence+1)
	}
	return Verdict{}
}

// noteGap records a gap; refused events behind the same first one extend it.
func (h *Head) noteGap(g Gap) {
	for i := range h.Gaps {
		o := &h.Gaps[i]
		if g.Reason != ReasonLost && o.Reason != ReasonLost && o.Epoch == g.Epoch && o.From == g.From {
			o.To = max(o.To, g.To)
			return
		}
	}
	h.Counts.Gaps++
	if len(h.Gaps) < MaxGaps {
		h.Gaps = append(h.Gaps, g)
	}
}

// NoteLost records that the log has lost the run, its last event included, or that it has it after all: another replica
// leads. It is false if the head says so already.
func (h *Head) NoteLost(lost bool) bool {
	gap := Gap{Epoch: h.Epoch, From: h.Sequence, To: h.Sequence, Reason: ReasonLost, At: h.Position}
	i := slices.Index(h.Gaps, gap)
	switch {
	case lost == (i >= 0), lost && len(h.Gaps) == MaxGaps:
		return false
	case lost:
		h.noteGap(gap)
	default:
		h.Gaps = slices.Delete(slices.Clone(h.Gaps), i, i+1)
		h.Counts.Gaps--
	}
	return true
}

// closeGaps forgets gaps of the current epoch whose events have all arrived.
func (h *Head) closeGaps() {
	if len(h.Gaps) == 0 {
		return
	}
	h.Gaps = slices.DeleteFunc(h.Gaps, func(g Gap) bool {
		closed := g.Epoch == h.Epoch && g.Reason == ReasonGap && g.To <= h.Sequence
		if closed {
			h.Counts.Gaps--
		}
		return closed
	})
	if len(h.Gaps) == 0 {
		h.Gaps = nil
	}
}

// fencedOrLate accepts the one event that a fenced executor may still write: the result of a call in doubt.
func (h *Head) fencedOrLate(e *Event, p *place, name string) Verdict {
	fenced := rejected(ReasonFenced, "epoch %d, the run is at %d", e.Epoch, h.Epoch)
	if e.Epoch == 0 {
		fenced.Detail = fmt.Sprintf("no epoch, the run is at %d since a takeover", h.Epoch)
	}
	if (name != ToolReturned && name != ToolFailed) || h.Status.Terminal() {
		return fenced
	}
	if p.dataErr != nil {
		return fenced
	}
	id, occurrence, _ := CallOf(p.data)
	i := h.FindOpen(e.Turn, id, occurrence)
	if i < 0 || !h.OpenCalls[i].State.InDoubt() || h.OpenCalls[i].State == CallLate || h.OpenCalls[i].Epoch > max(e.Epoch, 1) {
		return fenced
	}
	h.OpenCalls[i].State = CallLate
	h.Counts.LateResults++
	// The next executor adopts the result, so no settlement is needed.
	h.noDoubt(h.OpenCalls[i].CallKey)
	h.addToDigest(e, p)
	h.noteKeys(RefsOf(p.data))
	return Verdict{Kind: Evidence, Data: p.data, Boundary: true, Call: h.OpenCalls[i].CallKey}
}

// CallOf names the call that an event is about.
func CallOf(data Data) (id string, occurrence int, ok bool) {
	switch d := data.(type) {
	case *ToolCalledData:
		return d.ToolCallID, d.Occurrence, true
	case *ToolDecidedData:
		return d.ToolCallID, d.Occurrence, true
	case *ToolReturnedData:
		return d.ToolCallID, d.Occurrence, true
	case *ToolFailedData:
		return d.ToolCallID, d.Occurrence, true
	case *ToolSettledData:
		return d.ToolCallID, d.Occurrence, true
	}
	return "", 0, false
}

// takeover checks a run.resumed against the fold: it must continue from exactly the current position.
func (h *Head) takeover(e *Event, data Data) Verdict {
	d, ok := data.(*RunResumedData)
	if !ok {
		return rejected(ReasonInvalidData, "run.resumed without its data")
	}
	if h.Status.Terminal() && d.Reason != TakeoverReopen && d.Reason != TakeoverRewind {
		return rejected(ReasonRunEnded, "the run is %s; only a resume with reason reopen or rewind may follow", h.Status)
	}
	here := From{Epoch: h.Epoch, Sequence: h.Sequence, Digest: h.Digest}
	if d.From != here {
		return rejected(ReasonStaleTakeover, "takeover %s from epoch %d sequence %d, the run is at epoch %d sequence %d or its digest differs",
			e.ID, d.From.Epoch, d.From.Sequence, h.Epoch, h.Sequence)
	}
	if d.To != nil {
		return h.mayRewind(d.To)
	}
	return Verdict{}
}

// advance moves sequence and digest past an event whose place is valid.
func (h *Head) advance(e *Event, p *place, name string) {
	if h.Epoch == 0 {
		h.Epoch = 1
	}
	if e.Sequence != 0 {
		h.Sequence = e.Sequence
		h.closeGaps()
	}
	h.addToDigest(e, p)
	if h.Status == "" {
		h.Status = StatusRunning
		h.Implicit = name != RunStarted
		h.StartedAt = e.Time
		if _, executor, ok := ParseSource(e.Source); ok && !p.control {
			h.Executor = executor
		}
	}
	if !p.control {
		// The executor came back before another one claimed the run.
		h.Unattended = ""
		if h.Status.Claimable() {
			h.Status = h.active()
		}
	}
}

func (h *Head) addToDigest(e *Event, p *place) {
	prev, err := ParseHash(h.Digest)
	if err != nil {
		prev = Hash{}
	}
	h.Digest = prev.Next(p.content).String()
	h.Counts.Events++
	if e.Time != "" {
		h.UpdatedAt = e.Time
	}
	if len(h.Window) >= WindowEvents {
		n := copy(h.Window, h.Window[len(h.Window)-WindowEvents+1:])
		h.Window = h.Window[:n]
	}
	h.Window = append(h.Window, p.key)
}

// active is the status of a run that has an executor.
func (h *Head) active() Status {
	if len(h.Interrupts) > 0 {
		return StatusWaiting
	}
	return StatusRunning
}

// FindOpen returns the index of the open call with the id in the turn; turn 0 means the newest call with that id.
// Without an occurrence it prefers the call that has begun, then the first requested one. It returns -1 if there is
// none.
func (h *Head) FindOpen(turn int32, id string, occurrence int) int {
	found := -1
	for i := range slices.Backward(h.OpenCalls) {
		c := &h.OpenCalls[i]
		switch {
		case c.ToolCallID != id, turn != 0 && c.Turn != turn, found >= 0 && c.Turn != h.OpenCalls[found].Turn:
		case occurrence != 0 && c.Occurrence != occurrence:
		case found < 0, c.State.Requested() == h.OpenCalls[found].State.Requested(), h.OpenCalls[found].State.Requested():
			found = i
		}
	}
	return found
}

// shortHash is the first 64 bits of a hash in 11 characters: enough that two of the latest events do not collide.
func shortHash(sum []byte) string { return base64.RawURLEncoding.EncodeToString(sum[:8]) }

// EncryptedText replaces the excerpt of an encrypted text in the head.
const EncryptedText = "(encrypted)"

// shown is the head's excerpt of a text at a path of the data.
func shown(text string, refs []Ref, path string) string {
	if isEncrypted(refs, path) {
		return EncryptedText
	}
	return excerpt(text)
}

// excerpt cuts free text for the checkpoint at a rune boundary.
func excerpt(s string) string { return Cut(s, maxExcerpt) }

// Cut shortens a text to so many bytes, at a character boundary, and an ellipsis.
func Cut(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	return shorten(s, limit) + "…"
}
