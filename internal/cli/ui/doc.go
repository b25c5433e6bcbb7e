// Package ui is the command ui: the process around the pages of internal/inspector.
//
// It owns the address, the start of the browser and the way in which the browser gets the token: in a file that only this user can read, never
// on a command line. Its flags decide what the pages may show and do. An error says what failed and what to do. If the NATS server stops
// meanwhile, the command waits for it.
package ui
