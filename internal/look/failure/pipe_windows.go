package failure

import (
	"errors"
	"io"
	"syscall"
)

// errnoNoData is ERROR_NO_DATA: the pipe is being closed.
const errnoNoData = syscall.Errno(232)

// closedPipe reports whether a write failed because its reader went away.
func closedPipe(err error) bool {
	return errors.Is(err, errnoNoData) || errors.Is(err, syscall.ERROR_BROKEN_PIPE) || errors.Is(err, io.ErrClosedPipe)
}
