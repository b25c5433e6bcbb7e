package schema_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/waymarkio/waymark/schema"
)

func drawRecord(t *rapid.T) schema.Record {
	rec := schema.Record{
		Stream: schema.StreamSequence(rapid.Uint64().Draw(t, "stream")),
		Header: map[string][]string{},
		Body:   rapid.SliceOfN(rapid.Byte(), 0, 40).Draw(t, "body"),
	}
	for range rapid.IntRange(0, 4).Draw(t, "lines") {
		name := rapid.String().Draw(t, "name")
		rec.Header[name] = append(rec.Header[name], rapid.String().Draw(t, "value"))
	}
	return rec
}

func TestStored_Frames_RoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var frames []byte
		records := make([]schema.Record, rapid.IntRange(0, 5).Draw(t, "records"))
		for i := range records {
			records[i] = drawRecord(t)
			frames = schema.AppendFrame(frames, &records[i])
		}
		info, stored := schema.SegmentInfo{Fleet: "f", Run: "r1", Number: 3, Events: len(records)}, []byte(nil)
		stored, err := schema.EncodeSegment(info, nil, frames)
		require.NoError(t, err)
		back, unpacked, err := schema.DecodeSegment(stored)
		require.NoError(t, err)
		require.Equal(t, len(frames), back.RawBytes)
		require.Equal(t, "r1", back.Run)
		onlyInfo, err := schema.DecodeSegmentInfo(stored)
		require.NoError(t, err)
		require.Equal(t, back, onlyInfo)
		i := 0
		require.NoError(t, schema.ReadFrames(unpacked, func(r schema.Record) bool {
			require.True(t, records[i].Equal(&r), "record %d", i)
			i++
			return true
		}))
		require.Equal(t, len(records), i)
	})
}

// anySegment is a segment of a few events.
func anySegment(tb testing.TB) []byte {
	tb.Helper()
	var frames []byte
	names, events := goldenEvents(tb)
	for i, name := range names[:8] {
		header, body := events[name].Encode()
		rec := schema.NewRecord(schema.StreamSequence(i+1), header, body) //nolint:gosec // a small count
		frames = schema.AppendFrame(frames, &rec)
	}
	stored, err := schema.EncodeSegment(schema.SegmentInfo{Fleet: "f", Run: "r1", Number: 1, Events: 8}, nil, frames)
	require.NoError(tb, err)
	return stored
}

// keyedSegment is anySegment with a keyframe.
func keyedSegment(tb testing.TB) []byte {
	tb.Helper()
	_, frames, err := schema.DecodeSegment(anySegment(tb))
	require.NoError(tb, err)
	head := schema.NewHead("f", "r1")
	require.NoError(tb, schema.ReadFrames(frames, func(rec schema.Record) bool {
		head.Apply(schema.NoKeys, &rec)
		return true
	}))
	stored, err := schema.EncodeSegment(schema.SegmentInfo{Fleet: "f", Run: "r1", Number: 1, Events: 8, DigestAfter: head.Digest}, &head, frames)
	require.NoError(tb, err)
	return stored
}

func TestKeyframe_OfASegment_IsTheHeadBehindIt(t *testing.T) {
	stored := keyedSegment(t)
	info, frames, err := schema.DecodeSegment(stored)
	require.NoError(t, err, "frames are read as if there were no keyframe")
	_, plain, err := schema.DecodeSegment(anySegment(t))
	require.NoError(t, err)
	require.Equal(t, plain, frames)
	want := schema.NewHead("f", "r1")
	require.NoError(t, schema.ReadFrames(frames, func(rec schema.Record) bool {
		want.Apply(schema.NoKeys, &rec)
		return true
	}))
	keyed, head, err := schema.DecodeKeyframe(stored)
	require.NoError(t, err)
	require.Equal(t, info, keyed)
	require.Equal(t, mustJSON(t, want), mustJSON(t, head))
	require.Positive(t, info.Keyframe)
	_, head, err = schema.DecodeKeyframe(anySegment(t))
	require.NoError(t, err)
	require.Nil(t, head)
}

// A head that is too large, or of another place, is no keyframe.
func TestKeyframe_TooLargeOrOfAnotherPlace_IsNone(t *testing.T) {
	head := schema.NewHead("f", "r1")
	for i := range schema.MaxOpenCalls {
		sum := sha256.Sum256([]byte{byte(i), byte(i >> 8)})
		head.OpenCalls = append(head.OpenCalls, schema.OpenCall{CallKey: schema.CallKey{ToolCallID: hex.EncodeToString(sum[:])}})
	}
	stored, err := schema.EncodeSegment(schema.SegmentInfo{Fleet: "f", Run: "r1", Number: 1}, &head, nil)
	require.NoError(t, err)
	info, got, err := schema.DecodeKeyframe(stored)
	require.NoError(t, err)
	require.Nil(t, got)
	require.Zero(t, info.Keyframe)
	other := schema.NewHead("f", "r2")
	stored, err = schema.EncodeSegment(schema.SegmentInfo{Fleet: "f", Run: "r1", Number: 1}, &other, nil)
	require.NoError(t, err)
	_, _, err = schema.DecodeKeyframe(stored)
	require.ErrorIs(t, err, schema.ErrCorrupt)
}

func anyCheckpoint(tb testing.TB) []byte {
	tb.Helper()
	h := schema.NewHead("f", "r1")
	h.Labels = map[string]string{"a": "b"}
	b, err := schema.EncodeCheckpoint(&schema.Checkpoint{Head: h, Incarnation: "2026", TailBytes: 3})
	require.NoError(tb, err)
	return b
}

func TestStored_FlippedBit_Detected(t *testing.T) {
	for name, stored := range map[string][]byte{"segment": anySegment(t), "segment with a keyframe": keyedSegment(t), "checkpoint": anyCheckpoint(t)} {
		for i := range stored {
			for bit := range 8 {
				bad := bytes.Clone(stored)
				bad[i] ^= 1 << bit
				var err error
				if name != "checkpoint" {
					_, _, err = schema.DecodeSegment(bad)
				} else {
					_, err = schema.DecodeCheckpoint(bad)
				}
				if err == nil {
					t.Fatalf("%s: bit %d of byte %d flipped without an error", name, bit, i)
				}
				require.ErrorIs(t, err, schema.ErrCorrupt)
			}
		}
	}
}

func TestStored_Truncation_Detected(t *testing.T) {
	segment, checkpoint := anySegment(t), anyCheckpoint(t)
	for i := range segment {
		_, _, err := schema.DecodeSegment(segment[:i])
		require.ErrorIs(t, err, schema.ErrCorrupt)
	}
	for i := range checkpoint {
		_, err := schema.DecodeCheckpoint(checkpoint[:i])
		require.ErrorIs(t, err, schema.ErrCorrupt)
	}
	rec := schema.Record{Stream: 300, Stored: 1_700_000_000_000_000_000, Behind: 290, Header: map[string][]string{"a": {"b"}}, Body: []byte("body")}
	frame := schema.AppendFrame(nil, &rec)
	for i := 1; i < len(frame); i++ {
		_, err := schema.NewFrameReader(frame[:i]).Next()
		require.ErrorIs(t, err, schema.ErrCorrupt)
	}
	_, err := schema.NewFrameReader(nil).Next()
	require.ErrorIs(t, err, io.EOF)
}

func TestStored_FalseCounts_AllocatesLittle(t *testing.T) {
	for _, frame := range []string{
		"\x01\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
		"\x01\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\x00\x00",
		"\x01\x00\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
		"\x01\x00\x00\x80\x80\x80\x80\x10" + strings.Repeat("\x00", 100),
		"\x01\x00\x00\x00\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
	} {
		_, err := schema.NewFrameReader([]byte(frame)).Next()
		require.ErrorIs(t, err, schema.ErrCorrupt)
	}
}

func TestStored_DecompressionBomb_Refused(t *testing.T) {
	pack := func(raw []byte, opts ...zstd.EOption) string {
		enc, err := zstd.NewWriter(nil, append(opts, zstd.WithEncoderConcurrency(1))...)
		require.NoError(t, err)
		defer func() { require.NoError(t, enc.Close()) }()
		return string(enc.EncodeAll(raw, nil))
	}
	bomb := pack(make([]byte, 64<<20))
	require.Less(t, len(bomb), 64<<10)
	var streamed bytes.Buffer // without a content size, and with a window larger than a segment may be
	enc, err := zstd.NewWriter(&streamed, zstd.WithWindowSize(64<<20), zstd.WithEncoderConcurrency(1))
	require.NoError(t, err)
	for range 64 {
		_, err = enc.Write(make([]byte, 1<<20))
		require.NoError(t, err)
	}
	require.NoError(t, enc.Close())
	for name, packed := range map[string]string{"sized": bomb, "streamed": streamed.String(), "twice": bomb + bomb, "not zstd": "x"} {
		for _, raw := range []int{0, 10, schema.MaxSegmentRaw} {
			t.Run(fmt.Sprintf("%s, said to be %d bytes", name, raw), func(t *testing.T) {
				stored := sealedSegment(fmt.Sprintf(`{"format":3,"run":"r1","raw_bytes":%d`, raw), packed)
				_, frames, err := schema.DecodeSegment(stored)
				require.ErrorIs(t, err, schema.ErrCorrupt)
				require.Nil(t, frames)
			})
		}
	}
	small := pack([]byte("frames"))
	for _, raw := range []int{-1, 0, 5, 7, schema.MaxSegmentRaw + 1, 1 << 60} {
		_, _, err := schema.DecodeSegment(sealedSegment(fmt.Sprintf(`{"format":3,"raw_bytes":%d`, raw), small))
		require.ErrorIs(t, err, schema.ErrCorrupt)
	}
	_, frames, err := schema.DecodeSegment(sealedSegment(`{"format":3,"raw_bytes":6`, small))
	require.NoError(t, err)
	require.Equal(t, "frames", string(frames))
	_, err = schema.EncodeSegment(schema.SegmentInfo{}, nil, make([]byte, schema.MaxSegmentRaw+1))
	require.ErrorContains(t, err, "at most")
}

func TestStored_FutureFormat_Named(t *testing.T) {
	_, _, err := schema.DecodeSegment(sealedSegment(`{"format":4`, "x"))
	require.ErrorIs(t, err, schema.ErrFormat)
	_, err = schema.DecodeCheckpoint(sealedCheckpoint(`{"format":99,"run":"r1"`))
	require.ErrorIs(t, err, schema.ErrFormat)
}

func TestStored_UnknownMembers_Accepted(t *testing.T) {
	c, err := schema.DecodeCheckpoint(sealedCheckpoint(`{"format":1,"run":"r1","status":"running","later":true`))
	require.NoError(t, err)
	require.Equal(t, "r1", c.Run)
}

func TestStored_NATSHeaders_LeftOut(t *testing.T) {
	header := map[string][]string{"Nats-Msg-Id": {"x"}, "nats-expected-stream": {"y"}, "ce-id": {"1"}, "Natsu": {"z"}}
	rec := schema.NewRecord(1, header, nil)
	require.Equal(t, map[string][]string{"ce-id": {"1"}, "Natsu": {"z"}}, rec.Header)
	require.Len(t, header, 4, "the message's own headers stay")
	require.Equal(t, len("ce-id")+1+len("Natsu")+1, rec.Size())
}
