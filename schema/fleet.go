package schema

import (
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"
)

// Defaults of the life of a fleet.
const (
	// DefaultHeartbeatMS is the pace of heartbeats, and DefaultSilenceMS how long an executor may be silent before its
	// runs are orphaned, in milliseconds.
	DefaultHeartbeatMS = 3000
	DefaultSilenceMS   = 10000
	// DefaultMaxClaims is the number of claims in a row without progress after which a run is quarantined.
	DefaultMaxClaims = 3
)

// Heartbeat is what an executor publishes on [HeartbeatSubject], over core NATS: one for all of its runs, every few
// seconds. An accepted event is a sign of life only for an instance that does not sign its heartbeats.
type Heartbeat struct {
	// Executor that lives. Required; the subject's last token.
	Executor string `json:"executor"`
	// Instance tells one start of the process from the next (the grammar of names): a run that names an instance needs
	// signs of life of that instance, so that a process that died and came back under its name does not keep
	// alive what it forgot. Empty counts for runs that name none. One that [InstanceOf] made signs its heartbeats.
	Instance string `json:"instance,omitzero"`
	// Beat counts the heartbeats of an instance that signs them, from 1: one that is not higher than the last is refused.
	Beat uint64 `json:"beat,omitzero"`
	// IntervalMS is the pace, in milliseconds; absent means [DefaultHeartbeatMS]. An executor is gone after three
	// intervals or the fleet's silence, whichever is longer.
	IntervalMS int64 `json:"interval_ms,omitzero"`
	// Time at the executor, RFC 3339; for people, liveness goes by the time of arrival.
	Time string `json:"time,omitzero"`
	// Runs that the executor has in hand, and the most it takes; 0 when it does not say.
	Runs     int `json:"runs,omitzero"`
	Capacity int `json:"capacity,omitzero"`
	// Leaving: the executor stops now, and does nothing more for any run.
	Leaving bool `json:"leaving,omitzero"`
	// GivenUp are runs for which it does nothing more although it could not say so in their log: they are orphaned. At
	// most [MaxGivenUp].
	GivenUp []GivenUp `json:"given_up,omitzero"`
	// Overdue are requests to a model and calls of tools that take longer than they may, the oldest first. At most [MaxOverdue];
	// OverdueMore is how many more there are.
	Overdue     []Overdue      `json:"overdue,omitzero"`
	OverdueMore int            `json:"overdue_more,omitzero"`
	Extra       jsontext.Value `json:",embed"`
}

// MaxGivenUp bounds the runs that a heartbeat gives up.
const MaxGivenUp = 1024

// GivenUp is a run that an executor gives up, and the epoch in which it had it: what it says does not count for a later
// one, in which it may have the run again.
type GivenUp struct {
	Run   string `json:"run"`
	Epoch Epoch  `json:"epoch"`
}

// MaxOverdue bounds the overdue work that a heartbeat names.
const MaxOverdue = 64

// Overdue is a request to a model or a call of a tool that has not returned within its limit: its function ignores the end of its
// context. The run stands still until it returns, or until its executor is stopped.
type Overdue struct {
	Run string `json:"run"`
	// Epoch in which the executor has the run: what it says does not count for another one.
	Epoch Epoch `json:"epoch"`
	Turn  int32 `json:"turn"`
	// ToolCallID and Occurrence as in [CallKey], and Tool, the tool's name; absent for a request to the model.
	ToolCallID string `json:"tool_call_id,omitzero"`
	Occurrence int    `json:"occurrence,omitzero"`
	Tool       string `json:"tool,omitzero"`
	// Since is when this try of the work began, RFC 3339, by the executor's clock.
	Since string `json:"since"`
	// LimitMS is how long it may take, in milliseconds.
	LimitMS int64          `json:"limit_ms"`
	Extra   jsontext.Value `json:",embed"`
}

// OverdueData is the data of run.overdue, which the daemon that folds the shard publishes to observers, once for each try that is
// overdue. Another daemon that takes over the shard publishes it again with the same event id, and core NATS may lose it. It is not
// in the log.
type OverdueData struct {
	// Executor that has the run, and its instance.
	Executor string `json:"executor"`
	Instance string `json:"instance,omitzero"`
	Overdue
}

// AgentHeartbeats is the wildcard of heartbeats of the Synadia Agent Protocol, which count for runs whose executor is
// the instance. No stream of ours may ever capture agents.>.
const AgentHeartbeats = "agents.hb.*.*.*"

// AgentHeartbeat has the members of a heartbeat of the Synadia Agent Protocol that a daemon reads. The instance is gone
// after three intervals.
type AgentHeartbeat struct {
	InstanceID string  `json:"instance_id"`
	IntervalS  float64 `json:"interval_s,omitzero"`
}

// Notice tells an executor over core NATS that somebody else wrote into a run that it has or had: it may look at once,
// and not only when it next publishes. It may be lost, and promises nothing but that there is something to read. One with
// the name [RunClaimable] tells it to claim at once.
type Notice struct {
	Run string `json:"run"`
	// Name of the event, such as run.cancel_requested, or [RunClaimable].
	Name string `json:"name"`
	// Position of the event in the log; zero for [RunClaimable].
	Position Position `json:"position"`
}

// ClaimRequest asks for a run that has no executor. The daemon chooses: runs that were the executor's own first, then
// the one that has been claimable for longest.
type ClaimRequest struct {
	// Executor that claims, and its instance; see [Heartbeat]. Executor is required.
	Executor string `json:"executor"`
	Instance string `json:"instance,omitzero"`
	// RequestID as in [RecoverRequest]: a repeat answers with the run that the first try was given. Required.
	RequestID string `json:"request_id"`
	// Agents whose runs the executor can go on with; empty means all.
	Agents []string `json:"agents,omitzero"`
	// Labels must all be there with these values.
	Labels map[string]string `json:"labels,omitzero"`
	// WithoutKeys are keys that the executor does not have, by their ids, at most [MaxWithoutKeys]: it is given no run with content of them.
	WithoutKeys []string `json:"without_keys,omitzero"`
	// Room is how many runs the executor would take now, this one included; 0 when it does not say.
	Room int `json:"room,omitzero"`
}

// MaxWithoutKeys bounds the keys that a claim names.
const MaxWithoutKeys = 64

// ClaimReply gives a run, or says when to ask again.
type ClaimReply struct {
	// Run that was claimed; empty when there is none now. Its content comes from a recover request with reason claim and
	// the same request_id, which continues the epoch.
	Run   string `json:"run,omitzero"`
	Epoch Epoch  `json:"epoch,omitzero"`
	// Claimable counts the runs that the executor could have been given, this one included.
	Claimable int `json:"claimable"`
	// RetryAfterMS is how long to wait before the next request, in milliseconds; add jitter. 0 means at once.
	RetryAfterMS int64 `json:"retry_after_ms"`
}

// InputRequest answers something that a run waits for.
type InputRequest struct {
	// InterruptID as in run.waiting. Required.
	InterruptID string `json:"interrupt_id"`
	// EventID is the id of the run.waiting that is answered, as position of the question says: the request is a conflict if the run asks
	// another thing under the interrupt id by now. Empty answers whatever it asks.
	EventID string `json:"event_id,omitzero"`
	// Status is resolved (the default), cancelled or expired.
	Status string `json:"status,omitzero"`
	// Payload answers as run.waiting's response_schema asks; required by most.
	Payload jsontext.Value `json:"payload,omitzero"`
	// Refs say that the payload is encrypted; nothing else is taken.
	Refs []Ref `json:"refs,omitzero"`
	// By is the sender's name, a claim; the grammar of names. Required, except in fleets where the NATS server proves senders: there it may be
	// empty, and is kept as claimed.
	By string `json:"by"`
	// RequestID makes a repeat of the request find its first try; empty means every try is one of its own.
	RequestID string `json:"request_id,omitzero"`
}

// CancelRequest asks a run's executor to stop. A run without one is claimed first: who claims it winds it up.
type CancelRequest struct {
	// By is the sender's name, a claim, as in [InputRequest].
	By     string `json:"by"`
	Reason string `json:"reason,omitzero"`
	// Refs say that the reason is encrypted; nothing else is taken.
	Refs []Ref `json:"refs,omitzero"`
	// RequestID makes a repeat of the request find its first try, also when the run was taken over since, so that it stops no work that
	// was begun behind it; empty means that a repeat is found only as long as the run is asked to stop.
	RequestID string `json:"request_id,omitzero"`
}

// What can be done with a hand-off.
const (
	HandoffAccept  = "accept"
	HandoffDecline = "decline"
	HandoffClose   = "close"
)

// HandoffRequest accepts, declines or closes a hand-off.
type HandoffRequest struct {
	HandoffID string `json:"handoff_id"`
	// Action is accept, decline or close. Required.
	Action string `json:"action"`
	// By is the sender's name, a claim, as in [InputRequest]. To accept it is always required: the executor that takes the hand-off.
	By string `json:"by"`
	// ChildRun that carries the work on; required to accept. Accepting again with the same child run is answered as the
	// first time.
	ChildRun string `json:"child_run,omitzero"`
	// OfferHash is the content hash of the offer that was read, hex; required to accept.
	OfferHash string `json:"offer_hash,omitzero"`
	Reason    string `json:"reason,omitzero"`
	// Refs say that the reason is encrypted; nothing else is taken.
	Refs []Ref `json:"refs,omitzero"`
}

// ControlReply says where the control event of a request stands in the log. Both are zero for an event that was there
// before the request and lies too far back to be looked for: what was asked for holds.
type ControlReply struct {
	EventID string         `json:"event_id"`
	Stream  StreamSequence `json:"stream_sequence"`
	// By is that of the event; empty when the event was not read.
	By string `json:"by,omitzero"`
	// Already: an earlier request did it, and the event is that one's.
	Already bool `json:"already,omitzero"`
}

// Outcomes of a verification.
const (
	// VerifyDone: the call had its effect; the result is that of the call.
	VerifyDone = "done"
	// VerifyNotDone: the call had no effect, now and for ever: it may be run.
	VerifyNotDone = "not_done"
	// VerifyUnknown: the tool cannot tell; a person decides.
	VerifyUnknown = "unknown"
)

// VerifyRequest is what a tool is asked on a call's verify subject: what became of the call?
type VerifyRequest struct {
	Fleet string `json:"fleet"`
	Run   string `json:"run"`
	CallKey
	Name           string         `json:"name"`
	Arguments      jsontext.Value `json:"arguments,omitzero"`
	IdempotencyKey string         `json:"idempotency_key"`
	// Epoch that asks. A tool that answers not_done must refuse the call of any older epoch from then on.
	Epoch Epoch          `json:"epoch"`
	Extra jsontext.Value `json:",embed"`
}

// VerifyReply is the tool's answer.
type VerifyReply struct {
	// Outcome is done, not_done or unknown. Required.
	Outcome string `json:"outcome"`
	// Result of a call that was done; IsError is the tool's own word about it.
	Result  jsontext.Value `json:"result,omitzero"`
	IsError *bool          `json:"is_error,omitzero"`
	// Reason in words, for who decides.
	Reason string         `json:"reason,omitzero"`
	Extra  jsontext.Value `json:",embed"`
}

// LiveFormat is the format version of entries of the live index.
const LiveFormat = 1

// Live is a run's entry in the live index: what liveness and claims need to know of it without its checkpoint. Derived
// from the head; it is rewritten when one of its fields changes, which is seldom.
type Live struct {
	Format   int    `json:"format"`
	Run      string `json:"run"`
	Agent    string `json:"agent,omitzero"`
	Executor string `json:"executor,omitzero"`
	Instance string `json:"instance,omitzero"`
	// ModelTier as in [Head].
	ModelTier string            `json:"model_tier,omitzero"`
	Labels    map[string]string `json:"labels,omitzero"`
	Status    Status            `json:"status"`
	// Completion as in [RunSummary]: a run with an open hand-off has an entry after its end, too.
	Completion Completion `json:"completion,omitzero"`
	Epoch      Epoch      `json:"epoch"`
	// RequestID of the takeover that opened the epoch: a claim that is repeated finds the run that it was given by it.
	RequestID string `json:"request_id,omitzero"`
	// KeyIDs, Stalled and CancelRequested as in [Head].
	KeyIDs          []string `json:"key_ids,omitzero"`
	Stalled         int      `json:"claims_without_progress,omitzero"`
	CancelRequested bool     `json:"cancel_requested,omitzero"`
	// ExpiresAt is when the first thing that the run waits for expires, by the server's clock; empty means never.
	ExpiresAt string `json:"expires_at,omitzero"`
	// Offers are the agents that hand-offs of the run are offered to: "" for a continuation by the run's own.
	Offers []string `json:"offers,omitzero"`
	// StartedAt as in [Head]: live runs are listed by it.
	StartedAt string `json:"started_at,omitzero"`
	// Attention is a digest of what needs a person in the run, quarantine left out: what it asks, the calls that a person must settle,
	// whether events are missing. It changes with each of them, and is empty for none.
	Attention string `json:"attention,omitzero"`
	// Since is the time of the event that last changed the entry.
	Since string `json:"since,omitzero"`
}

// HeartbeatSubject is where an executor's heartbeats go.
func HeartbeatSubject(fleet, executor string) string {
	return "waymark.heartbeats." + fleet + "." + executor
}

// ReplicaSubject is where the replicas of a fleet's daemon say over core NATS that they are there, to share its shards.
func ReplicaSubject(fleet string) string { return "waymark.replicas." + fleet }

// SettingsSubject is where it is told, over core NATS and at most once, that the fleet's shards were changed: whoever
// knows them may read the settings again. The message says nothing.
func SettingsSubject(fleet string) string { return "waymark.settings." + fleet }

// NoticeSubject is where an executor is told of what others wrote into its runs.
func NoticeSubject(fleet, executor string) string { return "waymark.notices." + fleet + "." + executor }

// Live reports whether the run has not ended, or a hand-off of it waits for a taker.
func (h *Head) Live() bool {
	return !h.Status.Terminal() || len(h.offers()) > 0
}

// Offered reports whether a hand-off of the run waits for a taker.
func (h *Head) Offered() bool { return len(h.offers()) > 0 }

// InLiveIndex reports whether the run belongs into the live index: it is [Head.Live], or it has ended with calls that a person must settle.
// Those are in the index of ended runs, too; among all of them they would not be found.
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

// Quarantined reports whether the run is claimable but for maxClaims claims in a row that made no progress. 0 means
// [DefaultMaxClaims], a negative number never.
func (h *Head) Quarantined(maxClaims int) bool {
	return quarantined(h.Status, h.Stalled, maxClaims)
}

// Quarantined is [Head.Quarantined] by the entry.
func (l *Live) Quarantined(maxClaims int) bool {
	return quarantined(l.Status, l.Stalled, maxClaims)
}

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
		ModelTier: h.ModelTier, Labels: maps.Clone(h.Labels), Status: h.Status, Completion: h.Completion(), Epoch: h.Epoch, RequestID: h.RequestID, Stalled: h.Stalled,
		KeyIDs: slices.Clone(h.KeyIDs), CancelRequested: h.CancelRequested, Offers: h.offers(), StartedAt: h.StartedAt, Attention: h.attention(),
		Since: h.UpdatedAt,
	}
	for i := range h.Interrupts {
		// RFC 3339 times of one offset compare as text only when they are written alike; parsed they always do.
		if at := h.Interrupts[i].ExpiresAt; at != "" && (l.ExpiresAt == "" || before(at, l.ExpiresAt)) {
			l.ExpiresAt = at
		}
	}
	return l
}

// Same reports whether two entries differ in nothing but Since.
func (l *Live) Same(o *Live) bool {
	return l.Run == o.Run && l.Agent == o.Agent && l.Executor == o.Executor && l.ModelTier == o.ModelTier && l.Instance == o.Instance && l.Status == o.Status && l.Completion == o.Completion &&
		l.Epoch == o.Epoch && l.RequestID == o.RequestID && l.Stalled == o.Stalled && l.CancelRequested == o.CancelRequested && l.ExpiresAt == o.ExpiresAt &&
		l.StartedAt == o.StartedAt && l.Attention == o.Attention &&
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
