// Package failure is what a user gets of an error: what went wrong, a hint with the next step, and an exit code.
//
// # What it owns
//
// The table of exit codes, and the words for the errors of the packages below the command line. It knows no command and no connection: a
// command that knows better returns an [Error] of its own.
package failure
