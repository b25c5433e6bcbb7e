package service

import "errors"

// ErrConfig is returned for an invalid configuration. It names the field and the value.
var ErrConfig = errors.New("invalid configuration")
