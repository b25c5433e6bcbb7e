// Package foldtest is a fleet for tests of the fold worker and of readers of its checkpoints: runs that a test writes
// like an executor, workers that it starts, and taps that observe or stop a worker's requests.
package foldtest
