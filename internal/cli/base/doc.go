// Package base is the common part of all commands: streams, the flags of the server and the fleet, and the connection.
//
// # What it owns
//
// [App], [Flags], [Client], sizes and numbers as flags, an embedded server for the duration of one command, the log,
// and the versions. It knows no command.
package base
