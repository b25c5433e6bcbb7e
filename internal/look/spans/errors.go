package spans

import "errors"

// ErrCollector is returned when the collector did not accept the spans within the patience of a single export. Nothing
// was lost: export again. Check the collector, and its address and protocol.
var ErrCollector = errors.New("the collector does not accept spans")

// ErrPosition is returned when the stored position cannot be used: the file is damaged or belongs to another fleet,
// another process uses it, or the log ends before it. The text says which.
var ErrPosition = errors.New("the position cannot be used")

// ErrNoRun is returned by a history for a run that does not exist: it was erased. The feed continues without it.
var ErrNoRun = errors.New("no such run")

// ErrIncomplete is returned by a history for a run with lost events. Spans of the other events are exported; waymark
// verify lists the lost ones.
var ErrIncomplete = errors.New("some events are lost")
