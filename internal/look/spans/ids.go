package spans

import (
	"crypto/sha256"
	"strconv"

	"github.com/waymarkio/waymark/schema"
)

// TraceID is the trace of a run. It is the same on every machine, so that other runs can link to it.
func TraceID(fleet, run string) []byte {
	sum := hash("waymark.trace", fleet, run)
	return sum[:16]
}

// spanID is derived from the identity of the span's subject.
func spanID(fleet, run string, of ...string) []byte {
	sum := hash(append([]string{"waymark.span", fleet, run}, of...)...)
	return sum[:8]
}

// hash covers the parts with their lengths, so that different lists of parts never collide.
func hash(parts ...string) [sha256.Size]byte {
	var b []byte
	for _, part := range parts {
		b = strconv.AppendInt(b, int64(len(part)), 10)
		b = append(b, ':')
		b = append(b, part...)
	}
	sum := sha256.Sum256(b)
	sum[0] |= 1 // an id of zeros is invalid
	return sum
}

// epochSpan is the id of an epoch's span; that of epoch 1 is the trace's root.
func epochSpan(fleet, run string, epoch schema.Epoch) []byte {
	return spanID(fleet, run, "epoch", strconv.FormatUint(uint64(epoch), 10))
}

// callSpan is the id of a call's first span. Another run that the call started knows the key.
func callSpan(fleet, run string, key schema.CallKey) []byte {
	return spanID(fleet, run, "call", strconv.Itoa(int(key.Turn)), key.ToolCallID, strconv.Itoa(max(key.Occurrence, 1)))
}
