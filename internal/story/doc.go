// Package story tells what a run did: its turns and calls with how long each took, takeovers, waits and errors.
//
// # What it owns
//
// [Story], which collects the lines of a run from its events, [Told], which sums them up, and the texts of the parts: tokens, limits,
// compactions, artifacts. The command runs show and the page of a run both show it. [Window] tells a part of a run, from a page of its records:
// windows one behind the other add up to the story.
//
// # What it promises
//
// Times are those that executors wrote. What the fold refuses is not told. Encrypted fields are named by their key.
//
// # On failure
//
// It reads nothing by itself and has no errors.
package story
