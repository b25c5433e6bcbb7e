// Package retention decides which runs of a fleet are kept and which are removed. It only decides: it reads nothing,
// removes nothing and knows no clock.
//
// One value, the [Plan], is the output of a dry run, the input of the execution, and the content of the report, so
// that the three cannot differ. Whatever the policy, a plan never removes
//
//   - a run that has not ended, or that waits;
//   - a run with an offered or open hand-off, or with a call that is open, in doubt or held;
//   - a run with a pinned point;
//   - a run that got an event within the grace;
//   - the base of a fork, unless the same plan removes that fork before it;
//   - a run whose end or end time is unknown.
//
// A run is kept or removed as a whole: a kept run keeps its latest checkpoint.
//
//	runs, policy, now ──New──▶ Plan ──Items──▶ forks first, then their bases
package retention
