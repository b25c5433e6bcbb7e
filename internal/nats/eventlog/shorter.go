package eventlog

import "time"

// ShorterTrust is how long a replicated log must seem shorter than before that counts: an isolated old leader gives
// such answers for nearly as long.
const ShorterTrust = 10 * time.Second

// Shorter judges the signs that a log ends before its acknowledged, folded or read position. The zero value has seen
// none.
type Shorter struct{ since time.Time }

// Seems records a sign, for a log with a number of copies. It returns for how long there were only signs, and whether
// they count: at once for one copy, else after [ShorterTrust].
func (s *Shorter) Seems(copies int, now time.Time) (since time.Duration, believed bool) {
	if s.since.IsZero() {
		s.since = now
	}
	since = now.Sub(s.since)
	return since, copies <= 1 || since >= ShorterTrust
}

// Reaches records that the log reaches as far as before.
func (s *Shorter) Reaches() { s.since = time.Time{} }
