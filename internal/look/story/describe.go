package story

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/waymarkio/waymark/internal/base/output"
	"github.com/waymarkio/waymark/schema"
)

// Description is what an event says, in the forms in which it is shown.
type Description struct {
	// Gist is its line in waymark events.
	Gist string
	// What and Detail are its line in waymark runs show, if the event takes no time; What is empty if it has no line of
	// its own. Bad: the line is of an error.
	What, Detail string
	Bad          bool
}

// Describe describes an event: a new type of event has its case here. tool is the name of the tool of its
// call; empty if the caller does not know it.
func Describe(data schema.Data, tool string) (d Description) {
	gist := func(parts ...string) { d.Gist = output.Words(parts...) }
	line := func(what string, parts ...string) { d.What, d.Detail = what, joined(parts...) }
	turn := func(n int32, messages ...schema.Message) {
		gist(fmt.Sprintf("turn %d", n), MessagesText(messages))
	}
	switch e := data.(type) {
	case *schema.RunStartedData:
		gist("agent "+e.Agent, "executor "+e.Executor, e.Task)
	case *schema.RunResumedData:
		to := ""
		if e.To != nil {
			to = "behind " + e.To.Place().String()
		}
		gist("executor "+e.Executor, e.Reason, to)
	case *schema.RunOrphanedData:
		seen := ""
		if e.LastSeen != "" {
			seen = "last seen " + output.LocalTime(e.LastSeen)
		}
		gist("executor "+e.Executor, seen)
	case *schema.RunInterruptedData:
		gist(e.Reason)
	case *schema.RunEndedData:
		why := ""
		if e.Error != nil {
			why = e.Error.Message
		}
		gist(e.Status, e.Summary, why)
	case *schema.RunWaitingData:
		until := ""
		if e.Reason == schema.WaitTimer {
			until = "until " + e.ExpiresAt
		}
		gist(e.InterruptID, e.Reason, until, e.Message)
	case *schema.RunInputData:
		gist(e.InterruptID, e.Status, string(e.Payload))
	case *schema.RunCancelRequestedData:
		gist(e.Reason)
	case *schema.RunPausedData:
		gist(e.Reason)
	case *schema.TurnStartedData:
		turn(e.Turn, e.Messages...)
	case *schema.TurnAnsweredData:
		turn(e.Turn, withoutCalls(e.Message))
		names := make([]string, len(e.Calls))
		for i := range e.Calls {
			names[i] = e.Calls[i].ToolCallID + " " + e.Calls[i].Name
		}
		gist(d.Gist, strings.Join(names, ", "))
	case *schema.TurnEndedData:
		turn(e.Turn, e.Messages...)
	case *schema.MessageAddedData:
		gist(MessagesText([]schema.Message{e.Message}))
	case *schema.ToolCalledData:
		gist(e.ToolCallID, e.Name, string(e.Arguments))
	case *schema.ToolReturnedData:
		gist(e.ToolCallID, string(e.Result))
	case *schema.ToolFailedData:
		gist(e.ToolCallID, e.Error.Type, e.Error.Message)
	case *schema.ToolSettledData:
		gist(e.ToolCallID, string(e.How))
	case *schema.ToolDecidedData:
		d.decided(e, tool)
	case *schema.PhaseStartedData:
		gist(e.Phase)
		line("phase", e.Phase+" begins")
	case *schema.PhaseCompletedData:
		gist(e.Phase, string(e.Output))
		line("phase", e.Phase+" is completed")
	case *schema.StateSetData:
		gist(e.Key, string(e.Value))
	case *schema.StateDeletedData:
		gist(e.Key)
	case *schema.SignalSentData:
		gist(e.SignalID, e.Name, string(e.Payload))
		line("signal", e.Name, "from "+cmp.Or(e.Claimed, e.By, unnamed))
	case *schema.SignalConsumedData:
		gist(strings.Join(e.SignalIDs, ", "))
		line("signal", output.Plural(len(e.SignalIDs), "signal")+" consumed")
	case *schema.LimitReachedData:
		gist(e.Limit, string(e.Value), string(e.Maximum))
		line("limit", "reached "+limitText(e))
		d.Bad = true
	case *schema.ContextCompactedData:
		gist(compactionText(e), e.Summary)
		line("compacted", compactionText(e))
	case *schema.HandoffOfferedData:
		gist(e.HandoffID, e.Kind, e.Reason, e.NextAgent)
		line("hand-off", "offered", e.NextAgent)
	case *schema.HandoffAcceptedData:
		gist(e.HandoffID, e.ChildRun)
		line("hand-off", "accepted, carried out by "+e.ChildRun)
	case *schema.HandoffDeclinedData:
		gist(e.HandoffID, e.Reason)
		line("hand-off", "declined", e.Reason)
	case *schema.HandoffClosedData:
		gist(e.HandoffID, e.Reason)
		line("hand-off", "closed")
	case *schema.ArtifactAddedData:
		made := ArtifactOf(&schema.StateArtifact{ArtifactAddedData: *e})
		gist(e.ArtifactID, e.Name, e.MediaType, made.SizeText(), made.WhereText())
		line("artifact", cmp.Or(e.Name, e.ArtifactID), e.MediaType, made.SizeText(), made.WhereText())
	case *schema.CheckpointMarkedData:
		if e.Fork {
			gist("base of " + e.Name)
			line("forked", e.Name)
			break
		}
		gist(e.Name)
		line("mark", e.Name)
	case *schema.ErrorRaisedData:
		gist(e.Scope, e.Error.Type, e.Error.Message)
		line("error", e.Error.Type+": "+e.Error.Message)
		d.Bad = true
	}
	return d
}

// decided describes a decision about a call. One that allows the call has no line in a story.
func (d *Description) decided(e *schema.ToolDecidedData, tool string) {
	decision, observed := e.Decision, ""
	if e.Mode == schema.ModeObserve {
		observed = "(observed)"
		decision += " " + observed
	}
	d.Gist = output.Words(e.ToolCallID, e.Decision, observed, e.Policy, e.Reason, e.By)
	if e.Decision != schema.DecisionAllow {
		d.What, d.Detail = "policy", joined(decision+" about "+cmp.Or(tool, e.ToolCallID), e.Policy, e.Reason)
	}
}

// withoutCalls is an answer's message without the parts that name its calls.
func withoutCalls(m schema.Message) schema.Message {
	m.Parts = slices.DeleteFunc(slices.Clone(m.Parts), func(p schema.Part) bool { return p.Type == schema.PartToolCall })
	if len(m.Parts) == 0 {
		m.Role = ""
	}
	return m
}

// limitText formats a limit with its value.
func limitText(d *schema.LimitReachedData) string {
	switch {
	case len(d.Value) > 0 && len(d.Maximum) > 0:
		return fmt.Sprintf("%s: %s of %s", d.Limit, d.Value, d.Maximum)
	case len(d.Value) > 0:
		return fmt.Sprintf("%s: %s", d.Limit, d.Value)
	case len(d.Maximum) > 0:
		return fmt.Sprintf("%s: at most %s", d.Limit, d.Maximum)
	}
	return d.Limit
}

// compactionText names the turns and tokens that a compaction replaced.
func compactionText(d *schema.ContextCompactedData) string {
	through, tokens := "", ""
	if d.ThroughTurn > 0 {
		through = fmt.Sprintf("turns through %d in a summary", d.ThroughTurn)
	}
	if d.TokensBefore > 0 {
		tokens = fmt.Sprintf("%d tokens to %d", d.TokensBefore, d.TokensAfter)
	}
	return cmp.Or(output.Words(through, tokens), "the conversation goes on from a summary")
}
