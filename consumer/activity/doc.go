// Package activity counts what agents did, from the events that a fold accepted.
//
// # What it owns
//
// [Counters] of one daemon, which all its fold workers share, and the table of [Descriptions] that says what each metric means. A [Watch]
// reads what events say into a [Batch]; [Counters.Add] counts it.
//
// # What it promises
//
// Names of agents, tiers and tools come from executors. A name that cannot be a label, and one more than [MaxAgents] pairs of agent and
// tier or [MaxTools] tools, counts as [Other]: executors cannot make the number of series grow without bound. All other labels are from closed lists.
// No label is made of a run, an executor, a message, an argument or a result.
//
// # What it must not know
//
// NATS, Prometheus, and how events are folded and stored.
//
// # On failure
//
// It cannot fail. Times that cannot be read are not observed.
package activity
