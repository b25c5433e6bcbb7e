// Package base is what every command has: the world outside, the flags of the server and the fleet, and the connection.
//
// # What it owns
//
// [App], [Flags], [Client], sizes and numbers as flags, the log, and the versions. It knows no command.
package base
