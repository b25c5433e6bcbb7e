package fleetclient

// Unknown is an error that proves nothing about the request: a later try, or another process, may succeed.
type Unknown string

// Error returns the text.
func (e Unknown) Error() string { return string(e) }

var (
	// ErrUnavailable is returned if the request had no answer in time, or the daemon cannot serve it now. Try again
	// later.
	ErrUnavailable error = Unknown("not available")
	// ErrUnresolved comes with [ErrUnavailable] for a request that changes something and may have taken effect.
	ErrUnresolved error = Unknown("no answer: the event may be stored or not")
	// ErrNoService is returned if no daemon answers for the fleet. Start one with: waymark serve.
	ErrNoService error = Unknown("no waymark daemon answers")
	// ErrBadAnswer is returned for an answer of the daemon that this version does not understand.
	ErrBadAnswer error = Unknown("unexpected answer of the daemon")
	// ErrNotPermitted is returned when the server refuses the request, or its answer.
	ErrNotPermitted error = Unknown("not permitted")
)
