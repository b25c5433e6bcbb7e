// Package durable makes files and their names survive a crash of the machine.
//
// It owns [Replace] and [SyncDir]. The caller says what an error means to its user.
package durable
