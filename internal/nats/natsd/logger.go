package natsd

import (
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/rs/zerolog"
)

// serverLog forwards the server's log lines to zerolog. The text is a field, because it may contain text of a client
// (its name, a subject): encoded, it cannot forge a line. Traces, which contain payloads, are never forwarded.
type serverLog struct {
	logger zerolog.Logger

	mu    sync.Mutex
	fatal string // first fatal line: the server logs those and continues, we do not
	full  string // first line that says that the disk is full

	out chan struct{} // closed with full
}

// outOfSpace are the systems' texts for a full disk. The server's own code looks for the first of them, and its
// errors reach us only as text.
var outOfSpace = []string{"no space left", "not enough space on the disk", "disk quota exceeded"}

func (l *serverLog) text(format string, v []any) string {
	return strings.TrimSpace(fmt.Sprintf(format, v...))
}

// Noticef leaves notices out.
func (l *serverLog) Noticef(string, ...any) {}

// Warnf logs a warning.
func (l *serverLog) Warnf(format string, v ...any) {
	if strings.HasPrefix(format, "Plaintext passwords detected") {
		// It is about passwords in a configuration file. Ours is 256 random bits, in memory and in a file that only
		// its owner may read; hashing it would slow every connection and hide nothing.
		return
	}
	l.logger.Warn().Str("detail", l.text(format, v)).Msg("nats server warning")
}

// Errorf logs an error.
func (l *serverLog) Errorf(format string, v ...any) {
	text := l.text(format, v)
	l.logger.Error().Str("detail", text).Msg("nats server error")
	if saysFull(text) {
		l.noteFull(text)
	}
}

// saysFull reports whether a text says that a disk is full.
func saysFull(text string) bool {
	return slices.ContainsFunc(outOfSpace, func(words string) bool { return strings.Contains(text, words) })
}

// noteFull keeps the first line.
func (l *serverLog) noteFull(text string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.full == "" {
		l.full = text
		close(l.out)
	}
}

func (l *serverLog) fullText() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.full
}

// Fatalf keeps the first line for Start to report. It does not end the process.
func (l *serverLog) Fatalf(format string, v ...any) {
	text := l.text(format, v)
	l.mu.Lock()
	if l.fatal == "" {
		l.fatal = text
	}
	l.mu.Unlock()
	l.logger.Error().Str("detail", text).Msg("nats server fatal error")
}

// Debugf is never called: debugging is off.
func (l *serverLog) Debugf(string, ...any) {}

// Tracef is never called: tracing is off.
func (l *serverLog) Tracef(string, ...any) {}

func (l *serverLog) fatalText() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.fatal
}
