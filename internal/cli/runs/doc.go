// Package runs has the commands about one run: to look at it, to compare it with another one, and to change its course.
//
// # What it owns
//
// The description of a run's state ([Cmd]), the next steps that follow from it, points of a run (an event, a
// turn, a mark), and an operator's requests: recover, settle, input, mark, cancel, release, fork, hand-offs. The daemon
// answers all requests, except for contents, which the SDK reads. Events are shown as in package events. It knows no
// files of a fleet and no daemon process.
package runs
