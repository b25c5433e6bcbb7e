package main

import (
	"fmt"
	"strings"

	"github.com/waymarkio/waymark/schema"
)

// gist says in a few words what an event is about; what it does not know is shown as it is.
func gist(e *schema.Event) string {
	data, err := schema.ParseData(e)
	if err != nil {
		return err.Error()
	}
	switch d := data.(type) {
	case *schema.RunStartedData:
		return words("agent "+d.Agent, "executor "+d.Executor, d.Task)
	case *schema.RunResumedData:
		return words("executor "+d.Executor, d.Reason)
	case *schema.RunEndedData:
		return words(d.Status, d.Summary)
	case *schema.TurnStartedData:
		return words(fmt.Sprintf("turn %d", d.Turn), messagesText(d.Messages))
	case *schema.TurnEndedData:
		return words(fmt.Sprintf("turn %d", d.Turn), strings.Join(d.FinishReasons, " "), messagesText(d.Messages))
	case *schema.MessageAddedData:
		return messagesText([]schema.Message{d.Message})
	case *schema.ToolCalledData:
		return words(d.ToolCallID, d.Name, string(d.Arguments))
	case *schema.ToolReturnedData:
		return words(d.ToolCallID, string(d.Result))
	case *schema.ToolFailedData:
		return words(d.ToolCallID, d.Error.Type, d.Error.Message)
	case *schema.ToolSettledData:
		return words(d.ToolCallID, string(d.How), d.By)
	}
	return string(e.Data)
}

// words joins what is not empty.
func words(list ...string) string {
	kept := list[:0]
	for _, w := range list {
		if w != "" {
			kept = append(kept, w)
		}
	}
	return strings.Join(kept, ", ")
}

// messagesText is the role and the beginning of messages.
func messagesText(messages []schema.Message) string {
	var list []string
	for _, m := range messages {
		t := m.Role
		for _, p := range m.Parts {
			switch {
			case p.Content != nil:
				t += ": " + *p.Content
			case p.Name != "":
				t += ": " + p.Name
			case p.ID != "":
				t += ": " + p.ID
			}
			if len(t) > maxWidth {
				break
			}
		}
		list = append(list, t)
	}
	return strings.Join(list, "; ")
}
