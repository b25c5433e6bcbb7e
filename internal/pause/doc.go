// Package pause waits for a time, and no longer than a context lasts.
//
// It owns [For] alone, so that no timer is left running and each caller learns why the wait ended.
package pause
