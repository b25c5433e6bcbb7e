package spans

import "errors"

// ErrCollector is returned when the collector did not take the spans within the patience of a single export. Nothing was lost:
// export again. Look at the collector, and at the address and protocol that were given.
var ErrCollector = errors.New("the collector does not take the spans")

// ErrPosition is returned when the stored position cannot be used: the file is damaged or of another fleet, another process
// uses it, or the log ends before it. The text says which.
var ErrPosition = errors.New("the position cannot be used")

// ErrNoRun is what a history says of a run that is not there: it was erased. The feed goes on without it.
var ErrNoRun = errors.New("no such run")

// ErrIncomplete is what a history says of a run of which events are lost. Spans of what is left are exported; waymark verify
// names what is lost.
var ErrIncomplete = errors.New("some events are lost")
