package output

import (
	"io"
	"sync"
	"time"

	"github.com/schollz/progressbar/v3"
)

// Progress is a bar on standard error, on a terminal only. It is safe for concurrent use.
type Progress struct {
	mu    sync.Mutex
	bar   *progressbar.ProgressBar
	limit int64
	at    float64
}

// NewProgress shows a bar of so many units, bytes or things, on w if it is a terminal.
func NewProgress(w io.Writer, what string, limit int64, bytes bool) *Progress {
	if !IsTerminal(w) {
		return new(Progress)
	}
	return newBar(w, what, limit, bytes)
}

func newBar(w io.Writer, what string, limit int64, bytes bool) *Progress {
	return &Progress{limit: limit, bar: progressbar.NewOptions64(limit,
		progressbar.OptionSetWriter(w),
		progressbar.OptionSetDescription(what),
		progressbar.OptionShowBytes(bytes),
		progressbar.OptionShowCount(),
		progressbar.OptionSetWidth(30),
		progressbar.OptionThrottle(100*time.Millisecond),
		progressbar.OptionClearOnFinish(),
		progressbar.OptionSetRenderBlankState(true),
	)}
}

// Add moves the bar. Estimates may exceed the total: the bar then stays near its end.
func (p *Progress) Add(n float64) {
	if p.bar == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.at = min(p.at+n, float64(p.limit)-1) // it is full only when closed
	_ = p.bar.Set64(int64(max(p.at, 0)))   // failing to draw the bar does not fail the work
}

// Close removes the bar.
func (p *Progress) Close() {
	if p.bar == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	_ = p.bar.Finish() // as above
}
