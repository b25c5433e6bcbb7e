package transcript

import (
	"errors"
	"fmt"

	"github.com/go-json-experiment/json/jsontext"
)

// ErrUnknownFormat is returned by [Open] for a file in none of the known formats. To override the detection, name the
// format with --format.
var ErrUnknownFormat = errors.New("unknown transcript format: expected openai-chat (messages), claude-code (type, sessionId) or swe-agent (history)")

// ErrSeveralRuns is returned by [Open] if a run id is given for a file with several runs.
var ErrSeveralRuns = errors.New("a run id names one run, but the file has several")

// ErrDiverged is returned by [Replay] if the existing run is not a beginning of the transcript. Nothing was published;
// import under another run id.
var ErrDiverged = errors.New("the existing run differs from the transcript")

// ErrInUse is returned by [Replay] for a run that another executor has. Nothing was published; wait until it has ended, or
// import under another run id.
var ErrInUse = errors.New("another executor has the run")

// ErrCancelled is returned by [Replay] for a run that a person cancelled and that lacks a part of the transcript.
// Nothing was published.
var ErrCancelled = errors.New("a person cancelled the run")

// ErrUnresolvedBlob is returned by [Export] when content is in the blob store. Fetch it with the
// publisher's Hydrate first.
var ErrUnresolvedBlob = errors.New("content is in the blob store")

// ErrEncrypted is returned by [Export] for encrypted content. Read it with its key, or export the events unchanged.
var ErrEncrypted = errors.New("is encrypted")

// Problem is a part of a file that was not imported.
type Problem struct {
	// File as given.
	File string
	// Line from 1; 0 when it is the file as a whole.
	Line int
	// Path is the JSON Pointer inside the line or document; empty for all of it.
	Path string
	// Err is the problem.
	Err error
}

// Error names file, line, path and problem.
func (p *Problem) Error() string {
	s := p.File
	if p.Line > 0 {
		s += fmt.Sprintf(":%d", p.Line)
	}
	if p.Path != "" {
		s += " at " + p.Path
	}
	return s + ": " + p.Err.Error()
}

// Unwrap returns Err.
func (p *Problem) Unwrap() error { return p.Err }

// jsonProblem splits an error of the JSON reader into path and cause.
func jsonProblem(err error) (path string, cause error) {
	if syntactic, ok := errors.AsType[*jsontext.SyntacticError](err); ok {
		cause = syntactic.Err
		if cause == nil {
			cause = err
		}
		return clip(string(syntactic.JSONPointer)), fmt.Errorf("not valid JSON: %w", clipped{cause})
	}
	return "", clipped{err}
}

// clipped is an error whose text is bounded: those of the JSON reader quote names and whole paths.
type clipped struct{ err error }

func (e clipped) Error() string { return clip(e.err.Error()) }
func (e clipped) Unwrap() error { return e.err }
