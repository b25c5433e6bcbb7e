// Package cli is the command line of waymark: the grammar of all commands, and the dispatch to the one that a command
// line names.
//
// # What it owns
//
// Flags, environment, exit codes, tables and messages; no package below this one knows of them. cmd/waymark turns
// signals into a context and calls [Run], which parses, dispatches and prints; tests call Run in-process. Run never
// exits.
//
// # What it promises
//
// Standard output has only the requested result: tables for people; with --json one JSON document, or one per line if
// the output is a stream. Standard error has progress, logs, and a failure as two lines:
//
//	waymark: what went wrong
//	hint: what to do next
//
// The exit code is the kind of failure; see [failure.Codes]. Ctrl-C ends every command cleanly; a second one ends it at
// once. When the reader of the output exits (| head), the command ends without an error.
package cli
