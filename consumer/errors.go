package consumer

import (
	"errors"
	"fmt"

	"github.com/waymarkio/waymark/schema"
)

// ErrStopping is returned for work that was asked for while the service stops. Ask another replica.
var ErrStopping = errors.New("the service is stopping")

// ErrConfig is returned for a configuration that cannot be used. It names the field and the value.
var ErrConfig = errors.New("invalid configuration")

// ErrClientGone is returned when nobody listens for the replies any more, or they were not acknowledged in time. The
// answer was given up; the request may be repeated.
var ErrClientGone = errors.New("client does not take the replies")

// ErrStale is returned when a server's answer ends before what is known to be stored. It is repeated until the
// deadline; what is stale is never returned as whole.
var ErrStale = errors.New("the answer is older than what is known to be stored")

// ErrNoRun is returned for a run that no shard holds, which a barrier has proven.
var ErrNoRun = errors.New("no such run")

// errAbsent says that the log has no event where the checkpoint stands.
var errAbsent = errors.New("nothing at the checkpoint's position")

// errOtherThere says that the log has another event where the checkpoint or the last segment stands.
var errOtherThere = errors.New("another event at the position")

// errPurged says that events of the run were purged while the log was read.
var errPurged = errors.New("purged meanwhile")

// errMoved says that more of the run was sealed, and perhaps purged, while it was read.
var errMoved = errors.New("more of the run was sealed meanwhile")

// errPrefix says that the log does not hold all events between the last segment and the checkpoint.
var errPrefix = errors.New("events before the checkpoint are missing")

// errAfterWithAt says that two fields of a request do not go together.
var errAfterWithAt = errors.New("after does not go with at")

// hole is a place where a run's log does not go on as it should. It is confirmed before it is believed.
type hole struct {
	// after is the last event before it, at the first one behind it.
	after, at schema.StreamSequence
	reason    schema.Reason
	// of is the reading that met it.
	of *reading
}

func (h *hole) Error() string {
	return fmt.Sprintf("hole in the log between %d and %d: %s", h.after, h.at, h.reason)
}

// damaged says that stored content of a run is missing or corrupt, and where.
type damaged struct {
	segment int
	gap     schema.Gap
	err     error
}

func (d *damaged) Error() string { return fmt.Sprintf("segment %d: %v", d.segment, d.err) }

func (d *damaged) Unwrap() error { return d.err }

// fail builds an error of the service.
func fail(code schema.Code, hint, format string, args ...any) *schema.ServiceError {
	return &schema.ServiceError{Code: code, Message: fmt.Sprintf(format, args...), Hint: hint}
}
