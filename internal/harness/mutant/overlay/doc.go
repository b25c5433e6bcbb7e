// Package overlay puts all mutants into copies of the product's source, for "go build -overlay".
//
// git applies each patch to the unchanged files. The copy of a function that mutants change has all bodies: those of
// the mutants first, each behind its switch, and then the product's own. So one binary has every mutant, and no patch
// depends on another. A mutant can change bodies of functions and methods, and can add declarations and files. Other
// changes cannot be switched while a process runs, and are refused.
package overlay
