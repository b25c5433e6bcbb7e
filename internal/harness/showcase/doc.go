// Package showcase fills a fleet with runs to look at, for tests of what people see: runs in the states in which a person meets them,
// runs whose every field is hostile text, and runs of any length.
//
// It publishes as an executor does, and moves the clock of its world, so that durations look as those of real agents. What goes wrong fails the test.
package showcase
