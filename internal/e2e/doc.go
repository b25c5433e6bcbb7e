// Package e2e holds the acceptance tests: what the README promises, shown with real processes.
//
// The daemon is the program itself, built once; executors are the test binary, started again. They are killed
// with SIGKILL from outside. What executors did is told by the journal outside, what must come out by code that
// reads the input files as plain JSON ([check]); neither knows the fold.
//
// Environment:
//
//	WAYMARK_E2E_FULL=1        the full number of kills (200 executors; 200 and 20 times the server), over all
//	                          transcripts; under the race detector the program is built with it, too
//	WAYMARK_E2E_SEED=n        the seed of the kills; a failing run prints its own
//	WAYMARK_E2E_KEEP=1        keep the directories of failing tests
//	WAYMARK_TRANSCRIPTS=dir   a folder of further transcripts for the round trip
//
// Real transcripts are read from shared/data beside the repository when they are there; a test that misses them
// says so. The plain run keeps below four minutes on two cores under the race detector.
//
// [check]: https://pkg.go.dev/github.com/waymarkio/waymark/internal/transcript/check
package e2e
