package form

import (
	"errors"

	"github.com/waymarkio/waymark/schema"
)

// ErrNoRole is returned for a message without a role.
var ErrNoRole = errors.New("the message has no role")

// Decoder reads messages.
type Decoder struct {
	// Key in source{} under which details are kept.
	Key string
	// Observations: a response is the result of an observation of SWE-agent, with its ids in a list.
	Observations bool
	// Full reports that a message has more parts and calls than can be recorded; its calls are then kept unchanged. nil
	// means no limit.
	Full func(parts []schema.Part, calls []Call) bool
}

// Keys in source{} of the forms.
const (
	KeyAnthropic = "anthropic"
	KeyChat      = "openai-chat"
	KeyResponses = "openai-responses"
)
