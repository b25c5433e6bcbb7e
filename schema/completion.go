package schema

// Completion says how a completed run ended, and that a failed one ended behind a limit.
type Completion string

// Completions.
const (
	// CompletionTool: by the tool call that its completion contract asks for.
	CompletionTool Completion = "tool"
	// CompletionLimit: by its executor's word, behind a limit that was reached; of failed runs, too.
	CompletionLimit Completion = "limit"
	// CompletionExecutor: by its executor's word alone.
	CompletionExecutor Completion = "executor"
)

// Completions are all completions.
var Completions = []Completion{CompletionTool, CompletionLimit, CompletionExecutor} //nolint:gochecknoglobals // a constant

// Completion returns how a completed run ended, and limit for a failed one that reached a limit; empty for any other run.
func (h *Head) Completion() Completion {
	switch {
	case h.Status == StatusFailed && h.Limit != "":
		return CompletionLimit
	case h.Status != StatusCompleted:
		return ""
	case h.CompletedBy != "":
		return CompletionTool
	case h.Limit != "":
		return CompletionLimit
	}
	return CompletionExecutor
}
