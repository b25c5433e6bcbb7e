package reader

import (
	"errors"
	"fmt"

	"github.com/waymarkio/waymark/schema"
)

// ErrStopping is returned for work that was asked for while the service stops. Ask another replica.
var ErrStopping = errors.New("the service is stopping")

// ErrNoRun is returned for a run that no shard holds, which a barrier has proven.
var ErrNoRun = errors.New("no such run")

// errAbsent says that the log has no event where the checkpoint stands.
var errAbsent = errors.New("nothing at the checkpoint's position")

// errOtherThere says that the log has another event where the checkpoint or the last segment stands.
var errOtherThere = errors.New("another event at the position")

// errPurged says that events of the run were purged while the log was read.
var errPurged = errors.New("purged meanwhile")

// errSealedDuringRead says that more of the run was sealed, and perhaps purged, while it was read.
var errSealedDuringRead = errors.New("more of the run was sealed meanwhile")

// errPrefix says that the log does not hold all events between the last segment and the checkpoint.
var errPrefix = errors.New("events before the checkpoint are missing")

// gapError is a place where a run's log does not go on as it should. The leader confirms it before it is believed.
type gapError struct {
	// after is the last event before it, at the first one behind it.
	after, at schema.StreamSequence
	reason    schema.Reason
	// snapshot is the snapshot that met it.
	snapshot *Snapshot
}

func (e *gapError) Error() string {
	return fmt.Sprintf("gap in the log between %d and %d: %s", e.after, e.at, e.reason)
}

// Damaged says that stored content of a run is missing or corrupt, and where.
type Damaged struct {
	Segment int
	Gap     schema.Gap
	Err     error
}

func (d *Damaged) Error() string { return fmt.Sprintf("segment %d: %v", d.Segment, d.Err) }

func (d *Damaged) Unwrap() error { return d.Err }
