// Package testbin gives the tests of a package the programs that they start, and tells them how much to run.
//
// # What it owns
//
// [Main] is the body of TestMain. The programs come from the folder in WAYMARK_TEST_BIN, where the Makefile builds them once for all
// packages; without it they are built into a temporary folder, which goes when the tests are over. WAYMARK_E2E_FULL asks for the whole of
// what is a sample otherwise.
//
// # On failure
//
// When a program does not build, no test runs, and the output of the build is printed.
package testbin
