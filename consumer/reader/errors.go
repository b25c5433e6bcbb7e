package reader

import (
	"errors"
	"fmt"

	"github.com/waymarkio/waymark/schema"
)

// ErrStopping is returned for requests while the service stops. Ask another replica.
var ErrStopping = errors.New("the service is stopping")

// ErrNoRun is returned for a run that no shard has, which a barrier has proven.
var ErrNoRun = errors.New("no such run")

// errAbsent says that the log has no event at the checkpoint's position.
var errAbsent = errors.New("nothing at the checkpoint's position")

// errOtherThere says that the log has another event at the position of the checkpoint or the last segment.
var errOtherThere = errors.New("another event at the position")

// errPurged says that events of the run were purged while the log was read.
var errPurged = errors.New("purged during the read")

// errSealedDuringRead says that more of the run was sealed, and perhaps purged, during the read.
var errSealedDuringRead = errors.New("more of the run was sealed during the read")

// errPrefix says that the log lacks events between the last segment and the checkpoint.
var errPrefix = errors.New("events before the checkpoint are missing")

// gapError is a break in a run's log. The leader confirms it before it counts.
type gapError struct {
	// after is the last event before the gap, at the first one after it.
	after, at schema.StreamSequence
	reason    schema.Reason
	// snapshot is the one that found it.
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
