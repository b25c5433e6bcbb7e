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

// lackedKeys are the keys for which claimed runs were given back. The zero value is ready.
type lackedKeys struct {
	mu sync.Mutex
	at map[string]time.Time
}

// add notes keys that this executor does not have or cannot use.
func (l *lackedKeys) add(keys []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.at == nil {
		l.at = make(map[string]time.Time)
	}
	for _, key := range keys {
		if len(l.at) < schema.MaxWithoutKeys {
			l.at[key] = time.Now()
		}
	}
}

// recent are the keys that claims exclude: those lacked recently. Older ones are tried again, because the key may
// be there by now.
func (l *lackedKeys) recent() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	maps.DeleteFunc(l.at, func(_ string, at time.Time) bool { return time.Since(at) > keyLackedFor })
	return slices.Sorted(maps.Keys(l.at))
}
