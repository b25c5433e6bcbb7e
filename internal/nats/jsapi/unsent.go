package jsapi

import (
	"errors"

	"github.com/nats-io/nats.go"
)

// UnsentError is an error of a publish itself: the message did not leave this process. The same error of nats.go does
// not mean that while waiting for an answer.
type UnsentError struct{ Err error }

// Error is that of nats.go.
func (e *UnsentError) Error() string { return e.Err.Error() }

// Unwrap returns the error of nats.go.
func (e *UnsentError) Unwrap() error { return e.Err }

// Unsent wraps the error of a publish in an [UnsentError] if nothing was written, which an error of the socket does
// not prove.
func Unsent(err error) error {
	for _, before := range []error{nats.ErrReconnectBufExceeded, nats.ErrConnectionClosed, nats.ErrConnectionDraining, nats.ErrInvalidConnection} {
		if errors.Is(err, before) {
			return &UnsentError{err}
		}
	}
	return err
}
