package eventlog

import "errors"

// ErrNoAnswer is returned when no server answered, or an answer broke off, before the patience of a read was over.
// Ask again before your deadline: a leader may be on its way.
var ErrNoAnswer = errors.New("no answer from the event stream")

// ErrNoStream is returned when nobody serves the stream: it does not exist, its direct get is switched off, or the
// connection's account cannot see it. Check that the fleet was provisioned.
var ErrNoStream = errors.New("event stream is not served")

// ErrAnswer is returned for an answer that is not in a form this version knows. It names what was received.
var ErrAnswer = errors.New("unexpected answer from the event stream")

// ErrBroken is returned by a [Follower] whose reading broke off: the connection was lost, the consumer is gone, or a
// message got lost on its way. Follow again from behind the last message that was delivered.
var ErrBroken = errors.New("reading the stream broke off")

// ErrStop is for a yield function that ends [Read] before the end of the log. Read returns it.
var ErrStop = errors.New("the reader stopped before the end of the log")

// ErrStale is returned when a server's answer ends before what is known to be stored. It is repeated until the
// deadline; what is stale is never returned as whole.
var ErrStale = errors.New("the answer is older than what is known to be stored")
