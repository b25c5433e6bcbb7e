package eventlog

import "time"

// ShorterTrust is how long a replicated log must seem shorter than it was before that is believed: an isolated old leader answers so
// for nearly as long.
const ShorterTrust = 10 * time.Second

// Shorter judges the signs that a log ends before what was acknowledged, folded or read of it. The zero value has seen none.
type Shorter struct{ since time.Time }

// Seems notes a sign, of a log with so many copies. It returns for how long there were signs and nothing else, and whether they are
// to be believed: at once of a lone server, else after [ShorterTrust].
func (s *Shorter) Seems(copies int, now time.Time) (since time.Duration, believed bool) {
	if s.since.IsZero() {
		s.since = now
	}
	since = now.Sub(s.since)
	return since, copies <= 1 || since >= ShorterTrust
}

// Reaches notes that the log reaches as far as it did.
func (s *Shorter) Reaches() { s.since = time.Time{} }
