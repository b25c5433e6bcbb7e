// Package output prints: tables, fields, JSON documents, progress, and text from outside so that a terminal does not obey it.
//
// # What it owns
//
// The width of a page, which columns a table drops or cuts for it, and the escapes. It knows no server, no command and no exit code.
package output
