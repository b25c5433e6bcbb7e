package fleetclient

import "errors"

var (
	// ErrUnavailable is returned if the request had no answer in time, or the daemon cannot serve it now. Try again
	// later.
	ErrUnavailable = errors.New("not available")
	// ErrUnresolved comes with [ErrUnavailable] for a request that changes something and may have taken effect.
	ErrUnresolved = errors.New("no answer: the event may be stored or not")
	// ErrNoService is returned if no daemon answers for the fleet. Start one with: waymark serve.
	ErrNoService = errors.New("no waymark daemon answers")
	// ErrBadAnswer is returned for an answer of the daemon that this version does not understand.
	ErrBadAnswer = errors.New("unexpected answer of the daemon")
	// ErrNotPermitted is returned when the server refuses the request, or its answer.
	ErrNotPermitted = errors.New("not permitted")
)
