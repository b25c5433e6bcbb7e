// Package pause waits for a time, and no longer than a context lasts.
//
// It owns [For], so that no timer is left running and each caller learns why the wait ended, and [Backoff], the pause between tries.
package pause
