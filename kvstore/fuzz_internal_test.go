package kvstore

import (
	"encoding/base64"
	"errors"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/schema"
)

func keyOfBlob(name string) string { return base64.URLEncoding.EncodeToString([]byte(name)) }

// FuzzStored reads data that others may have put into the fleet's buckets: nothing panics, accepted data belongs to
// its key, and refused data gives a sentinel that callers know.
func FuzzStored(f *testing.F) {
	seed := func(kind uint8, key string, value any) {
		b, err := json.Marshal(value)
		require.NoError(f, err)
		f.Add(kind, key, b)
	}
	head := schema.NewHead("f", "r-1")
	head.Agent, head.Status, head.Position.Stream = "coder", schema.StatusCompleted, 7
	ended := schema.Ended{Format: schema.EndedFormat}
	ended.Run, ended.Agent, ended.Status, ended.Position = "r-1", "coder", schema.StatusCompleted, 7
	seed(0, "r-1", schema.Live{Format: schema.LiveFormat, Run: "r-1"})
	seed(1, schema.EndedKey(&head), ended)
	seed(2, "f", schema.FleetSettings{Format: schema.SettingsFormat, Fleet: "f", Shards: 4})
	seed(4, "", leaseValue{Format: LeaseFormat})
	seed(5, "", Watermark{Format: WatermarkFormat, Incarnation: "i", Position: schema.Position{Stream: 1, ID: "x"}})
	seed(7, "", Spent{Format: SpentFormat, Incarnation: "i", Position: schema.Position{Stream: 1, ID: "x"}, Day: "2026-01-31"})
	seed(6, "", BackupRecord{Format: BackupFormat})
	seed(3, keyOfBlob("r-1.x"), jetstream.ObjectInfo{ObjectMeta: jetstream.ObjectMeta{Name: "r-1.x"}, Bucket: schema.BlobBucket("f"), NUID: schema.BlobID("r-1", "x"), Size: 1})
	seed(3, keyOfBlob("r-1.x"), jetstream.ObjectInfo{ObjectMeta: jetstream.ObjectMeta{Name: "r-1.x"}, Bucket: schema.BlobBucket("f"), NUID: schema.BlobID("r-2", "x"), Deleted: true})
	for kind := range uint8(8) {
		f.Add(kind, "r-1", []byte(`{"format":1,"run":"r-2","fleet":"g","shards":-1}`))
		f.Add(kind, "_.ended.a.completed.r", []byte(`null`))
	}
	known := func(t *testing.T, err error) {
		t.Helper()
		if err != nil {
			require.Condition(t, func() bool { return errors.Is(err, ErrCorrupt) || errors.Is(err, schema.ErrFormat) }, "%v", err)
		}
	}
	f.Fuzz(func(t *testing.T, kind uint8, key string, value []byte) {
		switch kind % 8 {
		case 0:
			e := liveEntry(key, entry{value: value})
			known(t, e.Err)
			if e.Err == nil {
				require.Equal(t, key, e.Live.Run)
			}
		case 1:
			if e, ok := endedOf(entry{key: key, value: value}); ok {
				require.True(t, schema.ValidName(e.Run))
				require.True(t, e.Status.Terminal())
			}
		case 2:
			s, err := decodeSettings(key, value)
			known(t, err)
			if err == nil {
				require.Equal(t, key, s.Fleet)
				require.Positive(t, s.Shards)
				require.LessOrEqual(t, s.Shards, MaxShards)
			}
		case 4:
			_, err := decodeLease(value)
			known(t, err)
		case 5:
			w, err := decodeWatermark(value)
			known(t, err)
			if err == nil {
				require.NotEmpty(t, w.Incarnation)
			}
		case 7:
			s, err := decodeSpent(value)
			known(t, err)
			if err == nil {
				require.NotEmpty(t, s.Incarnation)
			}
		case 3:
			name, err := base64.URLEncoding.DecodeString(key)
			if err != nil {
				return
			}
			b := Blob{Name: string(name), key: key}
			b.judge("f", "r-1", value)
			require.GreaterOrEqual(t, b.Bytes, int64(0))
			if b.False {
				require.Empty(t, b.NUID, "what it says takes no content out")
				require.False(t, b.Deleted)
				return
			}
			require.True(t, schema.ValidName(b.NUID), "it is no pattern")
			require.False(t, schema.ForeignBlobID("r-1", b.NUID))
			require.Equal(t, keyOfBlob(b.Name), key)
		case 6:
			_, err := decodeFormat[BackupRecord](value, BackupFormat)
			known(t, err)
		}
	})
}
