package natsd

import (
	"errors"
	"fmt"
	"time"
)

var (
	// ErrInvalidConfig is returned if a field of Config is out of range; the message names field and value.
	ErrInvalidConfig = errors.New("invalid configuration of the embedded nats server")

	// ErrLocked comes when another process uses the state directory. Use errors.As with *LockedError
	// for its process id. Stop that process or choose another directory.
	ErrLocked = errors.New("state directory is in use")

	// ErrPortInUse comes when the port asked for is taken. Choose another or 0 for a free one.
	ErrPortInUse = errors.New("port is in use")

	// ErrStart comes when the server refused to start for any other reason; the message is the server's.
	ErrStart = errors.New("nats server did not start")

	// ErrDiskFull comes when the disk of the state directory has no room for the files of a start. Use errors.As with
	// *DiskFullError for the disk. Make room and start again: acknowledged messages are kept.
	ErrDiskFull = errors.New("disk is full")

	// ErrStopTimeout comes when the server did not stop within Config.StopTimeout. It may still be
	// writing: end the process before another one uses the directory.
	ErrStopTimeout = errors.New("nats server did not stop in time")

	// ErrUnhealthy comes when the server's own health check fails; the message is the server's.
	ErrUnhealthy = errors.New("nats server is unhealthy")
)

// LockedError names the holder of a state directory. It matches ErrLocked.
type LockedError struct {
	Dir     string    // The state directory.
	PID     int       // The holder's process id; 0 if unknown.
	Started time.Time // When the holder started; zero if unknown.
}

// Error names the directory, the holder and what to do.
func (e *LockedError) Error() string {
	holder := "another process"
	if e.PID != 0 {
		holder = fmt.Sprintf("process %d (running since %s)", e.PID, e.Started.Format(time.RFC3339))
	}
	return fmt.Sprintf("%v: %s is held by %s: stop that process, or set another directory with WAYMARK_STATE_DIR",
		ErrLocked, e.Dir, holder)
}

// Is makes errors.Is(err, ErrLocked) true.
func (e *LockedError) Is(target error) bool { return target == ErrLocked }

// DiskFullError names the disk without room. It matches ErrDiskFull.
type DiskFullError struct {
	Dir         string // The state directory.
	Free, Total int64  // Bytes of its disk; both 0 if the system does not report them.
	Err         error  // The failed write.
}

// Error names the directory, its disk and the failed write.
func (e *DiskFullError) Error() string {
	room := ""
	if e.Total > 0 {
		room = fmt.Sprintf(", %d of %d MiB are free", e.Free>>20, e.Total>>20)
	}
	return fmt.Sprintf("%v: the disk of %s has no room%s: %v", ErrDiskFull, e.Dir, room, e.Err)
}

// Unwrap is ErrDiskFull, and the failed write.
func (e *DiskFullError) Unwrap() []error { return []error{ErrDiskFull, e.Err} }

// noRoom turns an error about a full disk into a DiskFullError, and returns any other unchanged.
func noRoom(dir string, err error) error {
	if err == nil || !saysFull(err.Error()) {
		return err
	}
	full := &DiskFullError{Dir: dir, Err: err}
	if free, total, err := DiskRoom(dir); err == nil {
		full.Free, full.Total = free, total
	}
	return full
}
