// Package chaos runs random schedules of a whole fleet in one process: an embedded server, daemons, executors with
// the SDK, an adversary that publishes forged events, and injected faults. Its tests need the build tag
// waymark_failpoints
// ("make chaos-inprocess").
//
// # A schedule
//
// A seed makes a plan: how many executors, runs and shards, whether silent executors' runs are orphaned, and steps. A
// step is a burst of concurrent operations (publish, take over, claim, leave, read), a publish of the adversary
// (duplicates, forks, forged takeovers, messages that are no events), or a fault: a daemon that dies, or is stopped
// for long, at one of the failpoints while another takes its shard; a clean stop; a restart of the server; the loss
// of the checkpoint bucket; a lost message or answer; a replica that answers with old data. The scheduler decides the
// order within a step: the same seed makes the same plan, and nearly always the same history.
//
// At the end all faults are healed, the fold workers catch up, and internal/harness/checker judges the history by the
// service's answers and the buckets' content. In some schedules the checkpoints are then deleted, and must come back
// unchanged.
//
// # Failing schedules
//
// They print the seed, the violations and the timeline. WAYMARK_SEED=n runs that schedule alone, WAYMARK_SCHEDULES=n
// runs n of them, from WAYMARK_SEED on if it is set.
//
// # Mutants
//
// Each mutant of internal/harness/mutant has a test that switches it on, runs schedules that can reveal its mistake,
// and requires that the checker finds it. It needs a binary built with the overlay of mutants ("make chaos-check").
package chaos
