// Command structure measures the house: code by package, imports, exported names, methods, what the binary links.
//
//	go run ./tools/structure [-files PACKAGE] [-walks] [-types N] [-binary] [-against REVISION]
//
// # What it counts
//
// Lines of Go and, as code, lines with something else than blanks and comments. Production code is what the commands in cmd and the
// public packages are made of, for all platforms and build tags. Counted apart are testdata, tools, tests, the rest of
// internal/harness, generated files (by their header), docs, and internal packages that no command and no public package imports,
// directly or not.
//
// Imports are those of production packages. An arrow goes from a package to one that it imports. A package without arrows is on floor 1,
// another one above the highest that it imports. An arrow upwards goes to a package in the same or a later row of the table in
// ARCHITECTURE.md, the page of the revision that is measured.
//
// With -files, an arrow goes from a file to another of the package that declares something it uses: a name of the package, a method or
// a field. Files often use each other, so they have no floors by themselves: the order with few arrows upwards that is found by taking
// the file with the fewest open arrows first, then moving single files while that saves one. Floors are those of the arrows downwards.
// Only the files for this platform are read.
//
// With -walks, the functions of docs/walks.md, each followed by those that it calls there: a stay begins where the reader comes into
// another file, also on the way back to the caller; a return is a stay in a file that had one. A revision without the page has none.
//
// The syntax is enough for all but -files, which needs the types of one package. go list has the export data of its imports and
// go/types reads them, so that nothing but the standard library is needed.
package main
