package waymarktest

import (
	"sync"
	"testing"

	"github.com/rs/zerolog"
)

// logger is the one given, or the log of the test for warnings and errors.
func logger(tb testing.TB, given *zerolog.Logger) zerolog.Logger {
	tb.Helper()
	if given != nil {
		return *given
	}
	w := &testLog{tb: tb}
	tb.Cleanup(w.end)
	return zerolog.New(w).Level(zerolog.WarnLevel)
}

// testLog drops lines after the end of the test: the testing package would panic.
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
