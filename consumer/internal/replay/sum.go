package replay

import (
	"crypto/sha256"

	"github.com/waymarkio/waymark/schema"
)

// Sum is the checksum of a record: equal records have equal sums.
type Sum [sha256.Size]byte

// SumOf returns the sum of a record, and the buffer, which the next call may use again.
func SumOf(buffer []byte, rec *schema.Record) (Sum, []byte) {
	buffer = schema.AppendFrame(buffer[:0], rec)
	return sha256.Sum256(buffer), buffer
}
