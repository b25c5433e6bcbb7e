// Package soak judges whether the resource usage of a system stays the same while it does the same work for a long
// time.
//
// # What it owns
//
//   - Rule: how far a figure may rise, in shares of its value, in an amount that is never a leak, and for each run
//     removed during that time, because a removed run permanently leaves a tombstone.
//   - Log.Judge: which figures rose further.
//   - Log.Judge: which figures rose further.
//
// # What it promises
//
// A figure has risen if the median of the last third of the judged time is above that of the first third, and the
// robust slope (Theil-Sen: the median of the slopes between any two points), over the same time, is, too. A figure
// that rises once and stays, like a filled cache, has risen by the medians and not by the slope, and is no leak; a
// sawtooth changes neither. A figure that rises steadily by more than its rule allows from the middle of the first
// third to the middle of the last is always found.
//
// The package does not know processes or NATS: it is numbers in, verdicts out.
package soak
