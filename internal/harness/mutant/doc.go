// Package mutant holds mistakes that a test puts into the product, to see that the other tests find them.
//
// # What it owns
//
//   - patches/NAME.patch: one mistake each, as "git diff" writes it, below three lines that say what it does, which promise it
//     breaks, and which test finds it.
//   - [Switch], [On] and the variable of the environment [Variable]: which mistake a process makes. At most one at a time.
//
// # What it promises
//
// The product's source has no trace of a mutant, and nothing of the product imports this package. Package overlay copies the
// files that the patches touch and puts all mutants into the copies, each behind its switch; "go build -overlay" compiles the
// copies in place of the files. A patch that no longer applies fails the tests of package overlay. CONTRIBUTING.md says how to add a
// mutant, and docs/decisions/0042-mutants-are-patches-and-failpoints-a-build-tag.md why they are made like this.
package mutant
