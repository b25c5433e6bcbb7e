// Package activity counts the work of agents, from accepted events.
//
// # What it owns
//
// [Counters] of one daemon, which all its fold workers share, and the table of [Descriptions] with the meaning of
// each metric. A [Watch] counts events into a [Batch]; [Counters.Add] adds it to the counters.
//
// # What it promises
//
// Names of agents, tiers and tools come from executors. Names that cannot be labels, and names beyond [MaxAgents]
// pairs of agent and tier or [MaxTools] tools, count as [Other]: executors cannot make the number of series grow
// without bound. All other labels come from closed lists. No label contains a run, an executor, a message, an
// argument or a result.
//
// # What it must not know
//
// NATS, and how events are folded and stored.
//
// # On failure
//
// It cannot fail. Unreadable times are not observed.
package activity
