package bench

import (
	"errors"
	"fmt"
)

var (
	// ErrUnknownCase is returned for the name of an unknown case. The message lists the cases.
	ErrUnknownCase = errors.New("there is no such case")
	// ErrOptions is returned for options out of range. The message names the field.
	ErrOptions = errors.New("invalid options")
	// ErrWrongData is returned when the data read back differ from the data written; see [WrongDataError]. Ignore the
	// figures of that case, and look for the fault before you measure again.
	ErrWrongData = errors.New("what was read back is not what was written")
	// ErrResult is returned for a line that is no result of this program.
	ErrResult = errors.New("not a result of bench")
	// ErrChild is returned when a process of the measurement did not start or ended early.
	ErrChild = errors.New("a process of the measurement failed")
)

// WrongDataError names a difference between the data written and read back. It matches [ErrWrongData].
type WrongDataError struct {
	// Run that differs, and the Field of its head.
	Run, Field string
	// Wrote and Read are the two values.
	Wrote, Read any
}

// Error names run, field and both values.
func (e *WrongDataError) Error() string {
	return fmt.Sprintf("%s: run %s: %s: wrote %v, read %v", ErrWrongData, e.Run, e.Field, e.Wrote, e.Read)
}

// Unwrap makes the error match ErrWrongData.
func (e *WrongDataError) Unwrap() error { return ErrWrongData }
