package service

import "errors"

// ErrConfig is returned for a configuration that cannot be used. It names the field and the value.
var ErrConfig = errors.New("invalid configuration")

// ErrClientGone is returned when nobody listens for the replies any more, or they were not acknowledged in time: then it wraps what the
// client is told. The answer was given up; the request may be repeated.
var ErrClientGone = errors.New("client does not take the replies")

// errAfterWithAt says that two fields of a request do not go together.
var errAfterWithAt = errors.New("after does not go with at")
