// Package ui is the command ui: the process around the pages of internal/inspector.
//
// It owns the address, the browser that is opened and the way of the token to it: a file of this user's alone, never a command line. Its
// flags decide what the pages may show and do. On failure the command ends with what failed and what to do; a server that goes away
// meanwhile is waited for.
package ui
