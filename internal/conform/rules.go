package conform

import "github.com/waymarkio/waymark/schema"

// Level is the severity of a rule.
type Level string

// Levels.
const (
	// Must: an event is refused, or a promise about the run does not hold.
	Must Level = "must"
	// Should: the run is recoverable, but with less information.
	Should Level = "should"
)

// Source is the input by which a rule is checked.
type Source string

// Sources.
const (
	// Log: the events themselves. A recording contains them.
	Log Source = "log"
	// Wire: the NATS headers of a message, seen while it is published.
	Wire Source = "wire"
	// Beats: heartbeats, which no stream stores.
	Beats Source = "heartbeats"
)

// Rule is one rule of the vocabulary.
type Rule struct {
	// ID is stable: WM-E- and three digits.
	ID    string `json:"id"`
	Level Level  `json:"level"`
	// Text is the rule.
	Text string `json:"text"`
	// Section of docs/events.md that explains it.
	Section string `json:"section"`
	// Next is what an author does about a breach.
	Next string `json:"next"`
	// Source is the input by which the rule is checked.
	Source Source `json:"source"`
}

// Page is the document that explains the rules.
const Page = "docs/events.md"

// Ids of rules, named after their requirement.
const (
	ruleCloudEvent   = "WM-E-001"
	ruleAttributes   = "WM-E-002"
	ruleSubject      = "WM-E-003"
	ruleFleet        = "WM-E-004"
	ruleSource       = "WM-E-005"
	rulePercent      = "WM-E-006"
	ruleTime         = "WM-E-007"
	ruleData         = "WM-E-008"
	ruleType         = "WM-E-009"
	ruleContentType  = "WM-E-010"
	ruleMembers      = "WM-E-011"
	ruleSize         = "WM-E-012"
	ruleIDOnce       = "WM-E-013"
	ruleIDHash       = "WM-E-014"
	ruleIDForm       = "WM-E-015"
	ruleStartFirst   = "WM-E-020"
	ruleStartOnce    = "WM-E-021"
	ruleDense        = "WM-E-022"
	ruleFork         = "WM-E-023"
	ruleEpoch        = "WM-E-026"
	ruleFenced       = "WM-E-027"
	ruleEpochAhead   = "WM-E-028"
	ruleAllNumbered  = "WM-E-029"
	ruleControl      = "WM-E-030"
	ruleTakeover     = "WM-E-031"
	ruleEnded        = "WM-E-040"
	ruleEndCalls     = "WM-E-041"
	ruleEndTurn      = "WM-E-042"
	ruleLimit        = "WM-E-043"
	rulePhaseBegun   = "WM-E-044"
	rulePhaseOnce    = "WM-E-045"
	ruleContract     = "WM-E-046"
	ruleContractEnds = "WM-E-047"
	ruleTurnOrder    = "WM-E-050"
	ruleTurnStarted  = "WM-E-051"
	ruleTurnSame     = "WM-E-052"
	ruleTurnGiven    = "WM-E-053"
	ruleTurnClean    = "WM-E-054"
	ruleAnswerWhole  = "WM-E-055"
	ruleStoredOnce   = "WM-E-056"
	rulePartsKnown   = "WM-E-058"
	ruleKnownCall    = "WM-E-060"
	ruleCallOpen     = "WM-E-061"
	ruleOneOutcome   = "WM-E-062"
	rulePolicy       = "WM-E-063"
	ruleSettleFirst  = "WM-E-064"
	ruleInDoubt      = "WM-E-065"
	ruleHold         = "WM-E-066"
	ruleDenied       = "WM-E-067"
	ruleAsked        = "WM-E-068"
	ruleCaps         = "WM-E-070"
	ruleBegun        = "WM-E-071"
	ruleAnswer       = "WM-E-080"
	ruleWaitDoubt    = "WM-E-081"
	ruleExpires      = "WM-E-082"
	ruleSignal       = "WM-E-083"
	ruleSignalOnce   = "WM-E-084"
	ruleOfferOpen    = "WM-E-090"
	ruleOfferTaken   = "WM-E-091"
	ruleOfferSize    = "WM-E-092"
	ruleOfferID      = "WM-E-093"
	ruleBeatForm     = "WM-E-100"
	ruleBeatInstance = "WM-E-101"
	ruleBeatPace     = "WM-E-102"
	ruleMsgID        = "WM-E-110"
	ruleExpectLast   = "WM-E-111"
)

// Sections of [Page], in the form of their links.
const (
	sectionWire       = "the-wire"
	sectionID         = "ids-and-hashes"
	sectionOrder      = "order-and-epochs"
	sectionControl    = "control-events"
	sectionLife       = "start-and-end"
	sectionPhases     = "phases"
	sectionTurns      = "turns-and-messages"
	sectionTools      = "tool-calls"
	sectionWaiting    = "waiting"
	sectionSignals    = "signals"
	sectionHandoff    = "hand-off"
	sectionHeartbeats = "heartbeats"
	sectionPublishing = "publishing"
)

// Limits of the checks and of the kept data.
const (
	maxInline      = 512 << 10
	findingsOfRule = 5
	maxRuns        = 8192
	maxGone        = 1 << 20
	maxTurnThings  = 4096
	maxText        = 160
)

// Headers of an executor's published messages.
const (
	headerMsgID        = "Nats-Msg-Id"
	headerExpectedLast = "Nats-Expected-Last-Subject-Sequence"
	headerBatch        = "Nats-Batch-Id"
	headerBatchAt      = "Nats-Batch-Sequence"
)

// rules is the table, in the order of the page.
var rules = []Rule{
	{
		ruleCloudEvent, Must, "A message is a CloudEvent 1.0, in binary or structured mode.", sectionWire,
		"send ce-specversion: 1.0 and the other ce- headers, or JSON with Content-Type application/cloudevents+json", Log,
	},
	{
		ruleAttributes, Must, "Attributes are well formed: id, source, type, RFC 3339 times, integers as epoch and turn, a sequence from 1.", sectionWire,
		"write the attribute as the table of attributes says", Log,
	},
	{
		ruleSubject, Must, "The subject attribute is the run's id and the last token of the NATS subject, after the run's shard.", sectionWire,
		"set ce-subject to the run id of the message; publish without the shard, or with the shard from the answer of recover", Log,
	},
	{
		ruleFleet, Must, "The source names the fleet that the event is published to.", sectionWire,
		"use the fleet of the NATS subject in ce-source", Log,
	},
	{
		ruleSource, Should, "The source is /waymark/<fleet>/<executor>, of the executor that has the run.", sectionWire,
		"write the source in that form: liveness and notices use the executor in it", Log,
	},
	{
		rulePercent, Should, "Header values are percent-encoded.", sectionWire,
		"encode % as %25, once; leave the data unchanged", Log,
	},
	{
		ruleTime, Should, "Events have their time, in UTC.", sectionWire,
		"set ce-time to an RFC 3339 time that ends with Z", Log,
	},
	{
		ruleData, Must, "The data is JSON in the form of the event's type.", sectionWire,
		"compare the data with the type's schema in schema/asyncapi.json", Log,
	},
	{
		ruleType, Should, "Types of the vocabulary, and no others, are io.waymark.<name>.v1.", sectionWire,
		"check the spelling: an event of an unknown type is stored but has no effect; give your own events their own prefix", Log,
	},
	{
		ruleContentType, Should, "The content type of the data is application/json.", sectionWire,
		"set ce-datacontenttype: application/json", Log,
	},
	{
		ruleMembers, Should, "The data has only the members of its type.", sectionWire,
		"check the spelling: unknown members are kept but have no effect; put your own details into source", Log,
	},
	{
		ruleSize, Should, "An event is at most 512 KiB; fields above 256 KiB go to the blob store.", sectionWire,
		"store the field as blob and name it in refs and ce-dataref", Log,
	},
	{
		ruleIDOnce, Must, "An id names one event.", sectionID,
		"create a new id for each event; only a retry of the same event has the same id", Log,
	},
	{
		ruleIDHash, Must, "An id that begins with the run's id, of an event with a sequence, ends with the content's hash.", sectionID,
		"hash the attributes without id, sorted, name=value and a line feed each, an empty line, and the data as sent", Log,
	},
	{
		ruleIDForm, Should, "The id of an event with a sequence is <run>.<epoch>.<sequence>.<hash>.", sectionID,
		"use that form: then a retry is recognised, and a fork is not mistaken for one", Log,
	},

	{
		ruleStartFirst, Should, "The first event of a run is run.started.", sectionLife,
		"publish run.started first: without it the run has no agent and cannot be claimed", Log,
	},
	{
		ruleStartOnce, Must, "A run is started once.", sectionLife,
		"choose a new run id for a new run; to continue a run, recover it", Log,
	},
	{
		ruleDense, Must, "Sequences count from 1 in each epoch, without gaps.", sectionOrder,
		"count only acknowledged events: publish a refused event again with the same sequence", Log,
	},
	{
		ruleFork, Must, "There is only one event with an epoch and sequence.", sectionOrder,
		"after an unclear publish send the same bytes again, or recover the run; never publish another event with its number", Log,
	},
	{
		ruleEpoch, Should, "Events carry the epoch that their executor holds.", sectionOrder,
		"set ce-epoch to the epoch of the recovery, 1 for a new run: after a takeover events without one are refused", Log,
	},
	{
		ruleFenced, Must, "After a takeover the previous executor publishes only the result of an open call.", sectionOrder,
		"publish with " + headerExpectedLast + ", and stop at the first refusal: another executor has the run", Log,
	},
	{
		ruleEpochAhead, Must, "Only a takeover of the service opens an epoch.", sectionOrder,
		"ask waymark.recover.FLEET.RUN and publish with the epoch of its answer", Log,
	},
	{
		ruleAllNumbered, Should, "An executor numbers all of its events of an epoch, or none.", sectionOrder,
		"give each event a sequence, or omit it everywhere", Log,
	},
	{
		ruleControl, Must, "Executors publish no control events.", sectionControl,
		"ask the service (input, cancel, handoff, recover) instead of publishing the event, and do not use ids of the form RUN.EPOCH.c.NONCE", Log,
	},
	{
		ruleTakeover, Must, "A takeover continues from exactly the run's current state.", sectionControl,
		"do not write run.resumed: ask the service to recover the run", Log,
	},

	{
		ruleEnded, Must, "After run.ended only hand-offs, marks and settlements by a person follow.", sectionLife,
		"publish run.ended last; to continue, recover the run with reason reopen", Log,
	},
	{
		ruleEndCalls, Should, "A completed run has no open call.", sectionLife,
		"publish the outcome of every call before run.ended", Log,
	},
	{
		ruleEndTurn, Should, "A completed run has no open turn.", sectionLife,
		"give every call of the answer an outcome, or publish turn.ended, before run.ended", Log,
	},
	{
		ruleLimit, Should, "A run at a limit sums up in one turn with the purpose recovery, and ends with a summary.", sectionLife,
		"after limit.reached run one turn with purpose recovery, and put its text into summary of run.ended", Log,
	},
	{
		rulePhaseBegun, Should, "A completed phase was begun.", sectionPhases,
		"publish phase.started before the phase's work", Log,
	},
	{
		rulePhaseOnce, Must, "A completed phase is not begun again.", sectionPhases,
		"check completed_phases in the answer of the recovery, and use the recorded output", Log,
	},
	{
		ruleContract, Must, "A run with a completion tool completes by a returned call of it, or by a hand-off.", sectionLife,
		"name the call in completed_by of run.ended, or end the run as failed", Log,
	},
	{
		ruleContractEnds, Must, "At its limit of turns or tokens only a turn with the purpose recovery begins.", sectionLife,
		"publish limit.reached, run one turn with the purpose recovery, and end the run", Log,
	},

	{
		ruleTurnOrder, Must, "Turn numbers rise; an ended turn takes no more events.", sectionTurns,
		"number turns from 1; only an open turn may be started again, by a new epoch", Log,
	},
	{
		ruleTurnStarted, Should, "A turn begins with turn.started or turn.answered.", sectionTurns,
		"publish turn.started before the turn's other events", Log,
	},
	{
		ruleTurnSame, Must, "The turn attribute is the turn of the data.", sectionTurns,
		"write the same number into both", Log,
	},
	{
		ruleTurnGiven, Should, "Tool events of a run with turns carry the turn attribute.", sectionTurns,
		"set ce-turn: tool call ids are reused in later turns", Log,
	},
	{
		ruleTurnClean, Should, "A turn ends after all of its begun calls have an outcome.", sectionTurns,
		"publish tool.returned or tool.failed for each call that was begun before the turn ends; a call that was not begun is abandoned", Log,
	},
	{
		ruleAnswerWhole, Should, "An answer with calls is one turn.answered, with its message and the calls.", sectionTurns,
		"publish turn.answered instead of message.added and tool.called; record calls without an answer without a message", Log,
	},
	{
		ruleStoredOnce, Should, "Arguments are only in the answer's calls or tool.called, results only in tool.returned.", sectionTurns,
		"omit arguments and response in the message's part: its id refers to the call", Log,
	},
	{
		rulePartsKnown, Should, "The parts of an answer name its calls.", sectionTurns,
		"list each call of the message in calls, with an error if it cannot be made", Log,
	},

	{
		ruleKnownCall, Must, "An outcome or settlement belongs to an open call.", sectionTools,
		"request the call in turn.answered, or publish tool.called before the tool runs, with the same turn and id", Log,
	},
	{
		ruleCallOpen, Must, "A call is not recorded again while it is open.", sectionTools,
		"after a takeover settle the open call instead of calling it again; give each call of a turn its own id", Log,
	},
	{
		ruleOneOutcome, Should, "A call has one outcome.", sectionTools,
		"check the record before you run a tool; a second outcome is kept but has no effect", Log,
	},
	{
		rulePolicy, Should, "turn.answered or tool.called has the replay policy of each call.", sectionTools,
		"set replay to pure, idempotent, verify or hold: without it a person is asked", Log,
	},
	{
		ruleSettleFirst, Must, "A call in doubt is settled before it gets an outcome.", sectionTools,
		"publish tool.settled by the call's policy, wait for its acknowledgement, then run the tool or use the result", Log,
	},
	{
		ruleInDoubt, Must, "Only a call in doubt is settled.", sectionTools,
		"settle the calls in in_doubt of the recovery, once", Log,
	},
	{
		ruleHold, Must, "A held call is settled by a person.", sectionTools,
		"publish run.waiting with the reason tool_in_doubt, and wait for the settlement", Log,
	},
	{
		ruleDenied, Must, "A denied call does not run.", sectionTools,
		"publish tool.failed with the error type denied", Log,
	},
	{
		ruleAsked, Must, "A call with an approval question is not begun before it is allowed.", sectionTools,
		"record the call as requested, wait for run.input, publish tool.decided with allow or deny, then begin it", Log,
	},
	{
		ruleCaps, Must, "Open calls, calls of a turn, marks, interrupts and phases are within their limits.", sectionTools,
		"close open items before opening more; docs/limits.md has the limits", Log,
	},
	{
		ruleBegun, Must, "A requested hold or verify call is begun before its tool runs.", sectionTools,
		"publish tool.called and wait for its acknowledgement, then run the tool", Log,
	},

	{
		ruleAnswer, Must, "An answer belongs to an open question of the run.", sectionWaiting,
		"ask waymark.input.FLEET.RUN, which knows the run's open questions", Log,
	},
	{
		ruleWaitDoubt, Must, "A wait for a settlement names a call that is in doubt.", sectionWaiting,
		"take turn, tool_call_id and occurrence from in_doubt of the recovery", Log,
	},
	{
		ruleExpires, Should, "A wait expires after it was begun.", sectionWaiting,
		"set expires_at to a time in the future", Log,
	},

	{
		ruleSignal, Must, "A consumed signal was open, and is consumed once.", sectionSignals,
		"name only signals in the run's head that no other turn names", Log,
	},
	{
		ruleSignalOnce, Must, "A sent signal has another id than the run's open signals.", sectionSignals,
		"create a new signal_id for each signal; an open signal has arrived and need not be sent again", Log,
	},

	{
		ruleOfferOpen, Must, "An answered hand-off is open.", sectionHandoff,
		"ask waymark.handoff.FLEET.RUN, which knows the open offers", Log,
	},
	{
		ruleOfferTaken, Must, "An accepted hand-off is neither offered nor accepted again.", sectionHandoff,
		"create a new offer with a new handoff_id", Log,
	},
	{
		ruleOfferSize, Should, "A hand-off is at most 4,000 characters.", sectionHandoff,
		"describe what the next agent must know, and leave the rest in the run", Log,
	},
	{
		ruleOfferID, Should, "A hand-off has its own id.", sectionHandoff,
		"set handoff_id, so that a second try is not a second offer", Log,
	},

	{
		ruleBeatForm, Must, "A heartbeat is JSON with the executor of its subject.", sectionHeartbeats,
		`publish {"executor":…,"instance":…,"interval_ms":3000} on waymark.heartbeats.FLEET.EXECUTOR`, Beats,
	},
	{
		ruleBeatInstance, Must, "An executor's heartbeats name the same instance as its runs.", sectionHeartbeats,
		"use one instance for run.started, recover and the heartbeats of a process, and a new one after each start", Beats,
	},
	{
		ruleBeatPace, Should, "A living executor does not count as dead.", sectionHeartbeats,
		"send a heartbeat every three seconds from a timer of its own, also during a wait for a tool or a model", Log,
	},

	{
		ruleMsgID, Should, "The header " + headerMsgID + " is the event's id.", sectionPublishing,
		"set it: the server then drops duplicates of retries", Wire,
	},
	{
		ruleExpectLast, Must, "Events with a sequence are published with " + headerExpectedLast + ".", sectionPublishing,
		"set it to the stream sequence of the run's last message (0 for the first): the server then refuses events after a takeover, and a second writer of the epoch", Wire,
	},
}

// Rules returns the table, in the order of the page.
func Rules() []Rule { return append([]Rule(nil), rules...) }

// RuleOf returns a rule by its id.
func RuleOf(id string) (Rule, bool) {
	for _, r := range rules {
		if r.ID == id {
			return r, true
		}
	}
	return Rule{}, false
}

// reasonRules maps the fold's reasons of refusal to rules. refused distinguishes reasons with several rules.
var reasonRules = map[schema.Reason]string{
	schema.ReasonNotCloudEvent:    ruleCloudEvent,
	schema.ReasonInvalidAttribute: ruleAttributes,
	schema.ReasonInvalidData:      ruleData,
	schema.ReasonFenced:           ruleFenced,
	schema.ReasonEpochAhead:       ruleEpochAhead,
	schema.ReasonGap:              ruleDense,
	schema.ReasonForked:           ruleFork,
	schema.ReasonStale:            ruleDense,
	schema.ReasonRunEnded:         ruleEnded,
	schema.ReasonErased:           ruleEnded, // a removed run has ended, too
	schema.ReasonAlreadyStarted:   ruleStartOnce,
	schema.ReasonNotControl:       ruleControl,
	schema.ReasonWrongShard:       ruleSubject, // found by the checker: the fold of a run does not know the shards
	schema.ReasonStaleTakeover:    ruleTakeover,
	schema.ReasonUnsigned:         ruleControl,
	schema.ReasonMisplaced:        ruleControl,
	schema.ReasonTurnOrder:        ruleTurnOrder,
	schema.ReasonUnknownCall:      ruleKnownCall,
	schema.ReasonCallOpen:         ruleCallOpen,
	schema.ReasonNotAllowed:       ruleAsked,
	schema.ReasonNotInDoubt:       ruleInDoubt,
	schema.ReasonUnknownInterrupt: ruleAnswer,
	schema.ReasonUnknownHandoff:   ruleOfferOpen,
	schema.ReasonHandoffTaken:     ruleOfferTaken,
	schema.ReasonSignal:           ruleSignal,
	schema.ReasonPhaseCompleted:   rulePhaseOnce,
	schema.ReasonTooMany:          ruleCaps,
}
