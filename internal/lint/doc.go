// Package lint holds the repository's rules as tests, those that golangci-lint cannot express or that
// must not depend on it. It has no code for others to use: the rules are in its test files, one test each,
// and a broken rule names the file, the line and the remedy.
//
// The rules:
//
//   - a Go file has at most 600 lines, unless it is generated or test data;
//   - every package has a doc.go with its package comment;
//   - tests wait on events, never with time.Sleep, and never skip without a reason;
//   - no file names a path of a developer's machine;
//   - a package imports what its row in the table of ARCHITECTURE.md allows, and each package has a row;
//   - every exported error sentinel has a comment, and one that is more than its name;
//   - paths, tests and make targets that the guides name exist;
//   - each room of the repository is within its budget of lines (with -v: the sizes);
//   - each event type has its data, its validation, and a case in the folds;
//   - a block of commands says above it which test runs it, or why none does;
//   - each line of docs/performance/*.csv names the date and the command that measured it;
//   - each link of a page leads to a file or a heading;
//   - no file has a phrase of the list in words_test.go;
//   - a line of a page has at most 120 characters, outside tables, code blocks and single links.
//
// Each rule is tried on a small example that breaks it, so that a rule that finds nothing is known to look.
package lint
