// Package foldtest is a fleet for tests of the fold worker and of what reads its checkpoints: runs that a test writes as an executor would,
// workers that it starts, and what a worker's requests are seen or stopped by.
package foldtest
