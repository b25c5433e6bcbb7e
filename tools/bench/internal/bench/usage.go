package bench

import (
	"os"
	"strconv"
	"strings"
)

// usage is the resource usage of a process since its start. Nil means that the system does not report it.
type usage struct {
	// CPU of all threads in us, user and system.
	CPU *float64 `json:"cpu_us,omitzero"`
	// Resident and PeakResident memory in bytes.
	Resident     *float64 `json:"resident,omitzero"`
	PeakResident *float64 `json:"peak_resident,omitzero"`
	// Written to the device in bytes.
	Written *float64 `json:"written,omitzero"`
}

// ownUsage returns the usage of this process.
func ownUsage() usage {
	u := usage{CPU: cpuTime()}
	// These files exist on Linux only.
	status := fields("/proc/self/status")
	u.Resident, u.PeakResident = kilobytes(status["VmRSS"]), kilobytes(status["VmHWM"])
	if n, err := strconv.ParseFloat(fields("/proc/self/io")["write_bytes"], 64); err == nil {
		u.Written = &n
	}
	return u
}

// forgetPeak resets the peak of this process's memory, where the system can do that.
func forgetPeak() { _ = os.WriteFile("/proc/self/clear_refs", []byte("5"), 0) } // elsewhere the peak is that of all cases

// fields reads a file of lines "name: value"; nil when there is none.
func fields(path string) map[string]string {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil
	}
	m := make(map[string]string)
	for line := range strings.Lines(string(data)) {
		if name, value, ok := strings.Cut(line, ":"); ok {
			m[strings.TrimSpace(name)] = strings.TrimSpace(value)
		}
	}
	return m
}

// kilobytes reads "1234 kB" as bytes.
func kilobytes(s string) *float64 {
	n, err := strconv.ParseFloat(strings.TrimSuffix(s, " kB"), 64)
	if err != nil {
		return nil
	}
	n *= 1024
	return &n
}

// minus returns the usage since before; nil if one of both is unknown.
func minus(after, before *float64) *float64 {
	if after == nil || before == nil {
		return nil
	}
	d := *after - *before
	return &d
}
