package schema_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/schema"
)

// benchmarkLog is an ordinary run's log, with its bytes.
func benchmarkLog(b *testing.B, turns int) (log []schema.Record, size int64) {
	b.Helper()
	ordinaryRun(b, turns, func(rec *schema.Record) {
		log = append(log, *rec)
		size += int64(rec.Size())
	})
	return log, size
}

// Each benchmark of the fold folds one event per operation.
func BenchmarkHeadApply(b *testing.B) {
	log, size := benchmarkLog(b, 300)
	b.SetBytes(size / int64(len(log)))
	b.ReportAllocs()
	var h schema.Head
	i := len(log)
	for b.Loop() {
		if i == len(log) {
			h, i = schema.NewHead("default", "run-01hq3v8j5k"), 0
		}
		if v := h.Apply(schema.NoKeys, &log[i]); v.Kind != schema.Applied {
			b.Fatal(v)
		}
		i++
	}
}

func BenchmarkStateApply(b *testing.B) {
	log, size := benchmarkLog(b, 300)
	b.SetBytes(size / int64(len(log)))
	b.ReportAllocs()
	var s *schema.State
	i := len(log)
	for b.Loop() {
		if i == len(log) {
			s, i = schema.NewState("default", "run-01hq3v8j5k"), 0
		}
		if v := s.Apply(schema.NoKeys, &log[i]); v.Kind != schema.Applied {
			b.Fatal(v)
		}
		i++
	}
}

func BenchmarkDecode(b *testing.B) {
	_, events := goldenEvents(b)
	e := events[schema.ToolCalled]
	header, body := e.Encode()
	structured, err := e.EncodeStructured()
	require.NoError(b, err)
	b.Run("binary", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := schema.Decode(header, body); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("structured", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := schema.Decode(nil, structured); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func BenchmarkEncode(b *testing.B) {
	_, events := goldenEvents(b)
	e := events[schema.ToolCalled]
	b.ReportAllocs()
	for b.Loop() {
		e.Encode()
	}
}

// BenchmarkWriterEvent makes, seals and encodes an event: the SDK's work before a publish.
func BenchmarkWriterEvent(b *testing.B) {
	w := schema.Writer{Fleet: "default", Run: "run-01hq3v8j5k", Executor: "builder-7f9c", Epoch: 1}
	d := &schema.ToolReturnedData{ToolCallID: "c1", Result: []byte(`"a result of a few bytes"`)}
	at := newTestRun(b).now()
	b.ReportAllocs()
	for b.Loop() {
		e, err := w.Event(d, 1, at, 0)
		if err != nil {
			b.Fatal(err)
		}
		e.Encode()
	}
}

func BenchmarkSegment(b *testing.B) {
	log, _ := benchmarkLog(b, 100)
	var frames []byte
	for i := range log {
		frames = schema.AppendFrame(frames, &log[i])
	}
	info := schema.SegmentInfo{Fleet: "default", Run: "run-01hq3v8j5k", Number: 1, Events: len(log)}
	stored, err := schema.EncodeSegment(info, nil, frames)
	require.NoError(b, err)
	b.Run("encode", func(b *testing.B) {
		b.SetBytes(int64(len(frames)))
		b.ReportAllocs()
		for b.Loop() {
			if _, err := schema.EncodeSegment(info, nil, frames); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("decode", func(b *testing.B) {
		b.SetBytes(int64(len(frames)))
		b.ReportAllocs()
		for b.Loop() {
			if _, _, err := schema.DecodeSegment(stored); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("frames", func(b *testing.B) {
		b.SetBytes(int64(len(frames)))
		b.ReportAllocs()
		for b.Loop() {
			if err := schema.ReadFrames(frames, func(schema.Record) bool { return true }); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func BenchmarkCheckpoint(b *testing.B) {
	log, _ := benchmarkLog(b, 100)
	h := schema.NewHead("default", "run-01hq3v8j5k")
	for i := range log {
		h.Apply(schema.NoKeys, &log[i])
	}
	stored, err := schema.EncodeCheckpoint(&schema.Checkpoint{Head: h})
	require.NoError(b, err)
	b.Run("encode", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := schema.EncodeCheckpoint(&schema.Checkpoint{Head: h}); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("decode", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := schema.DecodeCheckpoint(stored); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// BenchmarkValidate checks the data of one event of each type per operation.
func BenchmarkValidate(b *testing.B) {
	all := samples()
	b.ReportAllocs()
	for b.Loop() {
		for _, d := range all {
			if err := schema.Validate(d); err != nil {
				b.Fatal(err)
			}
		}
	}
}
