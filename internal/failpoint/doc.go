// Package failpoint names the places where tests let a process die, wait or fail, and the mistakes that tests build in to
// see that they would be found.
//
// # What it owns
//
//   - [Point] and [Hit]: a place in the daemon's or the executor's work. A test gives the work a context with a [Hook] of its
//     own; a process of its own is told by the environment (WAYMARK_FAILPOINT=after-checkpoint-put:3:kill).
//   - [Bug] and [Seeded]: a mistake at the one place where it could be made. Each breaks a promise, and each is found by the
//     checker: internal/chaos proves it, and internal/nemesis what only a power cut can show.
//
// # What it promises
//
// In a binary that is built without the tag waymark_failpoints there is none of it: [Enabled] is the constant false, [Hit] and
// [Seeded] are empty and compiled away. A test sees to it that no release is built with the tag. See
// docs/decisions/0029-failpoints-are-compiled-in.md.
package failpoint
