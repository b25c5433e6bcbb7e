//go:build waymark_failpoints

package consumer

import (
	"context"
	"errors"
	"sync"

	"github.com/waymarkio/waymark/kvstore"
)

// countedFirst are segments that are counted and not stored yet, by run: failpoint.SegmentCountedFirst.
var countedFirst struct {
	sync.Mutex
	of map[*run]map[int][]byte
}

func storedLater(r *run, number int, stored []byte) {
	countedFirst.Lock()
	defer countedFirst.Unlock()
	if countedFirst.of == nil {
		countedFirst.of = make(map[*run]map[int][]byte)
	}
	if countedFirst.of[r] == nil {
		countedFirst.of[r] = make(map[int][]byte)
	}
	countedFirst.of[r][number] = stored
}

// storeLate stores what the runs' checkpoints count.
func (s *reignState) storeLate(ctx context.Context, runs []*run) error {
	for _, r := range runs {
		countedFirst.Lock()
		late := countedFirst.of[r]
		delete(countedFirst.of, r)
		countedFirst.Unlock()
		for number, stored := range late {
			if err := s.shard.Segments.Create(ctx, r.id, number, stored); err != nil && !errors.Is(err, kvstore.ErrExists) {
				return err
			}
		}
	}
	return nil
}
