// Package e2e has the acceptance tests: the README's promises, shown with real processes.
//
// The daemon is the program itself, built once; executors are the test binary, started again. They are killed with
// SIGKILL from outside. The journal records the executors' actions independently, and code that reads the input files
// as plain JSON ([check]) computes the expected result; neither knows the fold.
//
// There are two kinds of executors. Those of executor_test.go play transcripts and are told which runs to resume. The
// workers of worker_test.go are a fleet: they start runs and claim those of others, with calls of every policy, whose
// tools count their effects in the journal. Tools with policy verify are in a separate process, the shop.
//
// Environment:
//
//	WAYMARK_E2E_FULL=1        the full number of kills (200 executors; 200 and 20 times the server), over all
//	                          transcripts; the full fleet (100 executors, 1,000 runs, a minute of kills; 1,000
//	                          orphans at once), with the default silence; under the race detector the program is
//	                          built with it, too
//	WAYMARK_E2E_SEED=n        the seed of the kills; a failing run prints its own
//	WAYMARK_E2E_KEEP=1        keep the directories of failing tests
//	WAYMARK_E2E_AGENT_SERVICE=specs
//	                          what npm installs as the host SDK of the Synadia Agent Protocol, such as archives of its
//	                          packages, where the registry does not have it
//	WAYMARK_TRANSCRIPTS=dir   a directory of further transcripts for the round trip
//
// Real transcripts are read from shared/data next to the repository if they exist; a test without them says so. So do
// tests that need Node.js and npm. The plain run takes less than five minutes on two cores under the race detector.
//
// [check]: https://pkg.go.dev/github.com/waymarkio/waymark/internal/harness/transcriptcheck
package e2e
