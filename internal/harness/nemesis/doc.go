// Package nemesis breaks a fleet of real processes on purpose, records the operations of all processes during that,
// and gives that history to internal/harness/checker.
//
// # What it owns
//
// All of it is tests:
//
//   - A TCP link that can be cut, delayed, held one way or both, or cut in mid message.
//   - The test's own program in other roles, by its environment: a nats-server, alone or one of three, an executor
//     under load, which records every operation before it begins, or one that works on Loops with large results.
//   - The world of processes, the faults, the schedules, and the faults of disks. "make chaos" and "make soak" run them;
//     "make check" runs a short part.
//   - A daemon with its embedded server, for faults that need no proxy: a bucket deleted, a cleanup
//     killed half-way, a quota reached, an executor stopped, the stores of other versions.
//
// # What it promises
//
// A schedule depends on its seed alone: the faults, their victims, durations and order. When the faults hit the
// processes depends on the machine, so a seed that failed once may need several rounds to fail again. Before the next
// fault every replica has caught up, and every executor and daemon works again. Every failing round leaves its
// history, a readable timeline and the logs of all processes, and prints where.
//
// # Environment
//
//	WAYMARK_CHAOS_SEED=n      the seed of the first round; every round prints its own
//	WAYMARK_CHAOS_ROUNDS=n    rounds, each with the next seed; default 1
//	WAYMARK_CHAOS_SERVERS=n   1 or 3 servers; default both
//	WAYMARK_CHAOS_FAULTS=list only these faults, separated by commas
//	WAYMARK_CHAOS_DIR=dir     where failing rounds leave their records; default: the system's directory for temporary files
//	WAYMARK_TEST_BIN=dir      where waymark is built already
//	WAYMARK_CHAOS_CUTS=n      power cuts of a world, four times as many of aimed ones; default 1, 0 for none
//	WAYMARK_CHAOS_KEEP=1      leave them for successful rounds, too
//	WAYMARK_CHAOS_REPORT=file a line of JSON is appended for each fault, each round, and the Loops of a round
//	WAYMARK_CHAOS_AWAY=time   how long all servers are away, instead of ten minutes
//	WAYMARK_SOAK=duration     how long the soak takes; without it there is none
//	WAYMARK_SOAK_FAULTS=none  no faults in the soak; default: a mild one from time to time
//	WAYMARK_SOAK_PAUSE=n      milliseconds between two boundaries of a run in a soak; default 175
//	WAYMARK_SOAK_LEAK=kind    the proof that a soak finds it: executors leak a goroutine, or memory, for each run
//	WAYMARK_E2E_FULL=1        the whole schedules instead of a sample
//	WAYMARK_GOLDEN=write      make the golden store of the stored formats, with "make golden"
//
// # On failure
//
// Tests that need root (power cuts, a full disk) skip without it, with a reason. On systems without signals (Windows)
// only the proxy is tested.
package nemesis
