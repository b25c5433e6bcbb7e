// Package httpguard distinguishes requests of this machine's own programs and pages from requests that a page of
// another origin makes through a browser.
//
// # What it owns
//
// [Refusal]: one rule for all of Waymark's HTTP addresses.
//
// # What it promises
//
// On a loopback address, a host name that a name server resolves is refused, which prevents DNS rebinding. A browser's
// request from another origin is refused, except for following a link.
//
// # On failure
//
// [Refusal] returns the reason as text for people. The package has no errors.
package httpguard
