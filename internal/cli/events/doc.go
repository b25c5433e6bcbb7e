// Package events has the command that reads events.
//
// # What it owns
//
// Following the shards of a fleet; one line for each event, for people or as JSON; and whether keys and fold accept an
// event. A run from its beginning comes from the daemon, all else from the log. It knows no other command.
package events
