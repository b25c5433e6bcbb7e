// Package bench compares Waymark with raw JetStream, on the same server and at the same time.
//
// # What it owns
//
// A list of cases, each of which measures one thing; the world they are measured in (servers, a provisioned fleet,
// daemons, executors, the raw stream); the rounds, their medians and their spread; the line of JSON that
// a case leaves, and the report made of such lines. The command bench is its only user.
//
// # What it promises
//
//   - Raw and Waymark are measured in alternating rounds within one run of a case: raw, ours, raw, ours. A figure is
//     the median over the rounds, with its spread.
//   - All events are read back and compared with the executors' views: count, sequence and digest. A difference fails
//     the case.
//   - A figure that a case does not measure, or the system does not report, is absent, and never 0.
//   - Processes, connections and directories are gone when Run returns, however it ends.
//
// # A case
//
//	Case ── Variants(options) ──▶ Variant, Variant, …            one line of JSON each
//	Variant: open World ▶ Setup ▶ warm up ▶ Raw, Ours, Raw, Ours, … ▶ Verify ▶ Finish ▶ close
//
// A case is added by writing one and naming it in [Cases]. It says only what a round does; CPU, memory, bytes on the
// device, checkpoints and the bytes that JetStream counts are measured around its rounds.
//
// # A world
//
// The server runs in this process (embedded), in a process of its own, or as a cluster of three. Such processes, and
// those of daemons and executors, are this same binary started again; see [Child]. They end when their standard input does, so that
// none outlives the measurement.
package bench
