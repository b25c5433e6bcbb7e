// Package failpoint names the places where tests make a process die, wait or fail.
//
// # What it owns
//
//   - [Point] and [Hit]: a place in the daemon's or the executor's work. A test gives the work a context with its own [Hook];
//     a separate process reads the environment (WAYMARK_FAILPOINT=after-checkpoint-put:3:kill).
//
// # What it promises
//
// A binary built without the tag waymark_failpoints has no failpoints: [Enabled] is the constant false, and [Hit] is
// empty and compiled away. A test checks that no release is built with the tag. The pure fold has no failpoints. See
// docs/decisions/0042-mutants-are-patches-and-failpoints-a-build-tag.md.
package failpoint
