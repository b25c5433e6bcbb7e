package cli

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/waymarkio/waymark/consumer/activity"
	"github.com/waymarkio/waymark/consumer/fold"
	"github.com/waymarkio/waymark/consumer/service"
	answers "github.com/waymarkio/waymark/internal/base/answerschema"
	"github.com/waymarkio/waymark/internal/base/output"
	"github.com/waymarkio/waymark/internal/nats/access"
	"github.com/waymarkio/waymark/internal/nats/natsd"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// limitRows are the limits and defaults that users meet, from the constants that are in force.
func limitRows() [][3]string {
	size := func(n int64) string { return output.Bytes(n) }
	count := func(n int) string { return fmt.Sprint(n) }
	span := func(d time.Duration) string { return d.String() }
	return [][3]string{
		{"Names and events", "", ""},
		{"run id, fleet, agent, executor", count(schema.MaxName) + " characters", "`[A-Za-z0-9][A-Za-z0-9_-]*`; others are refused"},
		{"ids of tool calls, interrupts, phases, marks", count(schema.MaxIdentifier) + " bytes", "refused with the JSON path"},
		{"one event, headers and data", size(kvstore.MaxEventMessage), "`ErrPayloadTooLarge`; nothing is stored"},
		{"a field of an event", size(publisher.DefaultInlineLimit), "moves to the object store"},
		{"a blob that the SDK loads", size(publisher.DefaultMaxBlob), "`Config.MaxBlob`"},
		{"nesting of an event's JSON", count(schema.MaxJSONDepth), "dead letter `invalid_data`"},
		{"an attribute's value", size(schema.MaxAttribute), "dead letter `invalid_attribute`"},
		{"labels of a run", fmt.Sprintf("%d, keys of %d and values of %d bytes", schema.MaxLabels, schema.MaxLabelKey, schema.MaxLabelValue), "refused with the JSON path"},
		{"Runs", "", ""},
		{"calls open at once; calls of one turn", fmt.Sprintf("%d; %d", schema.MaxOpenCalls, schema.MaxTurnCalls), "dead letter `too_many`; `Turn.Answer` records the others as failed"},
		{"open questions of a run", count(schema.MaxInterrupts), "the same"},
		{"signals that are not consumed; payload of one", count(schema.MaxSignals) + "; " + size(schema.MaxSignalPayload), "`too_many_signals`, `too_large`: nothing is written"},
		{"requests with an id that a run takes; of them signals, answers, settlements", fmt.Sprintf("%d; %d", schema.MaxRequests, schema.MaxRequests-schema.ReservedRequests), "`run_full`: go on in a new run by a hand-off; answers and settlements are taken all the same"},
		{"requests of a run that delegates; depth of delegations", count(publisher.MaxDelegateRequests) + "; " + count(publisher.MaxDelegateDepth), "`ErrDelegation`"},
		{"rewinds in front of a point", count(schema.MaxRewinds - 1), "`conflict`: take an earlier point, or fork the run"},
		{"marks; forks; completed phases", fmt.Sprintf("%d; %d; %d", schema.MaxMarks, schema.MaxForks, schema.MaxCompletedPhases), "dead letter `too_many`"},
		{"head of a run at the point of a fork or a rewind", size(schema.MaxBaseHead), "`ErrConfig`, `conflict`; dead letter `invalid_data`"},
		{"keys of a fleet, retired ones included", count(schema.MaxKeys), "`fleet keys add` is refused"},
		{"latest events that are searched for duplicates", count(schema.WindowEvents), "an older sequence is `stale`"},
		{"a checkpoint", size(schema.MaxCheckpoint), "follows from the above; an ordinary one is below 4 KiB"},
		{"texts of a turn in a checkpoint; names; instructions", fmt.Sprintf("%d; %d; %d bytes", schema.MaxOverviewText, schema.MaxOverviewName, schema.MaxOverviewLine), "cut, with a mark"},
		{"lines of the instructions in a checkpoint", count(schema.MaxOverviewLines), "the rest is counted"},
		{"a segment as stored; before compression", size(schema.MaxSegment) + "; " + size(schema.MaxSegmentRaw), ""},
		{"Fleet", "", ""},
		{"log of a shard (quota); its segments, checkpoints and blobs, each", size(kvstore.DefaultQuotaBytes), "`serve --quota`; less on a small disk; full: publishing waits, then `ErrFleetFull`"},
		{"reserve above each, for the daemon", size(kvstore.DefaultReserveBytes), "[what works on a full fleet](#a-full-fleet)"},
		{"dead letters of a fleet", "a quarter of the quota, to " + size(kvstore.MaxDeadLetterBytes), "the oldest are dropped"},
		{"checkpoints kept of each run", fmt.Sprintf("%d (1 to %d)", kvstore.DefaultCheckpointsPerRun, kvstore.MaxCheckpointsPerRun), "`serve --checkpoints`; one of an ended run that is purged from the log"},
		{"time between two checkpoints of a run", span(fold.DefaultLinger) + ", " + span(fold.MinLinger) + " to " + span(fold.MaxLinger), "`serve --checkpoint-interval`; at once when 1,024 events or 8 MiB wait"},
		{"events in the log after they were sealed", span(fold.DefaultPurgeAfter) + " to 25m", "`serve --purge-after`; at once when the log is three quarters full"},
		{"dead letters of one run", fmt.Sprintf("%d a minute", fold.LettersOfRun), "`waymark_fold_dead_letters_dropped_total`; the event stays in the log"},
		{"pairs of agent and tier, and tools, with metrics of their own", fmt.Sprintf("%d; %d", activity.MaxAgents, activity.MaxTools), "counts as `other` ([observability](observability.md#what-agents-did))"},
		{"shards", fmt.Sprintf("%d on the embedded server, 1 on a joined one (to %d)", kvstore.LoneShards, kvstore.MaxShards), "`serve --shards`; fewer on a small disk"},
		{"The SDK", "", ""},
		{"one event, retries included", span(publisher.DefaultPublishTimeout), "then `ErrUnresolved` or `ErrUnavailable`"},
		{"wait in a full fleet", span(publisher.DefaultFullPatience), "`ErrFleetFull`: nothing is stored, the handle goes on"},
		{"one try", span(publisher.DefaultTryTimeout), "the same event is sent again"},
		{"a request up to its first reply", span(publisher.DefaultRequestTimeout), "`ErrUnavailable`"},
		{"waits between tries", span(publisher.DefaultBackoff) + " to " + span(publisher.DefaultMaxBackoff), "doubled, with jitter"},
		{"large fields that a `Fleet` keeps in memory", size(publisher.MaxKeptBlobs), "others are read again; less with a lower `Config.MaxBlob`"},
		{"Service", "", ""},
		{"runs in one list", fmt.Sprintf("%d (to %d)", schema.DefaultList, schema.MaxList), "go on with `after`"},
		{"records in one page", fmt.Sprintf("%d (to %d)", schema.DefaultRecords, schema.MaxRecords), "ask for the next page"},
		{"events of a run with view state", size(schema.MaxStateView), "`too_large`: take view head, or view events, which the client folds"},
		{"one page of view events", size(schema.PageBytes), "ask for the next page"},
		{"claims answered with a run, by each replica", fmt.Sprintf("%d a second, %d at once", service.DefaultClaimRate, service.DefaultClaimBurst), "the answer says when to ask again"},
		{"claims in a row without progress", count(schema.DefaultMaxClaims), "quarantine: `waymark release`, or a takeover with reason request"},
		{"a `response_schema`; depth of its check", size(answers.MaxSchema) + "; " + count(answers.MaxDepth), "`invalid_answer`; status cancelled needs no schema"},
		{"steps of the check of an answer against its schema", count(answers.MaxWork), "the same"},
		{"Server", "", ""},
		{"connections of each role of a fleet", count(access.DefaultConnections), "`fleet add --connections`; the next one is refused, and told why"},
		{"subscriptions of a client's connection, in the accounts of `fleet add`", count(access.ClientSubscriptions), "the next one is refused"},
		{"a request of an observer, in the accounts of `fleet add`", size(access.ObserverPayload), "its connection ends"},
		{"largest message of the embedded server", size(natsd.DefaultMaxPayload), ""},
		{"a stop of the embedded server", span(natsd.DefaultStopTimeout), "then it is ended"},
	}
}

func TestLimitsPage_Values_EqualCode(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	for i, row := range limitRows() {
		if row[1] == "" {
			if i > 0 {
				b.WriteString("\n")
			}
			fmt.Fprintf(&b, "## %s\n\n| what | limit or default | beyond it |\n|---|---|---|\n", row[0])
			continue
		}
		fmt.Fprintf(&b, "| %s | %s | %s |\n", row[0], row[1], row[2])
	}
	requirePart(t, "limits.md", "limits", b.String(), "Limits")
}
