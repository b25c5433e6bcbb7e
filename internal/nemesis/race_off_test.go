//go:build !race

package nemesis_test

// raceDetector: the program is built as this test is.
const raceDetector = false
