// Package ui is the command ui: the process around the pages of internal/look/inspector.
//
// It owns the address and the token that lets one browser in. Its flags decide what the pages may show and do. An error
// says what failed and what to do. If the NATS server stops while the command runs, it waits for the server.
package ui
