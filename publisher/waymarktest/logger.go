package waymarktest

import (
	"bytes"
	"slices"
	"sync"
	"testing"

	"github.com/rs/zerolog"
)

// logger writes warnings and errors to the test's log.
func logger(tb testing.TB) zerolog.Logger {
	tb.Helper()
	w := &testLog{tb: tb}
	tb.Cleanup(w.end)
	return zerolog.New(w).Level(zerolog.WarnLevel)
}

// testLog drops lines after the end of the test, because the testing package would panic.
type testLog struct {
	mu    sync.Mutex
	tb    testing.TB
	ended bool
}

func (l *testLog) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.ended {
		l.tb.Logf("%s", line)
	}
	return len(line), nil
}

func (l *testLog) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ended = true
}

// trialLog keeps the log messages of a trial's executors, which appear only in a report: it is expected that they were
// killed.
type trialLog struct {
	mu    sync.Mutex
	lines []string
}

func (l *trialLog) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, string(bytes.TrimSpace(line)))
	return len(line), nil
}

// logger writes warnings and errors in words.
func (l *trialLog) logger() zerolog.Logger {
	return zerolog.New(zerolog.ConsoleWriter{Out: l, NoColor: true, PartsExclude: []string{zerolog.TimestampFieldName}}).Level(zerolog.WarnLevel)
}

// said returns the messages so far.
func (l *trialLog) said() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.lines)
}
