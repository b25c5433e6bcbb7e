package publisher

import (
	"slices"
	"sync"
)

// MaxKeptBlobs bounds the large fields that a [Fleet] keeps in memory, in bytes: those that it stored or loaded. Each
// request to a model needs all of the conversation.
const MaxKeptBlobs = 64 << 20

// blobCache keeps blobs by their names, up to most bytes. A name is the hash of its content, so no entry is ever
// outdated. The zero value keeps nothing.
type blobCache struct {
	most int64

	mu    sync.Mutex
	size  int64
	blobs map[string][]byte
}

// get returns a copy; nil for a blob that is not kept.
func (c *blobCache) get(name string) []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.blobs[name])
}

// add keeps a copy. Random entries make room for it: each turn reads its conversation in the same order, so the oldest
// entry is the one that the next turn needs first.
func (c *blobCache) add(name string, content []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	size := int64(len(content))
	if size > c.most || c.blobs[name] != nil {
		return
	}
	for other := range c.blobs {
		if c.size+size <= c.most {
			break
		}
		c.size -= int64(len(c.blobs[other]))
		delete(c.blobs, other)
	}
	c.size += size
	c.blobs[name] = slices.Clone(content)
}
