// Package demo is the command demo: it kills working agents from outside, and proves that nothing was lost or done twice.
//
// # What it owns
//
// A stage of processes of this program in a temporary directory: a daemon, executors ([ExecutorCmd]) and the harmless programs that their
// tools run ([ProgramCmd]), the scenes in which they are killed, and the comparison of the runs with a history kept outside Waymark. It
// plays its own transcripts. With --ui there is no script: executors ([WorkerCmd]) work on runs, the pages of internal/inspector are served,
// and a viewer kills executors. It imports no other command: it starts the daemon as a process.
package demo
