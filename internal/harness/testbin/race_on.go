//go:build race

package testbin

// raceDetector: the programs are built as their test is.
const raceDetector = true
