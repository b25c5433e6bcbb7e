// Command tiers runs tests for the Makefile and keeps account of them.
//
//	tiers test [-record FILE] [-long] [-skip-long] [-ram] -- GO-TEST-ARGUMENTS
//	tiers left -dir DIR
//	tiers all -dir DIR
//
// "tiers test" runs go test, prints what go test prints, and records what became of each test. With -long it runs only the tests
// that -short leaves out, in whole or in part, with -skip-long all others. With -ram the tests' temporary files lie in memory, where the machine has room for them.
//
// "tiers left" prints what the records below DIR left out, each with the command that runs it. "tiers all" compares the records
// below DIR with all tests in the sources, whatever their module and build tag, and fails when one was in no record.
//
// A tier is "make test", "make check" or "make check-full"; docs/decisions/0041 has the reasons.
package main
