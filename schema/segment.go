package schema

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/go-json-experiment/json"
	"github.com/klauspost/compress/zstd"
)

// SegmentFormat is the format version of stored segments.
const SegmentFormat = 3

// Sizes of segments.
const (
	// MaxSegment is the largest segment as stored, in bytes. A segment with a single event of the largest size may
	// exceed it by its description.
	MaxSegment = 512 << 10
	// MaxSegmentRaw bounds the frames of one segment before compression, and so the memory that a reader allocates
	// for a damaged or hostile segment.
	MaxSegmentRaw = 4 << 20
)

// SegmentInfo describes a sealed range of a run's events. It is the first line of a stored segment, so that segments
// alone are enough to rebuild a run.
type SegmentInfo struct {
	// Format is [SegmentFormat].
	Format int `json:"format"`
	// Fleet and Run the events are of.
	Fleet string `json:"fleet"`
	Run   string `json:"run"`
	// Number counts a run's segments from 1.
	Number int `json:"number"`
	// Events in the segment.
	Events int `json:"events"`
	// First and Last are the positions of the first and last event.
	First Position `json:"first"`
	Last  Position `json:"last"`
	// DigestBefore and DigestAfter are the run's digest before and after the range; "" before the first.
	DigestBefore string `json:"digest_before,omitzero"`
	DigestAfter  string `json:"digest_after,omitzero"`
	// RawBytes is the size of the frames before compression.
	RawBytes int `json:"raw_bytes"`
	// Keyframe is the size of the keyframe that ends the stored segment, in bytes; 0 for none. See [DecodeKeyframe].
	Keyframe int `json:"keyframe,omitzero"`
	// Sum is the SHA-256 (hex) of the whole stored segment with an empty Sum.
	Sum string `json:"sum"`
}

var segmentEncoders = sync.Pool{New: func() any {
	// One goroutine per coder; level "default" compresses text well and is fast enough for the log.
	enc, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithWindowSize(1<<20))
	if err != nil {
		return err
	}
	return enc
}}

// packedSegments are buffers for compressed frames.
var packedSegments = sync.Pool{New: func() any { return new([]byte) }}

var segmentDecoders = sync.Pool{New: func() any {
	dec, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(MaxSegmentRaw))
	if err != nil {
		return err
	}
	return dec
}}

// EncodeSegment returns the stored form of a segment: info as one line of JSON, a line feed, the frames compressed with
// zstd, and a keyframe: the run's head behind the segment's last event, nil for none. A keyframe that is too large is
// left out. It sets Format, RawBytes, Keyframe and Sum.
func EncodeSegment(info SegmentInfo, head *Head, frames []byte) ([]byte, error) {
	if len(frames) > MaxSegmentRaw {
		return nil, fmt.Errorf("segment %d of run %s: %d bytes of frames, at most %d", info.Number, info.Run, len(frames), MaxSegmentRaw)
	}
	enc, ok := segmentEncoders.Get().(*zstd.Encoder)
	if !ok {
		return nil, errors.New("zstd encoder cannot be made")
	}
	buf := packedSegments.Get().(*[]byte) //nolint:forcetypeassert,errcheck // nothing else is put in
	defer packedSegments.Put(buf)
	*buf = enc.EncodeAll(frames, (*buf)[:0])
	info.Format, info.RawBytes, info.Keyframe, info.Sum = SegmentFormat, len(frames), 0, ""
	var err error
	*buf, info.Keyframe, err = appendKeyframe(*buf, enc, head)
	packed := *buf
	segmentEncoders.Put(enc)
	if err != nil {
		return nil, fmt.Errorf("segment %d of run %s: keyframe: %w", info.Number, info.Run, err)
	}
	open, err := json.Marshal(info)
	if err != nil {
		return nil, fmt.Errorf("segment %d of run %s: %w", info.Number, info.Run, err)
	}
	open = open[:len(open)-len(sumEnd)]
	stored := make([]byte, 0, len(open)+2*sha256.Size+len(sumEnd)+1+len(packed))
	stored = append(stored, open...)
	stored = append(stored, segmentSum(open, packed)...)
	stored = append(stored, sumEnd+"\n"...)
	return append(stored, packed...), nil
}

// DecodeSegmentInfo reads only the description of a stored segment, and checks its sum.
func DecodeSegmentInfo(stored []byte) (SegmentInfo, error) {
	info, _, err := splitSegment(stored)
	return info, err
}

// DecodeSegment returns the description and the frames of a stored segment. Errors wrap [ErrCorrupt] or
// [ErrFormat].
func DecodeSegment(stored []byte) (SegmentInfo, []byte, error) {
	info, packed, err := splitSegment(stored)
	if err != nil {
		return info, nil, err
	}
	dec, ok := segmentDecoders.Get().(*zstd.Decoder)
	if !ok {
		return info, nil, errors.New("zstd decoder cannot be made")
	}
	frames, err := dec.DecodeAll(packed, make([]byte, 0, info.RawBytes))
	segmentDecoders.Put(dec)
	if err != nil || len(frames) != info.RawBytes {
		return info, nil, fmt.Errorf("segment %d of run %.64s: frames: %w", info.Number, info.Run, errors.Join(ErrCorrupt, err))
	}
	return info, frames, nil
}

// segmentSum is the sum of a segment whose description begins with open, up to the place of the sum.
func segmentSum(open, packed []byte) string {
	h := sha256.New()
	_, _ = h.Write(open)
	_, _ = h.Write([]byte(sumEnd + "\n"))
	_, _ = h.Write(packed)
	return hex.EncodeToString(h.Sum(nil))
}

func splitSegment(stored []byte) (info SegmentInfo, packed []byte, err error) {
	line, packed, ok := bytes.Cut(stored, []byte{'\n'})
	if !ok {
		return info, nil, fmt.Errorf("segment without description: %w", ErrCorrupt)
	}
	open, sum, ok := cutSum(line)
	if !ok || segmentSum(open, packed) != sum {
		return info, nil, fmt.Errorf("segment: sum differs: %w", ErrCorrupt)
	}
	if err := checkFormat(line, SegmentFormat); err != nil {
		return info, nil, fmt.Errorf("segment: %w", err)
	}
	if err := json.Unmarshal(line, &info); err != nil {
		return info, nil, fmt.Errorf("segment description: %w: %w", ErrCorrupt, err)
	}
	if info.RawBytes < 0 || info.RawBytes > MaxSegmentRaw {
		return info, nil, fmt.Errorf("segment %d of run %.64s: %d bytes of frames: %w", info.Number, info.Run, info.RawBytes, ErrCorrupt)
	}
	return info, packed, nil
}

// ReadFrames calls yield for each record in frames until it returns false.
func ReadFrames(frames []byte, yield func(Record) bool) error {
	r := NewFrameReader(frames)
	for {
		rec, err := r.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if !yield(rec) {
			return nil
		}
	}
}
