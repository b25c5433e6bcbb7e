// Package httpguard tells requests of this machine's own programs and pages from those that a page of another origin makes through a
// browser.
//
// # What it owns
//
// [Refusal]: one rule for all addresses that Waymark listens on with HTTP.
//
// # What it promises
//
// On a loopback address a name that a name server decides is refused, so that DNS rebinding reaches nothing. A browser's request from
// another origin is refused, but for following a link.
//
// # On failure
//
// [Refusal] says why in words for people. It has no errors.
package httpguard
