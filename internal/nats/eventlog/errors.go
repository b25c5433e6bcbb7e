package eventlog

import "errors"

// ErrNoAnswer is returned if no server answered, or an answer broke off, within the patience of a read. Ask again
// before your deadline: a leader may be elected soon.
var ErrNoAnswer = errors.New("no answer from the event stream")

// ErrNoStream is returned if no server has the stream: it does not exist, its direct get is off, or the connection's
// account cannot see it. Check that the fleet was provisioned.
var ErrNoStream = errors.New("event stream is not served")

// ErrAnswer is returned for an answer in a form this version does not know. It quotes the answer.
var ErrAnswer = errors.New("unexpected answer from the event stream")

// ErrBroken is returned by [Scan], and by a [Follower] that can no longer read: the connection was lost, the consumer is gone, or a
// message was lost. Follow again after the last message that was delivered.
var ErrBroken = errors.New("reading the stream broke off")

// ErrStop is returned by a yield function to end [Read] before the end of the log. Read returns it.
var ErrStop = errors.New("the reader stopped before the end of the log")

// ErrStale is returned if a server's answer ends before a stored event that is known. Reads are repeated until the
// deadline; a stale answer is never returned as complete.
var ErrStale = errors.New("the answer is older than what is known to be stored")
