// Package overlay puts all mutants into copies of the product's source, for "go build -overlay".
//
// Each patch is applied by git to the files as they are. Of every function that a mutant changes, the copy holds all bodies:
// those of the mutants first, each behind its switch, and then the product's own. So one binary holds every mutant, and no patch
// knows of another. A mutant can change bodies of functions and methods, and can add declarations and files. What else it
// changes cannot be switched while a process runs, and is refused.
package overlay
