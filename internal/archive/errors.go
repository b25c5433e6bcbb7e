package archive

import (
	"errors"
	"fmt"
)

var (
	// ErrHostile comes for an entry that a Waymark archive cannot have: not a file, a name outside the form, a
	// duplicate name or one out of order.
	ErrHostile = errors.New("a waymark archive cannot have it")
	// ErrTooLarge comes when an entry, or all together, exceed the limits, as declared or as read.
	ErrTooLarge = errors.New("the archive is too large")
	// ErrDamaged comes for an archive that is truncated, has data after its end, or does not match its manifest.
	ErrDamaged = errors.New("the archive is damaged")
	// ErrFormat comes for an archive of a later version.
	ErrFormat = errors.New("unknown format of an archive")
	// ErrOtherFleet comes for an archive of a fleet of another name: events name their fleet. Nothing was written.
	ErrOtherFleet = errors.New("the archive is of another fleet")
	// ErrOtherKeys comes for a run with control events that the fleet's current keys do not accept. Nothing was
	// written.
	ErrOtherKeys = errors.New("the keys of the fleet refuse events of the run")
	// ErrRunExists comes when the fleet has another run of that id. Nothing was written.
	ErrRunExists = errors.New("the fleet has a run of that id")
	// ErrPartly comes when the fleet has the beginning of the run, from an interrupted import or an earlier copy.
	// Nothing was written. It can be continued.
	ErrPartly = errors.New("the fleet has the beginning of the run")
	// ErrNotEnded comes for a run that has not ended: after the import, the fleet's executors continue it. Allow that
	// explicitly.
	ErrNotEnded = errors.New("the run has not ended")
	// ErrBase comes for a fork whose base is neither in the archive nor in the fleet. Export it with its bases.
	ErrBase = errors.New("the base of the run is missing")
	// ErrIncomplete comes for a run with missing events: it is not exported. Look at it with verify.
	ErrIncomplete = errors.New("events of the run are missing")
)

// EntryError is a problem of an archive, and its place.
type EntryError struct {
	// Entry of the archive; empty when it is about the whole file.
	Entry string
	// Problem is the description for people.
	Problem string
	// Hint is the next step.
	Hint string
	// Err is the sentinel that it matches, perhaps with a cause.
	Err error
}

// Error names entry and problem.
func (e *EntryError) Error() string {
	if e.Entry == "" {
		return e.Problem + ": " + e.Err.Error()
	}
	return fmt.Sprintf("entry %.160q: %s: %s", e.Entry, e.Problem, e.Err)
}

// Unwrap returns the sentinel.
func (e *EntryError) Unwrap() error { return e.Err }

const (
	hintAgain   = "export it again; nothing was imported"
	hintTrust   = "do not trust its origin; nothing was imported"
	hintLimit   = "allow more with --max-size if you know its content; nothing was imported"
	hintVersion = "use the version of waymark that made it, or a later one; nothing was imported"
)

func hostile(entry, format string, args ...any) error {
	return &EntryError{Entry: entry, Problem: fmt.Sprintf(format, args...), Hint: hintTrust, Err: ErrHostile}
}

func damaged(entry, format string, args ...any) error {
	return &EntryError{Entry: entry, Problem: fmt.Sprintf(format, args...), Hint: hintAgain, Err: ErrDamaged}
}

func tooLarge(entry, format string, args ...any) error {
	return &EntryError{Entry: entry, Problem: fmt.Sprintf(format, args...), Hint: hintLimit, Err: ErrTooLarge}
}
