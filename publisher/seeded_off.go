//go:build !waymark_failpoints

package publisher

import "github.com/nats-io/nats.go"

// renamed is of a mistake that this binary cannot make: see failpoint.RetryNewID.
func (r *Run) renamed(it *item) *nats.Msg { return r.message(it, r.last, true) }
