// Package events is the commands that read what a fleet's log and segments have: events, conform and otel.
//
// # What it owns
//
// Following the shards of a fleet, those added meanwhile included; a line for each event, in words that people read and as JSON; and what
// an event's keys and the fold say against it. [Cmd] and [ConformCmd] share the reading. It asks a daemon nothing that it prints, and knows
// no other command.
package events
