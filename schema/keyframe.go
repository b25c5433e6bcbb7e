package schema

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/go-json-experiment/json"
	"github.com/klauspost/compress/zstd"
)

// MaxKeyframe bounds the stored keyframe of a segment, in bytes. A segment with a larger head has no keyframe: the fold then starts from an
// earlier one.
const MaxKeyframe = 16 << 10

// A keyframe follows the frames in a skippable frame of zstd (RFC 8878, 3.1.2): its magic number, its size, and the head as compressed JSON.
// Decoders of the frames skip it.
const (
	skippableMagic  = 0x184D2A50
	skippableHeader = 8
)

// appendKeyframe appends the keyframe of a head to the compressed frames of a segment, and returns its size; 0 if it was left out.
func appendKeyframe(b []byte, enc *zstd.Encoder, head *Head) ([]byte, int, error) {
	if head == nil {
		return b, 0, nil
	}
	text, err := json.Marshal(head, json.Deterministic(true))
	if err != nil {
		return b, 0, err
	}
	begin := len(b)
	b = binary.LittleEndian.AppendUint32(b, skippableMagic)
	b = binary.LittleEndian.AppendUint32(b, 0)
	b = enc.EncodeAll(text, b)
	size := len(b) - begin - skippableHeader
	if size > MaxKeyframe || len(b) > MaxSegment-MaxKeyframe {
		return b[:begin], 0, nil // the description of the segment must have room, too
	}
	binary.LittleEndian.PutUint32(b[begin+4:], uint32(size)) //nolint:gosec // at most MaxKeyframe
	return b, size, nil
}

// DecodeKeyframe returns the description of a stored segment and the run's head after its last event, from which the fold can continue without
// the earlier events. The head is nil for a segment without a keyframe. Errors wrap [ErrCorrupt] or [ErrFormat].
func DecodeKeyframe(stored []byte) (SegmentInfo, *Head, error) {
	info, packed, err := splitSegment(stored)
	if err != nil || info.Keyframe == 0 {
		return info, nil, err
	}
	bad := func(why error) (SegmentInfo, *Head, error) {
		return info, nil, fmt.Errorf("segment %d of run %.64s: keyframe: %w", info.Number, info.Run, errors.Join(ErrCorrupt, why))
	}
	at := len(packed) - info.Keyframe - skippableHeader
	if info.Keyframe < 0 || info.Keyframe > MaxKeyframe || at < 0 ||
		binary.LittleEndian.Uint32(packed[at:]) != skippableMagic || binary.LittleEndian.Uint32(packed[at+4:]) != uint32(info.Keyframe) { //nolint:gosec // within bounds
		return bad(nil)
	}
	dec, err := segmentDecoder()
	if err != nil {
		return info, nil, err
	}
	text, err := dec.DecodeAll(packed[at+skippableHeader:], nil)
	if err != nil {
		return bad(err)
	}
	head := new(Head)
	if err := json.Unmarshal(text, head); err != nil {
		return bad(err)
	}
	if head.Run != info.Run || head.Digest != info.DigestAfter {
		return bad(fmt.Errorf("it is of run %.64s at digest %.16s…, the segment ends at %.16s…", head.Run, head.Digest, info.DigestAfter))
	}
	return info, head, nil
}
