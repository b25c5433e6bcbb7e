// Package events has the commands that read a fleet's log and segments: events and otel.
//
// # What it owns
//
// Following the shards of a fleet, including added ones; one line for each event, for people or as JSON; and whether
// keys and fold accept an event. It prints data from the log and the
// segments, not from the daemon, and knows no other command.
package events
