package statedir

import "os"

// processAlive says whether a process with this id exists: on Windows, opening it is the test.
func processAlive(pid int) bool {
	process, err := os.FindProcess(pid)
	if err != nil {
		return false
	}
	return process.Release() == nil
}
