package nemesis_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// diskGroups is where the first version of Linux control groups limits disk writes.
const diskGroups = "/sys/fs/cgroup/blkio"

// throttle bounds how many writes a second the servers of a world may do.
type throttle struct{ *cell }

// slowDisk starts the servers of a world where their writes can be limited; nil means that this machine does not
// support it, which is logged.
func slowDisk(t *testing.T, s *scale) *throttle {
	t.Helper()
	if os.Getuid() != 0 {
		t.Log(`NOT TESTED: a slow disk needs root, for a control group: run make chaos CHAOSFLAGS="-run SlowStore" as root`)
		return nil
	}
	c := &cell{dir: filepath.Join(diskGroups, fmt.Sprintf("waymark-nemesis-%d-%s", os.Getpid(), t.Name()))}
	if err := os.Mkdir(c.dir, 0o700); err != nil {
		t.Logf("a slow disk needs control groups of version 1 with the blkio controller, and is left out: %v", err)
		return nil
	}
	t.Cleanup(func() {
		// The system takes note of the end of the last process in its own time.
		require.Eventually(t, func() bool {
			err := syscall.Rmdir(c.dir)
			return err == nil || errors.Is(err, os.ErrNotExist)
		}, patience, 10*time.Millisecond, "%s cannot be removed", c.dir)
	})
	s.held = func(p *process) {
		if p.name == "server-0" {
			c.hold(p)
		}
	}
	return &throttle{c}
}

// allow sets how many writes a second are allowed below the directory of the logs, which is on the disk of the
// stores; 0 is any number.
func (d *throttle) allow(p *process, writes int) error {
	info, err := os.Stat(p.logs)
	if err != nil {
		return err
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return fmt.Errorf("%s has no device", p.logs)
	}
	// The numbers of the device as the system's library takes them apart.
	major, minor := stat.Dev>>8&0xfff|stat.Dev>>32&^0xfff, stat.Dev&0xff|stat.Dev>>12&^0xff
	return os.WriteFile(filepath.Join(d.dir, "blkio.throttle.write_iops_device"), fmt.Appendf(nil, "%d:%d %d", major, minor, writes), 0o600)
}
