// Package layers reads the table of imports from ARCHITECTURE.md, for internal/lint, which enforces it, and for tools/structure, which
// measures against it.
//
// The rows go from the ground up. Each has the packages it is about, what they own, and what they may import: other packages of
// the table by the end of their path that is theirs alone ("eventlog", "mutant/gen"), or "all", which is each package in a row
// above. A package may import no package of the same row or of a row below.
package layers
