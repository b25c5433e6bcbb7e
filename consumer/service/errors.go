package service

import "errors"

// ErrConfig is returned for an invalid configuration. It names the field and the value.
var ErrConfig = errors.New("invalid configuration")

// ErrClientGone is returned if no client is subscribed to the replies, or they were not acknowledged in time: then it
// wraps the error sent to the client. The answer has ended; the request may be repeated.
var ErrClientGone = errors.New("client does not take the replies")
