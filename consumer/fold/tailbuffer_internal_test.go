package fold

import (
	"bytes"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/waymarkio/waymark/schema"
)

// It adds, hands over and drops frames in any order.
func TestTailBuffer_ManyTails_WholeAndBounded(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		room := &frameRoom{limit: rapid.Int64Range(0, 96<<10).Draw(t, "limit")}
		type tail struct {
			tailbuffer
			events int
			want   []byte
		}
		tails := make([]tail, 3)
		for i := range tails {
			tails[i].room = room
		}
		var handed []tail
		check := func(f *tail) {
			if f.kept() {
				require.Equal(t, f.want, bytes.Join(f.parts, nil))
			}
		}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			f := &tails[rapid.IntRange(0, len(tails)-1).Draw(t, "tail")]
			switch rapid.IntRange(0, 9).Draw(t, "step") {
			case 0:
				if f.events > 0 {
					handed = append(handed, tail{tailbuffer: f.hand(), want: f.want})
					f.events, f.want = 0, nil
				}
			case 1:
				if len(handed) > 0 {
					check(&handed[0])
					handed[0].drop()
					handed = handed[1:]
				}
			case 2:
				f.drop()
			default:
				rec := schema.Record{
					Stream: schema.StreamSequence(rapid.Uint64().Draw(t, "stream")),
					Header: map[string][]string{"ce-id": {"a", ""}, "b": nil},
					Body:   make([]byte, rapid.IntRange(0, 20<<10).Draw(t, "size")),
				}
				f.add(&rec, rec.Size(), f.events == 0)
				f.events++
				f.want = schema.AppendFrame(f.want, &rec)
			}
			check(f)
			require.LessOrEqual(t, room.used.Load(), room.limit)
		}
		for i := range tails {
			tails[i].drop()
		}
		for i := range handed {
			check(&handed[i])
			handed[i].drop()
		}
		require.Zero(t, room.used.Load())
	})
}

func TestTailBuffer_TooLargeTail_NotKept(t *testing.T) {
	t.Parallel()
	f := tailbuffer{room: &frameRoom{limit: 8 << 20}}
	rec := schema.Record{Body: make([]byte, 9<<20)}
	f.add(&rec, rec.Size(), true)
	require.False(t, f.kept())
	require.Zero(t, f.room.used.Load())
	small := schema.Record{Body: []byte("x")}
	f.add(&small, small.Size(), false)
	require.False(t, f.kept(), "of a tail whose beginning is not kept nothing is")
}

// A slice that doubled took twice the room, and tails of 64 busy runs were read from the log again. One that grew by a
// quarter was copied four times.
func TestTailBuffer_LongTail_TakesLittleMoreThanItsFrames(t *testing.T) {
	f := tailbuffer{room: &frameRoom{limit: 32 << 20}}
	rec := schema.Record{Header: map[string][]string{"ce-id": {"a"}}, Body: make([]byte, 3<<10)}
	kept := 200 * len(schema.AppendFrame(nil, &rec))
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for i := range 200 {
		f.add(&rec, rec.Size(), i == 0)
	}
	runtime.ReadMemStats(&after)
	require.True(t, f.kept())
	require.LessOrEqual(t, int(f.room.used.Load()), kept*14/10)
	require.Less(t, int(after.TotalAlloc-before.TotalAlloc), 2*kept, "bytes allocated") //nolint:gosec // a size in memory
}
