// Package showcase fills a fleet with runs to look at, for tests of user interfaces: runs in the states in which a
// person sees them, runs whose every field is hostile text, and runs of any length.
//
// It publishes like an executor, and moves the clock of its world, so that durations look like those of real agents.
// An error fails the test.
package showcase
