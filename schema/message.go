package schema

import "github.com/go-json-experiment/json/jsontext"

// Roles of a [Message], the names of the OpenTelemetry GenAI conventions.
const (
	RoleSystem    = "system"
	RoleUser      = "user"
	RoleAssistant = "assistant"
	RoleTool      = "tool"
)

// Types of a [Part], the names of the OpenTelemetry GenAI conventions. Unknown types are kept.
const (
	PartText             = "text"
	PartReasoning        = "reasoning"
	PartToolCall         = "tool_call"
	PartToolCallResponse = "tool_call_response"
	PartBlob             = "blob"
	PartFile             = "file"
	PartURI              = "uri"
)

// Message is one message of a conversation, in the form of the OpenTelemetry GenAI conventions.
//
// Everything is stored once: a part of type tool_call names the call by id, and the event tool.called has its
// arguments; the response of a tool_call_response is in tool.returned. [State] joins them.
type Message struct {
	// Role is system, user, assistant or tool. Required.
	Role string `json:"role" check:"required,oneof=system|user|assistant|tool"`
	// Name of the participant, where the provider has one.
	Name string `json:"name,omitzero" content:"text"`
	// Parts in order. A message may have none (an empty or null content of the provider).
	Parts []Part `json:"parts,omitzero"`
	// Source keeps a provider's replay detail that is no content: signatures, null or absent, string or list, ids,
	// per-message usage. Without it, text, calls and results are still complete.
	Source jsontext.Value `json:"source,omitzero" content:"large"`
	// Extra keeps the members this version does not know.
	Extra jsontext.Value `json:",embed"`
}

// Part is one piece of a [Message]. Which fields are set depends on Type.
type Part struct {
	// Type is one of the Part… constants, or a type of a later version. Required.
	Type string `json:"type" check:"required"`
	// Content of text and reasoning; base64 data of a blob.
	Content *string `json:"content,omitzero" content:"large"`
	// ID of the tool call, for tool_call and tool_call_response.
	ID string `json:"id,omitzero" check:"max=256" with:"type=tool_call|tool_call_response"`
	// Occurrence tells apart calls of one turn that share an id; 0 and 1 both mean the first.
	Occurrence int `json:"occurrence,omitzero" check:"min=0,max=2147483647"`
	// CallTurn is the turn of the call that ID names, when it is not the message's own turn.
	CallTurn int32 `json:"call_turn,omitzero" check:"min=0"`
	// Name of the tool, for tool_call.
	Name string `json:"name,omitzero" content:"name"`
	// Arguments of a tool_call. Empty when the event tool.called has them; [State.Conversation] fills it.
	Arguments jsontext.Value `json:"arguments,omitzero" content:"large"`
	// Response of a tool_call_response. Empty when tool.returned has it; [State.Conversation] fills it.
	Response jsontext.Value `json:"response,omitzero" content:"large"`
	// IsError says of a tool_call_response that the response is an error. Events need not have it, because their calls
	// do; [State.Conversation] sets it.
	IsError bool `json:"is_error,omitzero"`
	// Modality of blob, file and uri: image, audio, video, document.
	Modality string `json:"modality,omitzero"`
	// MimeType of blob, file and uri.
	MimeType string `json:"mime_type,omitzero"`
	// URI of a uri part.
	URI string `json:"uri,omitzero" content:"text"`
	// FileID of a file part.
	FileID string `json:"file_id,omitzero" content:"text"`
	// Source keeps replay detail of a provider for this part; see [Message.Source].
	Source jsontext.Value `json:"source,omitzero" content:"large"`
	// Extra keeps the members this version does not know.
	Extra jsontext.Value `json:",embed"`
}

// Text returns a text part.
func Text(s string) Part { return Part{Type: PartText, Content: &s} }

// Reasoning returns a reasoning part.
func Reasoning(s string) Part { return Part{Type: PartReasoning, Content: &s} }

// CallPart returns the part of an assistant message that asks for the call id of the named tool.
func CallPart(id, name string) Part { return Part{Type: PartToolCall, ID: id, Name: name} }

// Usage counts tokens, with the names of the OpenTelemetry GenAI conventions. A provider's further counters are kept
// in Extra.
type Usage struct {
	InputTokens              int64          `json:"input_tokens,omitzero" check:"min=0"`
	OutputTokens             int64          `json:"output_tokens,omitzero" check:"min=0"`
	CacheReadInputTokens     int64          `json:"cache_read_input_tokens,omitzero" check:"min=0"`
	CacheCreationInputTokens int64          `json:"cache_creation_input_tokens,omitzero" check:"min=0"`
	ReasoningOutputTokens    int64          `json:"reasoning_output_tokens,omitzero" check:"min=0"`
	Extra                    jsontext.Value `json:",embed"`
}

// IsZero reports whether nothing was counted.
func (u Usage) IsZero() bool {
	return u.InputTokens == 0 && u.OutputTokens == 0 && u.CacheReadInputTokens == 0 &&
		u.CacheCreationInputTokens == 0 && u.ReasoningOutputTokens == 0 && len(u.Extra) == 0
}

// add sums the known counters; Extra belongs to the provider and is not summed. Sums stop at the largest number
// instead of wrapping.
func (u *Usage) add(v Usage) {
	u.InputTokens = addClamped(u.InputTokens, v.InputTokens)
	u.OutputTokens = addClamped(u.OutputTokens, v.OutputTokens)
	u.CacheReadInputTokens = addClamped(u.CacheReadInputTokens, v.CacheReadInputTokens)
	u.CacheCreationInputTokens = addClamped(u.CacheCreationInputTokens, v.CacheCreationInputTokens)
	u.ReasoningOutputTokens = addClamped(u.ReasoningOutputTokens, v.ReasoningOutputTokens)
}

// Error describes a failure: of a tool, a turn or a run.
type Error struct {
	// Type is a short stable name, as error.type of OpenTelemetry. Required.
	Type string `json:"type" check:"required"`
	// Message is for people.
	Message string `json:"message,omitzero" content:"text"`
	// Code is the failing system's own code.
	Code string `json:"code,omitzero" content:"text"`
	// Retryable says that trying again may help.
	Retryable bool `json:"retryable,omitzero"`
	// Extra keeps the members this version does not know.
	Extra jsontext.Value `json:",embed"`
}

func addClamped(a, b int64) int64 {
	if b <= 0 {
		return a
	}
	if s := a + b; s >= a {
		return s
	}
	return 1<<63 - 1
}
