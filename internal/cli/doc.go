// Package cli is the command line of waymark: the grammar of all commands, and what runs the one that a command line names.
//
// # What it owns
//
// Flags, environment, exit codes, tables and messages; nothing below this package knows of them. cmd/waymark turns signals into a context
// and calls [Run], which parses, dispatches and prints; tests call Run in-process. Run never exits.
//
// # What it promises
//
// Standard output holds what was asked for and nothing else: tables for people, with --json one JSON
// document, or one a line where the output is a stream. Standard error holds progress, logs, and a failure as
// two lines:
//
//	waymark: what went wrong
//	hint: what to do next
//
// The exit code says what kind of failure it was; see [failure.Codes]. Ctrl-C ends every command in order, a
// second one at once. A reader that goes away (| head) ends a command without an error.
package cli
