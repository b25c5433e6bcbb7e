// Package failure turns errors into messages for users: what went wrong, a hint with the next step, and an exit code.
//
// # What it owns
//
// The table of exit codes, and the messages for errors of the packages below the command line. It knows no command and
// no connection: a command with more context returns an [Error] of its own.
package failure
