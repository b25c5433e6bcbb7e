//go:build !windows

package failure

import (
	"errors"
	"io"
	"syscall"
)

// closedPipe reports whether a write failed because its reader went away.
func closedPipe(err error) bool {
	return errors.Is(err, syscall.EPIPE) || errors.Is(err, io.ErrClosedPipe)
}
