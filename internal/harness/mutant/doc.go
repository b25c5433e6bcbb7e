// Package mutant has mistakes that a test puts into the product, to check that the other tests find them.
//
// # What it owns
//
//   - patches/NAME.patch: one mistake each, in the form of "git diff", below three lines with its effect, the broken promise,
//     and the test that finds it.
//   - [Switch], [On] and the environment variable [Variable]: the mistake that a process makes. At most one at a time.
//
// # What it promises
//
// The product's source has no trace of a mutant, and no product package imports this one. Package overlay copies the
// files of the patches and puts all mutants into the copies, each behind its switch; "go build -overlay" compiles the
// copies instead of the files. A patch that no longer applies fails the tests of package overlay. CONTRIBUTING.md
// explains how to add a mutant, and docs/decisions/0042-mutants-are-patches-and-failpoints-a-build-tag.md why they are made this way.
package mutant
