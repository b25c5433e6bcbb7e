package bench

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
)

// Machine describes the machine, which the figures depend on.
type Machine struct {
	OS         string `json:"os"`
	Arch       string `json:"arch"`
	CPUs       int    `json:"cpus"`
	GOMAXPROCS int    `json:"gomaxprocs"`
	Go         string `json:"go"`
	// CPU, Kernel, Memory and Filesystem are absent where the system does not report them.
	CPU         string   `json:"cpu,omitzero"`
	Kernel      string   `json:"kernel,omitzero"`
	MemoryBytes *float64 `json:"memory_bytes,omitzero"`
	// Filesystem of the servers' store.
	Filesystem string `json:"filesystem,omitzero"`
}

// machine describes this machine, and the file system of a directory.
func machine(store string) Machine {
	m := Machine{
		OS: runtime.GOOS, Arch: runtime.GOARCH, CPUs: runtime.NumCPU(), GOMAXPROCS: runtime.GOMAXPROCS(0), Go: runtime.Version(),
		CPU: fields("/proc/cpuinfo")["model name"], MemoryBytes: kilobytes(fields("/proc/meminfo")["MemTotal"]),
	}
	if kernel, err := os.ReadFile("/proc/sys/kernel/osrelease"); err == nil {
		m.Kernel = strings.TrimSpace(string(kernel))
	}
	if mounts, err := os.ReadFile("/proc/self/mounts"); err == nil {
		m.Filesystem = filesystem(string(mounts), store)
	}
	return m
}

// filesystem finds the type of the mount that a directory is below, in the form of /proc/self/mounts.
func filesystem(mounts, dir string) string {
	if abs, err := filepath.Abs(dir); err == nil {
		dir = abs
	}
	longest, kind := -1, ""
	for line := range strings.Lines(mounts) {
		f := strings.Fields(line)
		if len(f) < 3 {
			continue
		}
		// A later mount of the same place covers the earlier one.
		if at := strings.TrimSuffix(f[1], "/"); strings.HasPrefix(dir+"/", at+"/") && len(at) >= longest {
			longest, kind = len(at), f[2]
		}
	}
	return kind
}
