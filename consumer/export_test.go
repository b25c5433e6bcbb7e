package consumer

import (
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

// Feed puts entries into a roster that no watch feeds: the tests decide what a replica knows and when.
func (r *Roster) Feed(entries ...schema.Live) {
	for i := range entries {
		l := entries[i]
		shard := schema.ShardOf(l.Run, len(r.stores))
		r.mu.RLock()
		next := schema.Revision(1)
		if old := r.find(l.Run); old != nil {
			next = old.revision + 1
		}
		r.mu.RUnlock()
		r.apply(shard, &kvstore.LiveEntry{Run: l.Run, Live: &l, Revision: next})
	}
}
