package nemesis_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
)

// disk is a file system of its own in a file, whose power can be cut.
type disk struct {
	image, mount string
}

// newDisk makes one, or skips the test when that needs rights that this process does not have.
func newDisk(t *testing.T, dir string, megabytes int) *disk {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("power cuts need root, for loop mounts: run make chaos-power as root")
	}
	d := &disk{image: dir + ".img", mount: dir}
	require.NoError(t, os.MkdirAll(d.mount, 0o700))
	image, err := os.Create(d.image)
	require.NoError(t, err)
	require.NoError(t, image.Truncate(int64(megabytes)<<20))
	require.NoError(t, image.Close())
	if out, err := run("mkfs.ext4", "-q", "-F", d.image); err != nil {
		t.Skipf("power cuts need mkfs.ext4 (e2fsprogs): %v: %s", err, out)
	}
	if err := d.on(); err != nil {
		t.Skipf("power cuts need loop mounts, which this machine does not allow: %v", err)
	}
	t.Cleanup(func() {
		if err := d.off(); err != nil {
			t.Error(err)
		}
	})
	return d
}

func run(name string, args ...string) (string, error) {
	out, err := exec.CommandContext(context.Background(), name, args...).CombinedOutput()
	return string(out), err
}

// on mounts it: the journal is replayed.
func (d *disk) on() error {
	if out, err := run("mount", "-o", "loop", d.image, d.mount); err != nil {
		return fmt.Errorf("mounting %s: %w: %s", d.image, err, out)
	}
	return nil
}

// off unmounts it. Its users must have ended.
func (d *disk) off() error {
	if out, err := run("umount", d.mount); err != nil {
		return fmt.Errorf("unmounting %s: %w: %s", d.mount, err, out)
	}
	return nil
}

// From linux/fs.h: the file system is shut down at once, and unwritten data in its journal is lost.
const (
	ext4Shutdown   = 0x8004587d
	shutNoLogFlush = uint32(2)
)

// cut takes the power away: nothing that was not written through is ever written.
func (d *disk) cut() error {
	dir, err := os.Open(d.mount)
	if err != nil {
		return err
	}
	flags := shutNoLogFlush
	_, _, errno := syscall.Syscall(syscall.SYS_IOCTL, dir.Fd(), ext4Shutdown, uintptr(unsafe.Pointer(&flags))) //nolint:gosec // an ioctl takes a pointer
	err = dir.Close()
	if errno != 0 {
		return errors.Join(fmt.Errorf("shutting down %s: %w", d.mount, errno), err)
	}
	return err
}

// stopped reports whether a process does nothing any more: the signal that stops it reaches each of its threads by and by.
func stopped(p *process) (bool, error) {
	tasks := fmt.Sprintf("/proc/%d/task", p.life.cmd.Process.Pid)
	threads, err := os.ReadDir(tasks)
	if err != nil {
		return false, err
	}
	for _, thread := range threads {
		stat, err := os.ReadFile(filepath.Join(tasks, thread.Name(), "stat"))
		// "pid (name) T ...": the name may contain anything. A running process may have ended a thread in the
		// meantime.
		if at := bytes.LastIndexByte(stat, ')'); err != nil || at < 0 || !bytes.HasPrefix(stat[at:], []byte(") T")) {
			return false, nil //nolint:nilerr // a thread that ends is not stopped
		}
	}
	return true, nil
}

// stands waits until one of the processes is stopped completely.
func stands(ctx context.Context, processes ...*process) error {
	every := time.NewTicker(time.Millisecond)
	defer every.Stop()
	for {
		for _, p := range processes {
			if still, err := stopped(p); still || err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-every.C:
		}
	}
}

func TestPowerCut_OneServer_LosesNothing(t *testing.T) {
	if testing.Short() {
		t.Skip("short: real servers and programs are broken")
	}
	powerCuts(t, 1, 1, anyTime)
}

func TestPowerCut_AllThreeServers_LosesNothing(t *testing.T) {
	if testing.Short() {
		t.Skip("short: real servers and programs are broken")
	}
	powerCuts(t, 3, 1, anyTime)
}

// moment waits until the power is to be cut, for the nth time in a world. It may leave daemons and executors stopped.
type moment func(r *round, n uint64) error

// anyTime is a random moment under load.
func anyTime(r *round, _ uint64) error { return r.storm.between(r.tb.Context(), 100, 2000) }

// powerCuts cuts the power of all servers at once, again and again: each time that WAYMARK_CHAOS_CUTS counts at so many moments.
func powerCuts(t *testing.T, servers int, each uint64, at moment) {
	t.Helper()
	t.Parallel() // it mostly waits
	if only := number(t, "WAYMARK_CHAOS_SERVERS", 0); only != 0 && only != uint64(servers) {
		t.Skipf("WAYMARK_CHAOS_SERVERS=%d leaves out worlds of %d servers", only, servers)
	}
	cuts := number(t, "WAYMARK_CHAOS_CUTS", 1)
	if cuts == 0 {
		t.Skip("WAYMARK_CHAOS_CUTS=0 leaves out power cuts")
	}
	s := scaleOf(servers)
	var disks []*disk
	base := t.TempDir()
	for i := range servers {
		d := newDisk(t, filepath.Join(base, fmt.Sprintf("disk-%d", i)), 1024)
		disks = append(disks, d)
		s.storeDirs = append(s.storeDirs, filepath.Join(d.mount, "state"))
	}
	if each > 1 {
		var err error
		s.mutants, err = withMutants()
		require.NoError(t, err)
	}
	r := newRound(t, s, number(t, "WAYMARK_CHAOS_SEED", 1))
	for n := range cuts * each {
		r.suffer(fault{name: "power-cut", strike: func(ctx context.Context, s *storm) error {
			if err := at(r, n); err != nil {
				return err
			}
			// A server does nothing more when its power is cut. One that continued after its disk was shut down would
			// see writes fail, which is another fault: a broken disk.
			for _, n := range s.nodes {
				if err := errors.Join(n.pause(), stands(ctx, n)); err != nil {
					return err
				}
			}
			for i, d := range disks {
				if err := errors.Join(d.cut(), s.nodes[i].kill()); err != nil {
					return err
				}
			}
			for _, d := range disks {
				if err := errors.Join(d.off(), d.on()); err != nil {
					return err
				}
			}
			return r.goOn()
		}})
	}
	r.judge()
}

// It proves that this power cut is realistic: a synced file stays, and another does not.
func TestPowerCut_UnsyncedWrites_Lost(t *testing.T) {
	t.Parallel() // it mostly waits
	if testing.Short() {
		t.Skip("short: real servers and programs are broken")
	}
	d := newDisk(t, filepath.Join(t.TempDir(), "disk"), 256)
	for name, sync := range map[string]bool{"written": true, "left": false} {
		file, err := os.Create(filepath.Join(d.mount, name))
		require.NoError(t, err)
		_, err = file.WriteString("acknowledged")
		require.NoError(t, err)
		if sync {
			require.NoError(t, file.Sync())
			dir, err := os.Open(d.mount)
			require.NoError(t, err)
			require.NoError(t, dir.Sync())
			require.NoError(t, dir.Close())
		}
		require.NoError(t, file.Close())
	}
	require.NoError(t, d.cut())
	require.NoError(t, d.off())
	require.NoError(t, d.on())
	text, err := os.ReadFile(filepath.Join(d.mount, "written"))
	require.NoError(t, err)
	require.Equal(t, "acknowledged", string(text))
	text, err = os.ReadFile(filepath.Join(d.mount, "left"))
	require.True(t, err != nil || len(text) == 0, "what was not written through is gone: %q", text)
}
