// Package soak judges whether what a system takes stays the same while it does the same work for a long time.
//
// # What it owns
//
//   - Log: figures over time, each of one thing (a process, a stream), which can be written as CSV.
//   - Rule: how far a figure may rise, in shares of what it was, in an amount that is no leak at any rate, and for each run
//     that was removed meanwhile, as a removed run leaves a mark for good.
//   - Log.Judge: which figures rose further.
//
// # What it promises
//
// A figure has risen when the median of the last third of the judged time is above that of the first third, and the robust slope
// (Theil-Sen: the median of the slopes between any two points), over the same time, is, too. One that rises once and stays, as a cache that was
// filled, has risen by the medians and not by the slope, and is no leak; a saw's teeth move neither. A figure that rises
// steadily by more than its rule allows from the middle of the first third to the middle of the last is always found.
//
// The package has no idea of processes or NATS: it is numbers in, verdicts out.
package soak
