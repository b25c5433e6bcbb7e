// Package testbin builds the programs that the tests of a package start, and tells them how much to run.
//
// # What it owns
//
// [Main] is the body of TestMain. The programs come from the directory in WAYMARK_TEST_BIN, where the Makefile builds
// them once for all packages; without it they are built into a temporary directory, which is removed after the tests.
// WAYMARK_E2E_FULL requests the full tests instead of a sample.
//
// # On failure
//
// When a program does not build, no test runs, and the output of the build is printed.
package testbin
