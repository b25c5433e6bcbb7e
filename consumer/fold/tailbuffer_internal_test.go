package fold

import (
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
				require.Equal(t, f.want, f.frames)
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
				f.add(&rec, f.events == 0)
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
	f.add(&rec, true)
	require.False(t, f.kept())
	require.Zero(t, f.room.used.Load())
	small := schema.Record{Body: []byte("x")}
	f.add(&small, false)
	require.False(t, f.kept(), "of a tail whose beginning is not kept nothing is")
}

// With twice its size for each tail, many tails of 64 busy runs were read from the log
// again.
func TestTailBuffer_LongTail_TakesLittleMoreRoomThanItsFrames(t *testing.T) {
	t.Parallel()
	f := tailbuffer{room: &frameRoom{limit: 32 << 20}}
	rec := schema.Record{Body: make([]byte, 3<<10)}
	for i := range 200 {
		f.add(&rec, i == 0)
		if len(f.frames) > 64<<10 {
			require.LessOrEqual(t, int(f.room.used.Load()), len(f.frames)*14/10, "after %d records", i+1)
		}
	}
}
