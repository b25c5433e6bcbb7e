// Package randomlog draws random logs of runs, for tests of what is made from a log: the fold, plans, pages. Each log depends on what it is drawn
// from alone, and rapid shrinks one that fails a test.
//
// It writes records, and has no server. Of an event that it makes itself and that is invalid it fails the test.
package randomlog
