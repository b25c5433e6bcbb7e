package story

import (
	"strings"

	"github.com/waymarkio/waymark/internal/base/encryption"
	"github.com/waymarkio/waymark/internal/base/output"
	"github.com/waymarkio/waymark/schema"
)

// Sender names the sender of a control event, with a short key and the claimed name. Other events have none, nor have
// marks, because executors write them, too.
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

// shortKey is the length of a public key that distinguishes the keys of a fleet.
const shortKey = 8

// shortBy is By of a control event with a shortened key. A claimed name stays unchanged.
func shortBy(by string) string {
	if role, key, _ := strings.Cut(by, ":"); schema.IsProven(by) && len(key) > shortKey {
		return schema.ProvenBy(role, key[:shortKey])
	}
	return by
}

// Gist summarises an event without its sender. Data of an unknown type is shown unchanged.
func Gist(e *schema.Event) string {
	if schema.ErasedMark(e) {
		return "the run was removed, and its id is not used again"
	}
	data, err := schema.ParseData(e)
	if err != nil {
		return err.Error()
	}
	if data == nil {
		return string(e.Data)
	}
	return Describe(encryption.ReadableContent(data), "").Gist
}

// maxParts bounds the parts of a message on one line.
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
