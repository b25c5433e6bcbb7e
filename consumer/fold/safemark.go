package fold

import (
	"time"

	"github.com/waymarkio/waymark/schema"
)

// safeMark is the position from which the fold begins after an unclean start of the server: a power cut can undo puts
// of checkpoints that are younger than two sync intervals. Each watermark has it, so whichever watermark the power cut
// leaves says what was on disk before it.
type safeMark struct {
	// after is how long a position waits before it is safe.
	after time.Duration
	// at is the safe position, and aging are later ones that wait to become it.
	at    schema.Position
	aging []aging
}

// aging is a stored position and its time.
type aging struct {
	position schema.Position
	at       time.Time
}

// begin takes over the safe position of the stored watermark.
func (x *safeMark) begin(safe, stored schema.Position, now time.Time) {
	x.at, x.aging = safe, nil
	x.note(stored, now)
}

// note remembers a stored position. A busy shard has one waiting position per tick: SafeAfter divided by
// ReconcileEvery, a few dozen.
func (x *safeMark) note(stored schema.Position, now time.Time) {
	if n := len(x.aging); n == 0 || x.aging[n-1].position != stored {
		x.aging = append(x.aging, aging{stored, now})
	}
}

// position is the safe position at a time.
func (x *safeMark) position(now time.Time) schema.Position {
	for len(x.aging) > 0 && now.Sub(x.aging[0].at) >= x.after {
		x.at, x.aging = x.aging[0].position, x.aging[1:]
	}
	return x.at
}
