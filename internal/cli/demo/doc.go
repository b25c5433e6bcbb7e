// Package demo is the command demo: agents at work that are killed from outside, and the proof that nothing was lost or done twice.
//
// # What it owns
//
// A stage of processes of this program in a temporary directory: a daemon, executors ([ExecutorCmd]) and the harmless programs that their
// tools run ([ProgramCmd]), the scenes in which they are killed, and the comparison of the runs with a history that was kept outside. It
// plays transcripts of its own. With --ui there is no script: executors ([WorkerCmd]) work on runs, the pages of internal/inspector are
// served, and a viewer kills executors. It knows no other command: what it needs of a daemon it starts as a process.
package demo
