package kvstore

import "github.com/waymarkio/waymark/schema"

// LiveEntry is a run's entry of the live index, or what is known of it.
type LiveEntry struct {
	// Run that the key names.
	Run string
	// Live is nil when the entry was erased, or cannot be read.
	Live *schema.Live
	// Revision of the entry, or of its erasure.
	Revision schema.Revision
	// Err says why the entry cannot be read: it wraps [ErrCorrupt] or schema.ErrFormat.
	Err error
}
