// Package retention decides which runs of a fleet are kept and which are removed. It only decides: it reads nothing,
// removes nothing and knows no clock.
//
// A dry run, the execution and the report have the same items, so that they cannot differ. Whatever the policy, a plan
// never removes
//
//   - a run that has not ended, or that waits;
//   - a run with an offered or open hand-off, or with a call that is open, in doubt or held;
//   - a run with a pinned point;
//   - a run that got an event within the grace;
//   - the base of a fork that was not removed;
//   - a run whose end or end time is unknown.
//
// A run is kept or removed as a whole: a kept run keeps its latest checkpoint.
package retention
