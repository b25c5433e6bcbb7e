// Package base is what every command has: the world outside, the flags of the server and the fleet, and the connection.
//
// # What it owns
//
// [App], [Flags], [Client], sizes and numbers as flags, an embedded server for the time of one command, the log, and the versions. It
// knows no command.
package base
