//go:build race

package e2e_test

// raceDetector: the program is built as this test is.
const raceDetector = true
