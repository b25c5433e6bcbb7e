package schema

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"
)

// CheckpointFormat is the format version of stored checkpoints.
const CheckpointFormat = 1

// MaxCheckpoint bounds an encoded checkpoint, whatever the run's events: it follows from the caps below and fits one
// message of a server with default settings. An ordinary run's checkpoint is below 4 KiB.
const MaxCheckpoint = 1000 << 10

// Caps keep a checkpoint bounded. An event that would pass a cap of open items is rejected with [ReasonTooMany].
// Lists of past items drop their oldest entries and keep counting.
const (
	// MaxOpenCalls bounds the calls open at once.
	MaxOpenCalls = 1024
	// MaxTurnCalls bounds the calls of one turn.
	MaxTurnCalls = 1024
	// MaxCallBytes bounds the bytes of the ids and names of the open calls and of the turn's calls.
	MaxCallBytes = 96 << 10
	// MaxInterrupts bounds the simultaneous waits of a run.
	MaxInterrupts = 64
	// MaxHandoffs bounds the hand-offs that are offered or accepted at once.
	MaxHandoffs = 64
	// MaxMarks bounds the named points of a run.
	MaxMarks = 64
	// MaxForks bounds the runs that are forked from a run.
	MaxForks = 256
	// MaxCompletedPhases bounds the phases remembered as completed.
	MaxCompletedPhases = 256
	// MaxLabels, MaxLabelKey and MaxLabelValue bound labels.
	MaxLabels     = 32
	MaxLabelKey   = 64
	MaxLabelValue = 256
	// MaxGaps bounds the gaps that are described; further ones are only counted.
	MaxGaps = 16
	// MaxIdentifier bounds tool call ids, interrupt ids, phase and mark names, in bytes.
	MaxIdentifier = 256
	// WindowEvents is the number of latest event ids that are checked for duplicates.
	WindowEvents = 64
	// maxExcerpt bounds free text in a checkpoint, in bytes.
	maxExcerpt = 256
)

// Status of a run.
type Status string

// Statuses.
const (
	StatusRunning     Status = "running"
	StatusWaiting     Status = "waiting"
	StatusInterrupted Status = "interrupted"
	StatusOrphaned    Status = "orphaned"
	// StatusPaused is the status in lists of a run that a pause selects; no event sets it.
	StatusPaused    Status = "paused"
	StatusCompleted Status = "completed"
	StatusFailed    Status = "failed"
	StatusCancelled Status = "cancelled"
	// StatusErased is the status of a removed run; no event sets it, and no event is accepted after it.
	StatusErased Status = "erased"
)

// Terminal reports whether the run has ended.
func (s Status) Terminal() bool {
	return s == StatusCompleted || s == StatusFailed || s == StatusCancelled || s == StatusErased
}

// Claimable reports whether another executor may take the run without asking. A waiting run is not claimable: there
// is no work before the answer comes.
func (s Status) Claimable() bool { return s == StatusOrphaned || s == StatusInterrupted }

// Position is a place in the log: the stream sequence and the id of the event there. The id reveals that a stream
// sequence was used again after damage. For a message that is no CloudEvent the id is "sha256-" and the first 32 hex
// digits of its frame's hash.
type Position struct {
	Stream StreamSequence `json:"stream_sequence"`
	ID     string         `json:"id" check:"max=256,text"`
}

// CallKey names a call: models use tool call ids more than once.
type CallKey struct {
	Turn       int32  `json:"turn" check:"min=1"`
	ToolCallID string `json:"tool_call_id" check:"max=259,text"`
	// Occurrence counts from 1 the calls of the turn that share the id.
	Occurrence int `json:"occurrence" check:"min=1"`
}

// IdempotencyKey is the key given to a tool, the same for every execution of the same call. For scope see [OpenCall];
// it is mostly the run's id.
func (k CallKey) IdempotencyKey(scope string) string {
	return fmt.Sprintf("%s.%d.%s.%d", scope, k.Turn, k.ToolCallID, k.Occurrence)
}

// Text names the call in words.
func (k CallKey) Text() string {
	text := fmt.Sprintf("call %s of turn %d", k.ToolCallID, k.Turn)
	if k.Occurrence > 1 {
		text += fmt.Sprintf(", occurrence %d", k.Occurrence)
	}
	return text
}

// OpenCall is a call without a recorded outcome.
type OpenCall struct {
	CallKey
	Name   string `json:"name" check:"max=259,text"`
	Replay Replay `json:"replay" check:"oneof=pure|idempotent|verify|hold"`
	// Since is the time of the event tool.called.
	Since string `json:"since,omitzero" check:"time"`
	// Epoch in which it was called or last reopened; 0 for a requested call that a fork took over.
	Epoch Epoch     `json:"epoch"`
	State CallState `json:"state" check:"oneof=requested|requested_again|begun|in_doubt|held|late_result"`
	// Decision is ask or deny while the latest decision does not allow the call: it cannot begin.
	Decision string `json:"decision,omitzero" check:"oneof=ask|deny"`
	// Scope replaces the run's id in the call's idempotency key if another run or an earlier line of this one may
	// have a call with the same key: the id of the run that a fork took the call over from, or "<run>@<epoch>" after
	// a rewind, with the epoch of the rewind.
	Scope string `json:"scope,omitzero" check:"max=259,text"`
}

// IdempotencyKey is the key given to a tool: the same for every execution of the same call, and unique to the call.
func (c *OpenCall) IdempotencyKey(run string) string {
	return c.CallKey.IdempotencyKey(cmp.Or(c.Scope, run))
}

// OpenInterrupt is one wait of the run.
type OpenInterrupt struct {
	InterruptID string `json:"interrupt_id" check:"max=259,text"`
	Reason      string `json:"reason" check:"oneof=human_input|tool_approval|external_system|auth|tool_in_doubt|signal|timer"`
	ToolCallID  string `json:"tool_call_id,omitzero" check:"max=259,text"`
	// Turn and Occurrence of the call.
	Turn       int32  `json:"turn,omitzero"`
	Occurrence int    `json:"occurrence,omitzero"`
	Message    string `json:"message,omitzero" check:"max=259"`
	Since      string `json:"since,omitzero" check:"time"`
	// ExpiresAt is when the wait ends, by the server's clock; the event itself has it by the executor's clock.
	ExpiresAt string `json:"expires_at,omitzero" check:"time"`
	// Position of run.waiting, which has the schema of the answer.
	Position Position `json:"position"`
}

// CallKey names the call that the wait is about. Its ToolCallID is empty if it is about none.
func (o *OpenInterrupt) CallKey() CallKey {
	return CallKey{Turn: o.Turn, ToolCallID: o.ToolCallID, Occurrence: max(o.Occurrence, 1)}
}

// PhaseApproval is the prefix of the interrupt ids under which the SDK asks a person to approve a phase.
const PhaseApproval = "approval.phase."

// DriftApproval is the prefix of the interrupt ids under which the SDK asks a person to approve another version.
const DriftApproval = "approval.version."

// Approval reports whether the answer is a decision, allow or deny: about a tool call, a phase or a version.
func (o *OpenInterrupt) Approval() bool {
	return o.Reason == WaitToolApproval || o.Reason == WaitHumanInput && (strings.HasPrefix(o.InterruptID, PhaseApproval) || o.OfVersion())
}

// OfVersion reports whether the answer is a decision about another version of the agent.
func (o *OpenInterrupt) OfVersion() bool { return strings.HasPrefix(o.InterruptID, DriftApproval) }

// NeedsPerson reports whether only a person can end the wait.
func (o *OpenInterrupt) NeedsPerson() bool {
	return o.Reason != WaitExternalSystem && o.Reason != WaitSignal && o.Reason != WaitTimer
}

// Child is the run for whose end the run waits; see [ChildWait].
func (o *OpenInterrupt) Child() (run string, ok bool) {
	run, ok = strings.CutPrefix(o.InterruptID, ChildPrefix)
	return run, ok && o.Reason == WaitSignal
}

// Retries reports whether a failed try of a model's provider, or of a tool, is repeated after the wait.
func (o *OpenInterrupt) Retries() bool {
	return o.Reason == WaitTimer && strings.HasPrefix(o.InterruptID, RetryWait)
}

// Statuses of an open hand-off.
const (
	HandoffStatusOffered  = "offered"
	HandoffStatusAccepted = "accepted"
)

// OpenHandoff is a hand-off that was offered and neither declined nor closed.
type OpenHandoff struct {
	HandoffID string `json:"handoff_id"`
	// Status is offered or accepted.
	Status    string `json:"status"`
	Kind      string `json:"kind"`
	Reason    string `json:"reason"`
	NextAgent string `json:"next_agent,omitzero"`
	// OfferHash is the content hash of handoff.offered. An accept must repeat it, so that both sides mean the same
	// offer.
	OfferHash string `json:"offer_hash"`
	Since     string `json:"since,omitzero"`
	// By, Claimed and ChildRun of an accepted hand-off: its acceptor, as in handoff.accepted but shortened to [MaxBy]
	// and [MaxName], and the run that carries it out.
	By       string `json:"by,omitzero"`
	Claimed  string `json:"claimed,omitzero"`
	ChildRun string `json:"child_run,omitzero"`
}

// Mark is a named point that can be restored.
type Mark struct {
	Name     string   `json:"name"`
	Position Position `json:"position"`
	Epoch    Epoch    `json:"epoch"`
	Sequence Sequence `json:"sequence"`
	Turn     int32    `json:"turn"`
}

// Gap is a range of a writer's events that are not in the state: lost, or refused because an earlier one is lost. A
// gap closes when its events arrive later.
type Gap struct {
	Epoch Epoch `json:"epoch"`
	// From and To are the first and last sequence that are not in the state.
	From Sequence `json:"from"`
	To   Sequence `json:"to"`
	// At is where the gap was noticed.
	At Position `json:"at"`
	// Reason is gap, epoch_ahead or lost. From and To are 0 if the log lost a message without a known sequence before
	// At.
	Reason Reason `json:"reason"`
}

// Counts of the messages in a run's log.
type Counts struct {
	// Events accepted: they are in the digest.
	Events       int64 `json:"events"`
	Turns        int64 `json:"turns,omitzero"`
	Messages     int64 `json:"messages,omitzero"`
	ToolCalls    int64 `json:"tool_calls,omitzero"`
	ToolResults  int64 `json:"tool_results,omitzero"`
	ToolFailures int64 `json:"tool_failures,omitzero"`
	Settled      int64 `json:"settled,omitzero"`
	LateResults  int64 `json:"late_results,omitzero"`
	Errors       int64 `json:"errors,omitzero"`
	Artifacts    int64 `json:"artifacts,omitzero"`
	Handoffs     int64 `json:"handoffs,omitzero"`
	Compactions  int64 `json:"compactions,omitzero"`
	Resumes      int64 `json:"resumes,omitzero"`
	Duplicates   int64 `json:"duplicates,omitzero"`
	DeadLetters  int64 `json:"dead_letters,omitzero"`
	Fenced       int64 `json:"fenced,omitzero"`
	Forked       int64 `json:"forked,omitzero"`
	Gaps         int64 `json:"gaps,omitzero"`
	Unknown      int64 `json:"unknown_types,omitzero"`
}

// Head is the compact state of a run at one event, bounded in size whatever the run's length. A checkpoint stores it.
// The zero Head is the state before the first event.
type Head struct {
	Fleet    string `json:"fleet,omitzero"`
	Run      string `json:"run"`
	Agent    string `json:"agent,omitzero"`
	Executor string `json:"executor,omitzero"`
	// Instance of the executor, if known; see [Heartbeat].
	Instance string `json:"instance,omitzero"`
	// ModelTier is the class of models that the run began with.
	ModelTier string `json:"model_tier,omitzero"`
	// Priority as in [RunStartedData].
	Priority int `json:"priority,omitzero"`
	// Build is that of the executors that go on with the run first, by its [DriftRule]; empty for none.
	Build    string  `json:"build,omitzero" check:"max=128,text"`
	Task     string  `json:"task,omitzero"`
	ThreadID string  `json:"thread_id,omitzero"`
	Parent   *Parent `json:"parent,omitzero"`
	// ResumedFrom names the run that this one continues.
	ResumedFrom string `json:"resumed_from,omitzero"`
	// Handoff is the accepted offer that the run carries out.
	Handoff *HandoffSource `json:"handoff,omitzero"`
	// Base is the origin of the run if it is a fork.
	Base   *BaseRef          `json:"base,omitzero"`
	Labels map[string]string `json:"labels,omitzero"`
	// KeyIDs name the keys that encrypt content of the run, in the order of their first use. Only the latest
	// [MaxKeyIDs] are kept, so a full list may be incomplete. Keys of control events are left out, as they are keys
	// of the run.
	KeyIDs []string `json:"key_ids,omitzero" check:"max=16" each:"required,max=259,text"`
	Status Status   `json:"status"`
	// Unattended is orphaned or interrupted for a waiting run without an executor: its status once the waits end.
	Unattended Status `json:"unattended,omitzero"`
	// Stalled counts the latest takeovers with reason claim or restart after which the run made no progress: no turn,
	// call or phase was closed, no signal was consumed, there was no new wait, offer or message outside a turn, and
	// no person asked for it, answered it or cancelled it. A takeover does not count if its executor was told to
	// stop, or went on to wait. Quarantine depends on it.
	Stalled int `json:"claims_without_progress,omitzero"`
	// Implicit: the run began without run.started.
	Implicit bool `json:"implicit,omitzero"`

	Epoch    Epoch    `json:"epoch"`
	Sequence Sequence `json:"sequence"`
	// Position of the last message folded, accepted or not.
	Position Position `json:"position"`
	// Digest of all accepted events.
	Digest string `json:"digest,omitzero"`
	// RequestID of the takeover that opened the epoch.
	RequestID string `json:"request_id,omitzero"`

	// Turn is the last turn that was started; TurnOpen says that it has not ended.
	Turn     int32 `json:"turn" check:"min=0"`
	TurnOpen bool  `json:"turn_open,omitzero"`
	// TurnAnswered: the turn's answer is recorded, and the turn ends with the last outcome of its calls.
	TurnAnswered bool   `json:"turn_answered,omitzero"`
	TurnPurpose  string `json:"turn_purpose,omitzero" check:"oneof=work|recovery"`
	TurnEpoch    Epoch  `json:"turn_epoch,omitzero"`
	// TurnMessages counts the messages of the open turn; a repeat of the turn supersedes them.
	TurnMessages int64 `json:"turn_messages,omitzero" check:"min=0"`
	// MaxTurns, MaxTokens and CompletionTool from the run's start.
	MaxTurns        int32    `json:"max_turns,omitzero"`
	MaxTokens       int64    `json:"max_tokens,omitzero"`
	CompletionTool  string   `json:"completion_tool,omitzero"`
	Phase           string   `json:"phase,omitzero" check:"max=259,text"`
	CompletedPhases []string `json:"completed_phases,omitzero" check:"max=256" each:"max=259,text"`

	OpenCalls []OpenCall `json:"open_calls,omitzero" check:"max=1024"`
	// TurnCalls are the ids of the closed calls of the current turn, one entry per call.
	TurnCalls  []string        `json:"turn_calls,omitzero" check:"max=1024" each:"max=259,text"`
	Interrupts []OpenInterrupt `json:"interrupts,omitzero" check:"max=64"`
	Handoffs   []OpenHandoff   `json:"handoffs,omitzero"`
	// Signals are those not consumed, in the order they were sent.
	Signals []OpenSignal `json:"signals,omitzero" check:"max=64"`
	// CancelRequested: an operator asked for the run's end.
	CancelRequested bool `json:"cancel_requested,omitzero"`
	// CancelPosition is that of the latest run.cancel_requested.
	CancelPosition Position `json:"cancel_position,omitzero"`

	// Paused: a pause selected the run in this epoch, and no turn, call or phase may begin.
	Paused bool `json:"paused,omitzero"`

	// LastError is the latest error since the last answer or completed phase, and since a person had the run tried again.
	LastError *Error `json:"last_error,omitzero"`
	Counts    Counts `json:"counts"`
	Usage     Usage  `json:"usage,omitzero"`
	Marks     []Mark `json:"restore_points,omitzero"`
	// Erased is the removal of the run; nil for a run that was not removed.
	Erased *Removal `json:"removal,omitzero"`
	// Forks are the runs whose base is this run. Some may have been removed since, or never have begun.
	Forks []string `json:"forks,omitzero"`
	Gaps  []Gap    `json:"gaps,omitzero"`
	// Records counts the messages of the run's log except the daemon's own marks, whatever their verdict.
	Records int64 `json:"records,omitzero"`
	// Superseded are the records that rewinds abandoned.
	Superseded []Superseded `json:"superseded,omitzero" check:"max=64"`
	// SizeWarning: a hand-off was longer than [HandoffSizeWarning] characters.
	SizeWarning bool   `json:"size_warning,omitzero"`
	Summary     string `json:"summary,omitzero"`
	// Limit is the last limit that was reached: turns, tokens, time, context or budget.
	Limit string `json:"limit_reached,omitzero" check:"oneof=turns|tokens|time|context|budget"`
	// LimitTurn is the last turn before the one that sums up.
	LimitTurn int32 `json:"limit_turn,omitzero"`
	// CompletedBy is the tool call that ended the run under its completion contract; empty for a run that ended
	// otherwise.
	CompletedBy string `json:"completed_by,omitzero"`

	StartedAt string `json:"started_at,omitzero"`
	UpdatedAt string `json:"updated_at,omitzero"`
	EndedAt   string `json:"ended_at,omitzero"`

	// Window holds the short hashes of the latest accepted events, oldest first.
	Window []string `json:"window,omitzero"`
	// Requests are the named requests that the run took, at most [MaxRequests].
	Requests Requests `json:"requests,omitzero"`
}

// HeldCalls returns the open calls whose outcome a person must decide: those in doubt that the replay policy leaves
// to a person, those that will be once a run without an executor is claimed, and each open call of an ended run.
func (h *Head) HeldCalls() []OpenCall {
	var held []OpenCall
	left := h.Status.Claimable() || h.Unattended != ""
	for i := range h.OpenCalls {
		if c := &h.OpenCalls[i]; h.Status.Terminal() || c.State == CallHeld || left && c.State == CallBegun && c.Replay == ReplayHold {
			held = append(held, *c)
		}
	}
	return held
}

// InDoubt returns the open calls that must be settled before the run can go on with them.
func (h *Head) InDoubt() []OpenCall {
	var calls []OpenCall
	for _, c := range h.OpenCalls {
		if c.State.InDoubt() {
			calls = append(calls, c)
		}
	}
	return calls
}

// Complete reports whether no event of the run is known to be missing.
func (h *Head) Complete() bool { return h.Counts.Gaps == 0 }

// Clone returns a copy that shares nothing with h.
func (h *Head) Clone() Head {
	c := *h
	c.Parent, c.Base, c.LastError, c.Handoff, c.Erased = copied(h.Parent), copied(h.Base), copied(h.LastError), copied(h.Handoff), copied(h.Erased)
	c.Labels = maps.Clone(h.Labels)
	c.KeyIDs = slices.Clone(h.KeyIDs)
	c.CompletedPhases = slices.Clone(h.CompletedPhases)
	c.OpenCalls = slices.Clone(h.OpenCalls)
	c.TurnCalls = slices.Clone(h.TurnCalls)
	c.Interrupts = slices.Clone(h.Interrupts)
	c.Handoffs = slices.Clone(h.Handoffs)
	c.Marks = slices.Clone(h.Marks)
	c.Forks = slices.Clone(h.Forks)
	c.Signals = slices.Clone(h.Signals)
	c.Superseded = slices.Clone(h.Superseded)
	c.Gaps = slices.Clone(h.Gaps)
	c.Window = slices.Clone(h.Window)
	return c
}

func copied[T any](p *T) *T {
	if p == nil {
		return nil
	}
	return new(*p)
}

// SegmentIndex describes a run's sealed segments.
type SegmentIndex struct {
	Count int `json:"count"`
	// Bytes as stored; Events sealed.
	Bytes  int64 `json:"bytes,omitzero"`
	Events int64 `json:"events,omitzero"`
	// Last is the position of the last sealed event; the tail begins after it.
	Last Position `json:"last,omitzero"`
	// Digest of the run after the last sealed event.
	Digest string `json:"digest,omitzero"`
}

// Checkpoint is the stored value of a run: its head, the location of its content, and its overview for people.
type Checkpoint struct {
	// Format is [CheckpointFormat].
	Format int `json:"format"`
	// Overview is for people.
	Overview Overview `json:"overview,omitzero"`
	Head
	Segments SegmentIndex `json:"segments,omitzero"`
	// Incarnation names the event stream of the positions: its creation time. A different incarnation means that the
	// stream was restored or created again.
	Incarnation string `json:"incarnation,omitzero"`
	// TailBytes is the size of the run's events after the last segment.
	TailBytes int64 `json:"tail_bytes,omitzero"`
	// TailEvents is their number, accepted or not.
	TailEvents int64 `json:"tail_events,omitzero"`
	// Lost are events that an earlier checkpoint of the run had folded, and that log and segments no longer have: the
	// server's log went back. At is that checkpoint's position. They are part of every answer until the message at
	// that position is read again.
	Lost []Gap `json:"lost,omitzero"`
	// Sum is the SHA-256 (hex) of this value with an empty Sum.
	Sum string `json:"sum"`
}

// sumEnd ends every stored checkpoint and every description of a segment; the 64 hex digits of the sum precede it, in
// the member "sum". The sum covers the bytes as stored, so that a reader of another version can check fields it does
// not know.
const sumEnd = `"}`

const sumBegin = `"sum":"`

// cutSum returns the text before the digits of the sum, and the digits.
func cutSum(b []byte) (open []byte, sum string, ok bool) {
	at := len(b) - len(sumEnd) - 2*sha256.Size
	if at < len(sumBegin) || !bytes.HasSuffix(b, []byte(sumEnd)) || !bytes.HasSuffix(b[:at], []byte(sumBegin)) {
		return nil, "", false
	}
	return b[:at], string(b[at : len(b)-len(sumEnd)]), true
}

// checkFormat reads only the format version, because other members may have other types in another version.
func checkFormat(b []byte, known int) error {
	var probe struct {
		Format int `json:"format"`
	}
	if err := json.Unmarshal(b, &probe); err != nil {
		return fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	if probe.Format != known {
		return fmt.Errorf("format %d, this binary knows %d: %w", probe.Format, known, ErrFormat)
	}
	return nil
}

// EncodeCheckpoint returns the stored form, JSON that a person can read. It sets Format and Sum.
func EncodeCheckpoint(c *Checkpoint) ([]byte, error) {
	c.Format, c.Sum = CheckpointFormat, ""
	b, err := json.Marshal(c, json.Deterministic(true))
	if err != nil {
		return nil, fmt.Errorf("checkpoint of run %s: it cannot be written: %w: %w", c.Run, ErrCorrupt, err)
	}
	c.Sum = Hash(sha256.Sum256(b)).String()
	b = append(b[:len(b)-len(sumEnd)], c.Sum...)
	return append(b, sumEnd...), nil
}

// DecodeCheckpoint reads a stored checkpoint and checks its sum. Errors wrap [ErrCorrupt] or [ErrFormat].
func DecodeCheckpoint(b []byte) (*Checkpoint, error) {
	open, sum, ok := cutSum(b)
	if !ok {
		return nil, fmt.Errorf("checkpoint: no sum at its end: %w", ErrCorrupt)
	}
	h := sha256.New()
	_, _ = h.Write(open)
	_, _ = h.Write([]byte(sumEnd))
	if hex.EncodeToString(h.Sum(nil)) != sum {
		return nil, fmt.Errorf("checkpoint: sum differs: %w", ErrCorrupt)
	}
	if err := checkFormat(b, CheckpointFormat); err != nil {
		return nil, fmt.Errorf("checkpoint: %w", err)
	}
	c := new(Checkpoint)
	if err := json.Unmarshal(b, c); err != nil {
		return nil, fmt.Errorf("checkpoint: %w: %w", ErrCorrupt, err)
	}
	return c, nil
}
