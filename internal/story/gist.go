package story

import (
	"fmt"
	"slices"
	"strings"

	"github.com/waymarkio/waymark/internal/cli/output"
	"github.com/waymarkio/waymark/internal/encryption"
	"github.com/waymarkio/waymark/schema"
)

// Sender says whose decision a control event is, short and with the claimed name. Other events have none; neither have marks, which
// executors write, too.
func Sender(e *schema.Event) string {
	data, err := schema.ParseData(e)
	if err != nil {
		return ""
	}
	if _, mark := data.(*schema.CheckpointMarkedData); mark {
		return ""
	}
	by, claimed := schema.DecidedBy(data)
	return output.ByText(shortBy(by), claimed)
}

// shortKey is how much of a public key tells the keys of a fleet apart.
const shortKey = 8

// shortBy is By of a control event with the beginning of the key alone. A claimed name stays as it is.
func shortBy(by string) string {
	if role, key, _ := strings.Cut(by, ":"); schema.IsProven(by) && len(key) > shortKey {
		return schema.ProvenBy(role, key[:shortKey])
	}
	return by
}

// Gist says in a few words what an event is about, without its sender; what it does not know is shown as it is.
func Gist(e *schema.Event) string {
	if schema.ErasedMark(e) {
		return "the run was removed, and its id is not used again"
	}
	shown := *e
	shown.Data = encryption.ReadableData(e.Data)
	data, err := schema.ParseData(&shown)
	if err != nil {
		return err.Error()
	}
	switch d := data.(type) {
	case *schema.RunStartedData:
		return output.Words("agent "+d.Agent, "executor "+d.Executor, d.Task)
	case *schema.RunResumedData:
		to := ""
		if d.To != nil {
			to = "behind " + d.To.Place().String()
		}
		return output.Words("executor "+d.Executor, d.Reason, to)
	case *schema.RunEndedData:
		why := ""
		if d.Error != nil {
			why = d.Error.Message
		}
		return output.Words(d.Status, d.Summary, why)
	case *schema.TurnStartedData:
		return output.Words(fmt.Sprintf("turn %d", d.Turn), MessagesText(d.Messages))
	case *schema.TurnAnsweredData:
		names := make([]string, len(d.Calls))
		for i := range d.Calls {
			names[i] = d.Calls[i].ToolCallID + " " + d.Calls[i].Name
		}
		answer := d.Message // without the parts that name its calls, which follow
		answer.Parts = slices.DeleteFunc(slices.Clone(answer.Parts), func(p schema.Part) bool { return p.Type == schema.PartToolCall })
		if len(answer.Parts) == 0 {
			answer.Role = ""
		}
		return output.Words(fmt.Sprintf("turn %d", d.Turn), MessagesText([]schema.Message{answer}), strings.Join(names, ", "))
	case *schema.TurnEndedData:
		return output.Words(fmt.Sprintf("turn %d", d.Turn), MessagesText(d.Messages))
	case *schema.MessageAddedData:
		return MessagesText([]schema.Message{d.Message})
	case *schema.ToolCalledData:
		return output.Words(d.ToolCallID, d.Name, string(d.Arguments))
	case *schema.ToolReturnedData:
		return output.Words(d.ToolCallID, string(d.Result))
	case *schema.ToolFailedData:
		return output.Words(d.ToolCallID, d.Error.Type, d.Error.Message)
	case *schema.ToolSettledData:
		return output.Words(d.ToolCallID, string(d.How))
	case *schema.ToolDecidedData:
		return output.Words(d.ToolCallID, d.Decision, observed(d), d.Policy, d.Reason, d.By)
	case *schema.StateSetData:
		return output.Words(d.Key, string(d.Value))
	case *schema.StateDeletedData:
		return d.Key
	case *schema.SignalSentData:
		return output.Words(d.SignalID, d.Name, string(d.Payload))
	case *schema.SignalConsumedData:
		return strings.Join(d.SignalIDs, ", ")
	case *schema.RunWaitingData:
		return output.Words(d.InterruptID, d.Reason, d.Message)
	case *schema.RunInputData:
		return output.Words(d.InterruptID, d.Status, string(d.Payload))
	case *schema.RunCancelRequestedData:
		return d.Reason
	case *schema.RunOrphanedData:
		seen := ""
		if d.LastSeen != "" {
			seen = "last seen " + output.LocalTime(d.LastSeen)
		}
		return output.Words("executor "+d.Executor, seen)
	case *schema.RunInterruptedData:
		return d.Reason
	case *schema.LimitReachedData:
		return output.Words(d.Limit, string(d.Value), string(d.Maximum))
	case *schema.HandoffOfferedData:
		return output.Words(d.HandoffID, d.Kind, d.Reason, d.NextAgent)
	case *schema.HandoffAcceptedData:
		return output.Words(d.HandoffID, d.ChildRun)
	case *schema.HandoffDeclinedData:
		return output.Words(d.HandoffID, d.Reason)
	case *schema.HandoffClosedData:
		return output.Words(d.HandoffID, d.Reason)
	case *schema.PhaseStartedData, *schema.PhaseCompletedData, *schema.ContextCompactedData, *schema.ArtifactAddedData,
		*schema.CheckpointMarkedData, *schema.ErrorRaisedData:
		// Their few fields are read as they are.
	}
	return string(shown.Data)
}

// maxParts bounds the parts of a message that are worth a look on one line.
const maxParts = 8

// MessagesText is the role and the beginning of messages.
func MessagesText(messages []schema.Message) string {
	var list []string
	for _, m := range messages {
		shown := []string{}
		for _, p := range m.Parts {
			switch {
			case p.Content != nil && *p.Content != "":
				shown = append(shown, *p.Content)
			case p.Name != "":
				shown = append(shown, p.Name)
			case p.ID != "":
				shown = append(shown, p.ID)
			}
			if len(shown) == maxParts {
				break
			}
		}
		said := strings.Join(shown, ", ")
		if m.Role != "" {
			said = strings.TrimSuffix(m.Role+": "+said, ": ")
		}
		list = append(list, said)
	}
	return strings.Join(list, "; ")
}

// observed marks a decision that is only recorded.
func observed(d *schema.ToolDecidedData) string {
	if d.Mode == schema.ModeObserve {
		return "(observed)"
	}
	return ""
}
