package publisher

import (
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/waymarkio/waymark/schema"
)

// keyLackedFor is how long runs with a key are not claimed after a run was given back because this executor lacks that
// key.
const keyLackedFor = 10 * time.Minute

// takeovers are the runs that this process starts or takes over at the moment. Heartbeats name them as held, although
// their epoch may be unknown. The zero value is ready.
type takeovers struct {
	mu sync.Mutex
	// asked counts the starts and takeovers in progress by run.
	asked map[string]int
	// lacked are the keys for which runs were given back, with the time.
	lacked map[string]time.Time
}

// begin notes a start or takeover in progress, until done is called. alone: no other one of the run is in progress.
func (t *takeovers) begin(run string) (alone bool, done func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.asked == nil {
		t.asked = make(map[string]int)
	}
	t.asked[run]++
	return t.asked[run] == 1, func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		if t.asked[run]--; t.asked[run] == 0 {
			delete(t.asked, run)
		}
	}
}

// list adds the runs to those that a heartbeat names.
func (t *takeovers) list(to map[schema.HeldRun]struct{}) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for run := range t.asked {
		to[schema.HeldRun{Run: run}] = struct{}{}
	}
}

// lack notes keys that this executor does not have or cannot use.
func (t *takeovers) lack(keys []string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.lacked == nil {
		t.lacked = make(map[string]time.Time)
	}
	for _, key := range keys {
		if len(t.lacked) < schema.MaxWithoutKeys {
			t.lacked[key] = time.Now()
		}
	}
}

// withoutKeys are the keys that claims exclude: those lacked recently. Older ones are tried again, because the key may
// be there by now.
func (t *takeovers) withoutKeys() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	maps.DeleteFunc(t.lacked, func(_ string, at time.Time) bool { return time.Since(at) > keyLackedFor })
	return slices.Sorted(maps.Keys(t.lacked))
}
