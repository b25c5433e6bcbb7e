package serve

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/rs/zerolog"

	"github.com/waymarkio/waymark/internal/base/output"
	"github.com/waymarkio/waymark/internal/cli/base"
	"github.com/waymarkio/waymark/internal/look/failure"
	"github.com/waymarkio/waymark/internal/nats/natsd"
)

// roomEvery is how often a full disk is checked.
const roomEvery = time.Second

// roomAgain reports whether a disk that was full has room, if the system tells.
func roomAgain(dir string) bool {
	free, total, err := natsd.DiskRoom(dir)
	return err == nil && free >= failure.LeastRoom(total)
}

// awaitRoom waits until the disk has room, and reports false when ctx ends before.
func awaitRoom(ctx context.Context, dir string) bool {
	tick := time.NewTicker(roomEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return false
		case <-tick.C:
			if roomAgain(dir) {
				return true
			}
		}
	}
}

// watchRoom waits until the daemon's own server runs out of room, and then until the disk has room again. Then it ends the daemon with the
// error of a full disk. Until then a restart would not help, and readers are served.
func (d *daemon) watchRoom(ctx context.Context, log zerolog.Logger) error {
	select {
	case <-ctx.Done():
		return nil
	case <-d.server.OutOfSpace():
	}
	f := d.fullDisk()
	log.Error().Str("detail", d.server.Full()).Str("hint", f.Do).Msg("the disk is full: no message is stored before there is free space")
	if !awaitRoom(ctx, d.server.StateDir()) {
		return nil
	}
	return d.ranOut(errors.New(d.server.Full()))
}

// ranOut replaces the error of a daemon whose own server ran out of room by that of a full disk. If the system does not tell the free space, the
// daemon cannot wait for room, and the error stays.
func (d *daemon) ranOut(err error) error {
	if err == nil || d.server == nil || d.server.Full() == "" {
		return err
	}
	dir := d.server.StateDir()
	free, total, unknown := natsd.DiskRoom(dir)
	if errors.Is(err, natsd.ErrDiskFull) || unknown != nil {
		return err
	}
	return &natsd.DiskFullError{Dir: dir, Free: free, Total: total, Err: err}
}

// fullDisk is the finding of a full disk of the daemon's own server.
func (d *daemon) fullDisk() base.Finding {
	dir, room, do := d.server.StateDir(), "", "free space on that disk, then restart the daemon. Acknowledged data is kept"
	if free, total, err := natsd.DiskRoom(dir); err == nil {
		room = fmt.Sprintf("; %s of %s are free now", output.Bytes(free), output.Bytes(total))
		do = fmt.Sprintf("free at least %s on that disk: the daemon then continues by itself. Acknowledged data is kept", output.Bytes(failure.LeastRoom(total)))
	}
	return base.Find("disk", base.Failed, do, "the disk of %s was full, and its nats server stores no message: %s%s", dir, d.server.Full(), room)
}
