package fleettest

import (
	"sync"
	"time"
)

// Noon is where the clocks of tests begin.
var Noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

// HandClock is a clock that only a test moves.
type HandClock struct {
	mu  sync.Mutex
	now time.Time
}

// NewHandClock returns a clock set to a time.
func NewHandClock(at time.Time) *HandClock { return &HandClock{now: at} }

// Now is its current setting.
func (c *HandClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

// Forward moves it.
func (c *HandClock) Forward(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}
