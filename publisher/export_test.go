package publisher

import "time"

// SetWaitPoll sets how often waits look by themselves. Call it before the first.
func SetWaitPoll(f *Fleet, d time.Duration) { f.waitPoll = d }
