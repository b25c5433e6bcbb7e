package schema

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"
)

// Default timing of a fleet.
const (
	// DefaultHeartbeatMS is the heartbeat interval, and DefaultSilenceMS how long an executor may be silent before
	// its runs are orphaned, in milliseconds.
	DefaultHeartbeatMS = 3000
	DefaultSilenceMS   = 10000
	// DefaultMaxClaims is the number of claims in a row without progress after which a run is quarantined.
	DefaultMaxClaims = 3
)

// Heartbeat is published by an executor on [HeartbeatSubject], over core NATS: one for all of its runs, every few
// seconds. Events are no sign of life.
type Heartbeat struct {
	// Executor that is alive. Required; the subject's last token.
	Executor string `json:"executor"`
	// Instance identifies one start of the process (the grammar of names). A run that names an instance needs signs
	// of life of that instance. So a restarted process does not keep runs alive that it no longer knows. Empty counts
	// for runs that name none. An instance made by [InstanceOf] signs its heartbeats.
	Instance string `json:"instance,omitzero"`
	// Beat counts the heartbeats of an instance that signs them, from 1: a heartbeat is refused unless its count is
	// higher than the last.
	Beat uint64 `json:"beat,omitzero"`
	// IntervalMS is the interval, in milliseconds; absent means [DefaultHeartbeatMS]. An executor counts as dead
	// after three intervals or the fleet's silence, whichever is longer.
	IntervalMS int64 `json:"interval_ms,omitzero"`
	// Time at the executor, RFC 3339, for people. Liveness uses the time of arrival.
	Time string `json:"time,omitzero"`
	// Leaving: the executor stops now and works on no run any more.
	Leaving bool `json:"leaving,omitzero"`
	// Held are all runs that the instance works on, starts or takes over, at most [MaxHeld]; absent if it does not list
	// them. A run that the log gives to the instance, and that the list lacks, is orphaned: at once if an earlier list
	// had it, else a full interval after the instance got it.
	Held []HeldRun `json:"held,omitzero"`
	// Agents whose runs the executor claims, at most [MaxClaimed]; [AnyAgent] stands for all. Absent if it has claimed
	// none yet, or does not say.
	Agents []string `json:"agents,omitzero"`
	// Build of the executor; empty if unknown.
	Build string `json:"build,omitzero"`
	// Versions of agents at the executor, by agent: as many as fit in [MaxVersionsBytes].
	Versions map[string]Version `json:"versions,omitzero"`
	// Overdue are model requests and tool calls that exceed their limit: the oldest first, at most [MaxOverdue].
	Overdue []Overdue      `json:"overdue,omitzero"`
	Extra   jsontext.Value `json:",embed"`
}

// MaxHeld bounds the runs in a heartbeat. An instance with more lists none.
const MaxHeld = 4096

// HeldRun is a run that an instance holds, and the epoch in which it does; 0 means any: the instance is taking it over.
type HeldRun struct {
	Run   string `json:"run"`
	Epoch Epoch  `json:"epoch,omitzero"`
}

// MaxVersionsBytes bounds the versions in a heartbeat, encoded as JSON. A heartbeat with more has none.
const MaxVersionsBytes = 32 << 10

// MaxVersions bounds the versions of an agent in an [ExecutorsReply].
const MaxVersions = 8

// MaxClaimed bounds the agents in a heartbeat. An instance with more names none.
const MaxClaimed = 64

// AnyAgent in a heartbeat stands for every agent.
const AnyAgent = "*"

// MaxOverdue bounds the overdue work in a heartbeat.
const MaxOverdue = 64

// Overdue is a model request or a tool call that did not return within its limit, because its function ignores the
// end of its context. The run stands still until it returns, or until its executor is stopped.
type Overdue struct {
	Run string `json:"run"`
	// Epoch in which the executor has the run; the entry does not count for another one.
	Epoch Epoch `json:"epoch"`
	Turn  int32 `json:"turn"`
	// ToolCallID and Occurrence as in [CallKey], and Tool, the tool's name; absent for a request to the model.
	ToolCallID string `json:"tool_call_id,omitzero"`
	Occurrence int    `json:"occurrence,omitzero"`
	Tool       string `json:"tool,omitzero"`
	// Since is when this attempt began, RFC 3339, by the executor's clock.
	Since string `json:"since"`
	// LimitMS is the limit, in milliseconds.
	LimitMS int64          `json:"limit_ms"`
	Extra   jsontext.Value `json:",embed"`
}

// Notice tells an executor over core NATS that another client wrote into a run that it has or had, so that it can
// read at once instead of at its next publish. It may be lost, and only says that there is something to read. A
// notice with the name [RunClaimable] tells the executor to claim at once, and [EventRefused] that the fold refused an
// event with the executor as its source.
type Notice struct {
	Run string `json:"run"`
	// Name of the event, such as run.cancel_requested; or [RunClaimable], or [EventRefused].
	Name string `json:"name"`
	// Position of the event in the log; zero for [RunClaimable].
	Position Position `json:"position"`
	// Reason and Detail of a refusal, as in the event's dead letter.
	Reason Reason `json:"reason,omitzero"`
	Detail string `json:"detail,omitzero"`
}

// ClaimRequest asks for a run that has no executor. The daemon chooses: first the executor's own former runs, then
// runs of the tenant with the fewest at work, of those the run that has been claimable for longest; see [TenantLabel]. A
// step of priority counts as a minute of waiting.
type ClaimRequest struct {
	// Executor that claims, and its instance; see [Heartbeat]. Executor is required.
	Executor string `json:"executor" check:"required,name"`
	Instance string `json:"instance,omitzero" check:"name"`
	// RequestID as in [RecoverRequest]: a repeat returns the same run as the first try. Required.
	RequestID string `json:"request_id" check:"required,name"`
	// Agents whose runs the executor can continue; empty means all.
	Agents []string `json:"agents,omitzero" check:"max=256" each:"required,name"`
	// Labels must all be there with these values.
	Labels map[string]string `json:"labels,omitzero" check:"max=32"`
	// WithoutKeys are the ids of keys that the executor lacks, at most [MaxWithoutKeys]: it gets no run with content
	// under them.
	WithoutKeys []string `json:"without_keys,omitzero" check:"max=64"`
	// Build of the executor; see [Live.Build].
	Build string `json:"build,omitzero" check:"max=128,text"`
	// Room is how many runs the executor would take now, this one included; 0 if unknown.
	Room int `json:"room,omitzero"`
}

// MaxWithoutKeys bounds the keys in a claim.
const MaxWithoutKeys = 64

// ClaimReply gives a run, or says when to ask again.
type ClaimReply struct {
	// Run that was claimed; empty if there is none now. Its content comes from a recover request with reason claim
	// and the same request_id, which continues the epoch.
	Run   string `json:"run,omitzero"`
	Epoch Epoch  `json:"epoch,omitzero"`
	// Claimable counts the runs that the executor could have got, this one included.
	Claimable int `json:"claimable"`
	// RetryAfterMS is how long to wait before the next request, in milliseconds; add jitter. 0 means at once.
	RetryAfterMS int64 `json:"retry_after_ms"`
}

// InputRequest answers a wait of a run.
type InputRequest struct {
	// InterruptID as in run.waiting. Required.
	InterruptID string `json:"interrupt_id" check:"required"`
	// EventID is the id of the run.waiting to answer, from the position of the question: the request is a conflict if
	// the run now asks something else under the interrupt id. The first answer to a question counts: a repeat of it gets
	// the same reply, and any other is refused. Required.
	EventID string `json:"event_id" check:"required"`
	// Status is resolved (the default) or cancelled.
	Status string `json:"status,omitzero" check:"oneof=resolved|cancelled"`
	// Payload is the answer, in the form of run.waiting's response_schema; most schemas require one.
	Payload jsontext.Value `json:"payload,omitzero"`
	// Refs mark the payload as encrypted; other refs are refused.
	Refs []Ref `json:"refs,omitzero"`
	// By is the sender's name, a claim; the grammar of names. Required, except in fleets where the NATS server proves
	// senders: there it may be empty, and is kept as claimed.
	By string `json:"by"`
}

// Default fills in the defaults.
func (r *InputRequest) Default() { r.Status = cmp.Or(r.Status, InputResolved) }

// CancelRequest asks a run's executor to stop. A run without one must be claimed first: its new executor ends it.
type CancelRequest struct {
	// By is the sender's name, a claim, as in [InputRequest].
	By     string `json:"by"`
	Reason string `json:"reason,omitzero"`
	// Refs mark the reason as encrypted; other refs are refused.
	Refs []Ref `json:"refs,omitzero"`
	// ExpectedEpoch as in [RecoverRequest].
	ExpectedEpoch Epoch `json:"expected_epoch,omitzero"`
	// RequestID lets a repeat of the request find its first try, even after a takeover or a rewind, so that it stops no
	// work that began after it. If empty, a repeat is found only while the run has a cancel request.
	RequestID string `json:"request_id,omitzero" check:"name"`
}

// Actions on a hand-off.
const (
	HandoffAccept  = "accept"
	HandoffDecline = "decline"
	HandoffClose   = "close"
)

// HandoffRequest accepts, declines or closes a hand-off.
type HandoffRequest struct {
	HandoffID string `json:"handoff_id" check:"required"`
	// Action is accept, decline or close. Required.
	Action string `json:"action" check:"required,oneof=accept|decline|close"`
	// By is the sender's name, a claim, as in [InputRequest]. It is always required to accept: the executor that
	// takes the hand-off.
	By string `json:"by"`
	// ChildRun continues the work; required to accept. A repeated accept with the same child run gets the first
	// answer.
	ChildRun string `json:"child_run,omitzero" check:"name" with:"action=accept"`
	// OfferHash is the content hash of the offer, hex; required to accept.
	OfferHash string `json:"offer_hash,omitzero" check:"hash" with:"action=accept"`
	Reason    string `json:"reason,omitzero"`
	// Refs mark the reason as encrypted; other refs are refused.
	Refs []Ref `json:"refs,omitzero"`
}

// ControlReply is the position of a request's control event in the log. Both are zero if another request had the same
// effect: the requested state holds.
type ControlReply struct {
	EventID string         `json:"event_id"`
	Stream  StreamSequence `json:"stream_sequence"`
	// By is that of the event; empty if the event was not read.
	By string `json:"by,omitzero"`
	// Already: an earlier request had this effect, and the event belongs to it.
	Already bool `json:"already,omitzero"`
}

// Outcomes of a verification.
const (
	// VerifyDone: the call had its effect; the result belongs to the call.
	VerifyDone = "done"
	// VerifyNotDone: the call had no effect and never will: it may be run.
	VerifyNotDone = "not_done"
	// VerifyUnknown: the tool does not know; a person decides.
	VerifyUnknown = "unknown"
)

// VerifyRequest asks a tool on a call's verify subject what became of the call.
type VerifyRequest struct {
	Fleet string `json:"fleet"`
	Run   string `json:"run"`
	CallKey
	Name           string         `json:"name"`
	Arguments      jsontext.Value `json:"arguments,omitzero"`
	IdempotencyKey string         `json:"idempotency_key"`
	// Epoch of the asking executor. A tool that answers not_done must refuse the call of any older epoch from then
	// on.
	Epoch Epoch          `json:"epoch"`
	Extra jsontext.Value `json:",embed"`
}

// VerifyReply is the tool's answer.
type VerifyReply struct {
	// Outcome is done, not_done or unknown. Required.
	Outcome string `json:"outcome"`
	// Result of a call that was done; IsError is the tool's own statement about it.
	Result  jsontext.Value `json:"result,omitzero"`
	IsError *bool          `json:"is_error,omitzero"`
	// Reason in words, for the person who decides.
	Reason string         `json:"reason,omitzero"`
	Extra  jsontext.Value `json:",embed"`
}

// LiveFormat is the format version of entries of the live index.
const LiveFormat = 1

// Values of [Live.Timer].
const (
	TimerSleep = "sleep"
	TimerRetry = "retry"
)

// Live is a run's entry in the live index: what liveness and claims need to know of it without its checkpoint. It is
// derived from the head and rewritten when one of its fields changes, which is rare.
type Live struct {
	Format   int    `json:"format"`
	Run      string `json:"run"`
	Agent    string `json:"agent,omitzero"`
	Executor string `json:"executor,omitzero"`
	Instance string `json:"instance,omitzero"`
	// ModelTier as in [Head].
	ModelTier string `json:"model_tier,omitzero"`
	// Priority as in [RunStartedData].
	Priority int               `json:"priority,omitzero"`
	Labels   map[string]string `json:"labels,omitzero"`
	Status   Status            `json:"status"`
	// Completion as in [RunSummary]: a run with an open hand-off has an entry after its end, too.
	Completion Completion `json:"completion,omitzero"`
	Epoch      Epoch      `json:"epoch"`
	// RequestID of the takeover that opened the epoch: it lets a repeated claim find the run of the first try.
	RequestID string `json:"request_id,omitzero"`
	// Build as in [Head].
	Build string `json:"build,omitzero"`
	// KeyIDs and Stalled as in [Head].
	KeyIDs  []string `json:"key_ids,omitzero"`
	Stalled int      `json:"claims_without_progress,omitzero"`
	// Attended: the run has an executor, and work for it; see [Head.HasWork].
	Attended bool `json:"attended,omitzero"`
	// Driven: an executor may go on with the run, because it has it or may come back, and no pause is in its log.
	Driven bool `json:"driven,omitzero"`
	// ExpiresAt is when the run's first wait expires, by the server's clock; empty means never.
	ExpiresAt string `json:"expires_at,omitzero"`
	// Timer is sleep or retry while the run waits for a time, or for another try: [OpenInterrupt.Retries].
	Timer string `json:"timer,omitzero"`
	// Offers are the agents that the run's hand-offs are offered to: "" for a continuation by the run's own agent.
	Offers []string `json:"offers,omitzero"`
	// StartedAt as in [Head]: live runs are listed by it.
	StartedAt string `json:"started_at,omitzero"`
	// Attention is a digest of everything in the run that needs a person, except quarantine: its questions, the calls
	// that a person must settle, missing events. It changes with each of them, and is empty for none.
	Attention string `json:"attention,omitzero"`
	// Gapped: events of the run are missing.
	Gapped bool `json:"gapped,omitzero"`
	// Since is the time of the event that last changed the entry.
	Since string `json:"since,omitzero"`
}

// HeartbeatSubject is the subject of an executor's heartbeats.
func HeartbeatSubject(fleet, executor string) string {
	return "waymark.heartbeats." + fleet + "." + executor
}

// SettingsSubject announces, over core NATS and at most once, that the fleet's settings were changed. Daemons and
// executors then read them again. The message is empty.
func SettingsSubject(fleet string) string { return "waymark.settings." + fleet }

// NoticeSubject is the subject of notices about writes of other clients into an executor's runs.
func NoticeSubject(fleet, executor string) string { return "waymark.notices." + fleet + "." + executor }

// Live reports whether the run has not ended, or has an offered hand-off.
func (h *Head) Live() bool {
	return !h.Status.Terminal() || len(h.offers()) > 0
}

// Offered reports whether the run has a hand-off that is not accepted yet.
func (h *Head) Offered() bool { return len(h.offers()) > 0 }

// InLiveIndex reports whether the run belongs in the live index: it is [Head.Live], or it has ended with calls that a
// person must settle. Those are in the index of ended runs too, but hard to find among all of them.
func (h *Head) InLiveIndex() bool {
	return h.Live() || h.Status != StatusErased && len(h.HeldCalls()) > 0
}

// attention is [Live.Attention].
func (h *Head) attention() string {
	var what []string
	if !h.Status.Terminal() {
		for i := range h.Interrupts {
			if o := &h.Interrupts[i]; o.NeedsPerson() {
				what = append(what, "waits", o.InterruptID, o.Position.ID)
			}
		}
		if !h.Complete() {
			what = append(what, "incomplete")
		}
	}
	calls := h.HeldCalls()
	for i := range calls {
		c := &calls[i]
		what = append(what, "held", strconv.Itoa(int(c.Turn)), c.ToolCallID, strconv.Itoa(c.Occurrence), c.Since)
	}
	if len(what) == 0 {
		return ""
	}
	sum := sha256.Sum256([]byte(strings.Join(what, "\x00")))
	return hex.EncodeToString(sum[:8])
}

func (h *Head) offers() []string {
	var agents []string
	for i := range h.Handoffs {
		if o := &h.Handoffs[i]; o.Status == HandoffStatusOffered && !slices.Contains(agents, o.NextAgent) {
			agents = append(agents, o.NextAgent)
		}
	}
	return agents
}

// Quarantined reports whether the run is only kept from claims because maxClaims claims in a row made no progress. 0
// means [DefaultMaxClaims], a negative number never.
func (h *Head) Quarantined(maxClaims int) bool {
	return quarantined(h.Status, h.Stalled, maxClaims)
}

// Quarantined is [Head.Quarantined] by the entry.
func (l *Live) Quarantined(maxClaims int) bool {
	return quarantined(l.Status, l.Stalled, maxClaims)
}

// AtWork reports whether the run counts for [Limit.AtWork]: an executor has it, or may come back. maxClaims is as in
// [Live.Quarantined].
func (l *Live) AtWork(maxClaims int) bool { return l.Driven && !l.Quarantined(maxClaims) }

func quarantined(status Status, stalled, maxClaims int) bool {
	if maxClaims == 0 {
		maxClaims = DefaultMaxClaims
	}
	return maxClaims > 0 && status.Claimable() && stalled >= maxClaims
}

// LiveOf returns a run's entry of the live index.
func LiveOf(h *Head) Live {
	l := Live{
		Format: LiveFormat, Run: h.Run, Agent: h.Agent, Executor: h.Executor, Instance: h.Instance,
		ModelTier: h.ModelTier, Priority: h.Priority, Build: h.Build, Labels: maps.Clone(h.Labels), Status: h.Status, Completion: h.Completion(), Epoch: h.Epoch, RequestID: h.RequestID, Stalled: h.Stalled,
		KeyIDs: slices.Clone(h.KeyIDs), Attended: h.Unattended == "" && !h.Status.Claimable() && h.HasWork(), Offers: h.offers(), StartedAt: h.StartedAt, Attention: h.attention(),
		Gapped: !h.Complete(), Since: h.UpdatedAt,
	}
	l.Driven = !h.Paused && !h.Status.Terminal() && h.Status != StatusInterrupted && h.Unattended != StatusInterrupted
	for i := range h.Interrupts {
		switch o := &h.Interrupts[i]; {
		case o.Retries():
			l.Timer = TimerRetry
		case o.Reason == WaitTimer:
			l.Timer = cmp.Or(l.Timer, TimerSleep)
		}
		// As text, RFC 3339 times compare only in one format and offset, so they are parsed.
		if at := h.Interrupts[i].ExpiresAt; at != "" && (l.ExpiresAt == "" || before(at, l.ExpiresAt)) {
			l.ExpiresAt = at
		}
	}
	return l
}

// Same reports whether two entries are equal except for Since.
func (l *Live) Same(o *Live) bool {
	return l.Run == o.Run && l.Agent == o.Agent && l.Executor == o.Executor && l.ModelTier == o.ModelTier && l.Priority == o.Priority && l.Build == o.Build && l.Instance == o.Instance && l.Status == o.Status && l.Completion == o.Completion &&
		l.Epoch == o.Epoch && l.RequestID == o.RequestID && l.Stalled == o.Stalled && l.Attended == o.Attended && l.Driven == o.Driven && l.ExpiresAt == o.ExpiresAt && l.Timer == o.Timer &&
		l.StartedAt == o.StartedAt && l.Attention == o.Attention && l.Gapped == o.Gapped &&
		slices.Equal(l.Offers, o.Offers) && slices.Equal(l.KeyIDs, o.KeyIDs) && maps.Equal(l.Labels, o.Labels)
}

// before compares two RFC 3339 times; one that cannot be read comes last.
func before(a, b string) bool {
	at, err := time.Parse(time.RFC3339Nano, a)
	if err != nil {
		return false
	}
	bt, err := time.Parse(time.RFC3339Nano, b)
	return err != nil || at.Before(bt)
}
