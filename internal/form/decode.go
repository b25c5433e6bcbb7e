package form

import "errors"

// ErrNoRole is returned for a message without a role.
var ErrNoRole = errors.New("the message has no role")

// Decoder reads messages.
type Decoder struct {
	// Key in source{} under which details are kept.
	Key string
}

// Keys in source{} of the forms.
const (
	KeyAnthropic = "anthropic"
	KeyChat      = "openai-chat"
	KeyResponses = "openai-responses"
)
