package bench

import (
	"os"
	"runtime"
	"strings"
)

// Machine describes the machine, which the figures depend on.
type Machine struct {
	OS   string `json:"os"`
	Arch string `json:"arch"`
	CPUs int    `json:"cpus"`
	Go   string `json:"go"`
	// CPU is absent where the system does not report it.
	CPU string `json:"cpu,omitzero"`
}

// machine describes this machine.
func machine() Machine {
	m := Machine{OS: runtime.GOOS, Arch: runtime.GOARCH, CPUs: runtime.NumCPU(), Go: runtime.Version()}
	info, _ := os.ReadFile("/proc/cpuinfo") // Linux only
	if _, model, ok := strings.Cut(string(info), "model name"); ok {
		model, _, _ = strings.Cut(model, "\n")
		m.CPU = strings.TrimLeft(model, "\t :")
	}
	return m
}
