package form

import (
	"errors"

	"github.com/waymarkio/waymark/schema"
)

// ErrNoRole says that a message has no role.
var ErrNoRole = errors.New("the message has no role")

// Decoder reads messages.
type Decoder struct {
	// Key in source{} under which details are kept.
	Key string
	// Observations: a response is a result of an observation of SWE-agent, whose ids stand in a list.
	Observations bool
	// Full reports that a message with these parts and calls is more than can be recorded; its calls are then kept as they were. nil means
	// that any number can.
	Full func(parts []schema.Part, calls []Call) bool
}

// Keys in source{} of the forms.
const (
	KeyAnthropic = "anthropic"
	KeyChat      = "openai-chat"
	KeyResponses = "openai-responses"
)
