// Command bench compares Waymark with raw JetStream, and reports the results.
//
//	bench [CASE ...]        measure, on temporary servers of its own
//	bench report FILE ...   print the medians of whole turns, of Waymark and of other systems
//
// "make bench-build" builds it into .bin/bench; docs/performance.md has the cases and the figures. It is a module of its own, which is not
// installed with Waymark. Exit codes: 0 done, 1 failure, 2 wrong flags, 6 wrong data or a damaged file, 130 interrupted.
package main
