package schema

// Completion says how a completed run ended, and whether a failed run had reached a limit.
type Completion string

// Completions.
const (
	// CompletionTool: by the tool call that the completion contract requires.
	CompletionTool Completion = "tool"
	// CompletionLimit: declared by the executor after a limit was reached; also of failed runs.
	CompletionLimit Completion = "limit"
	// CompletionExecutor: declared by the executor alone.
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
