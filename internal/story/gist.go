package story

import (
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
	if data == nil {
		return string(shown.Data)
	}
	return Describe(data, nil).Gist
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
