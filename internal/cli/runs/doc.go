// Package runs is the commands of one run at a time: to look at it, to compare it with another one, and to decide what becomes of it.
//
// # What it owns
//
// Where a run stands in words ([Cmd], [TreeCmd]), the next steps that follow from there, points of a run (an event, a turn, a mark), and the
// requests of an operator: recover, settle, input, mark, cancel, release, fork, hand-offs. All is asked of the daemon, but for contents,
// which the SDK reads. An event is shown as package events shows it. It knows no fleet's files and no daemon's process.
package runs
