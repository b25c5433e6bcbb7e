// Package retention decides which runs of a fleet are kept and which are removed. It only decides: it reads nothing,
// removes nothing and knows no clock.
//
// One value, the [Plan], is what a dry run shows, what is executed, and what the report says afterwards, so that the three
// cannot differ. Whatever the policy, a plan never removes
//
//   - a run that has not ended, or that waits;
//   - one with a hand-off that is offered or not closed, or with a call that is open, in doubt or held;
//   - one with a pinned point;
//   - one to which something was added within the grace;
//   - one that a fork stands on, unless that fork is removed by the same plan, before it;
//   - one of which it is not known how it ended, or when.
//
// A run is kept or removed as a whole: its latest checkpoint is never taken from a run that is kept.
//
//	runs, policy, now ──New──▶ Plan ──Removals──▶ forks first, then what they stood on
package retention
