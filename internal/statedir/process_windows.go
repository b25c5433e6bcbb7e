package statedir

import "os"

// processAlive reports whether a process with this id exists: on Windows, by opening it.
func processAlive(pid int) bool {
	process, err := os.FindProcess(pid)
	if err != nil {
		return false
	}
	return process.Release() == nil
}
