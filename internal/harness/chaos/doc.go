// Package chaos runs random schedules of a whole fleet in one process: an embedded server, daemons, executors with the SDK, an
// adversary who publishes what he likes, and a hand that breaks things. Its tests need the build tag waymark_failpoints
// ("make chaos-inprocess").
//
// # A schedule
//
// A seed makes a plan: how many executors, runs and shards, whether who is silent is orphaned, and steps. A step is a burst of
// operations side by side (publish, take over, claim, leave, read), something that the adversary publishes (duplicates, forks, forged takeovers, what is no event), or a fault: a
// daemon that dies, or is stopped for long, at one of the failpoints while another takes its shard; a clean stop; a
// restart of the server; the loss of the checkpoint bucket; a message or an answer that is lost; a replica that answers with
// what it had some time ago. What goes on within a step is up to the scheduler: the same seed makes the same plan, and
// nearly always the same history.
//
// In the end all is healed, the folders catch up, and internal/harness/checker judges the history by what the service answers and what
// the buckets hold. In some schedules the checkpoints are then thrown away, and must come back as they were.
//
// # Failing schedules
//
// They print the seed, the violations and the timeline. WAYMARK_SEED=n runs that schedule alone, WAYMARK_SCHEDULES=n so many of
// them, from WAYMARK_SEED on if it is given.
//
// # Mutants
//
// For each mutant of internal/harness/mutant there is a test that switches it on, runs schedules that are fit to show its mistake, and
// requires that the checker finds it. It needs a binary that is built with the overlay of mutants ("make chaos-check").
package chaos
