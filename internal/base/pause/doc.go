// Package pause waits for a time, and no longer than a context lasts.
//
// It owns [For], which leaves no timer running and returns why the wait ended, and [Backoff], the pause between tries.
package pause
