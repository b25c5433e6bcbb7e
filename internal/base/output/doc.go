// Package output prints tables, fields, JSON documents, progress, and text from outside, escaped so that a terminal
// does not obey it.
//
// # What it owns
//
// The width of a page, the columns that a table drops or cuts to fit, and the escapes. It knows no server, no command
// and no exit code.
package output
