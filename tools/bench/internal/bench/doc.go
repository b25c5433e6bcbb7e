// Package bench compares Waymark with raw JetStream, on the same server and at the same time.
//
//   - Raw and Waymark are measured in alternating rounds within one run of a case: raw, ours, raw, ours. A figure is
//     the median over the rounds, with its spread.
//   - All events are read back and compared with the executors' views: count, sequence and digest. A difference fails
//     the case.
//   - A figure that a case does not measure, or the system does not report, is absent, and never 0.
//   - Processes, connections and directories are gone when Run returns, however it ends.
//
// A case leaves a line of JSON for each variant:
//
//	Case ── Variants(options) ──▶ Variant, Variant, …            one line of JSON each
//	Variant: open World ▶ Setup ▶ warm up ▶ Raw, Ours, Raw, Ours, … ▶ Verify ▶ close
//
// A case is added by writing one and naming it in [Cases]. It says only what a round does; processor time and the bytes that
// JetStream counts are measured around its rounds. What its figures are to reach is in goals.
//
// A server runs in this process (embedded), in a process of its own, or as a cluster of three. Such processes, and
// those of daemons and executors, are this same binary started again; see [Child]. They end when their standard input does, so that
// none outlives the measurement.
package bench
