package cli

// What a person sees with the stock NATS tools. This file imports nothing of Waymark: names of buckets, keys, subjects and members are
// written as docs/observability.md has them.

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/schema"
)

// toolsLimit is how long a tool waits for what must come.
const toolsLimit = time.Minute

// personsCheckpoint is what a person looks for in a checkpoint.
type personsCheckpoint struct {
	Run      string `json:"run"`
	Status   string `json:"status"`
	Position struct {
		Stream uint64 `json:"stream_sequence"`
	} `json:"position"`
	Counts struct {
		Events int `json:"events"`
	} `json:"counts"`
	LastError struct {
		Type, Message string
	} `json:"last_error"`
	Interrupts []struct {
		ID      string `json:"interrupt_id"`
		Message string `json:"message"`
	} `json:"interrupts"`
	OpenCalls []struct{ Name, State string } `json:"open_calls"`
	Overview  struct {
		Tenant    string `json:"tenant"`
		ModelTier string `json:"model_tier"`
		Turn      struct {
			Turn   int    `json:"turn"`
			Status string `json:"status"`
			Input  string `json:"input"`
			Answer string `json:"answer"`
		} `json:"turn"`
		Recovery struct {
			Next         string   `json:"next"`
			Instructions []string `json:"instructions"`
		} `json:"recovery"`
	} `json:"overview"`
}

// checkpointBuckets are what "nats kv ls --names" lists of a fleet's checkpoints.
func checkpointBuckets(t *testing.T, js jetstream.JetStream) []jetstream.KeyValue {
	t.Helper()
	var buckets []jetstream.KeyValue
	for name := range js.KeyValueStoreNames(t.Context()).Name() {
		if bucket := strings.TrimPrefix(name, "KV_"); strings.HasPrefix(bucket, "WAYMARK_CHECKPOINTS_default_") {
			kv, err := js.KeyValue(t.Context(), bucket)
			require.NoError(t, err)
			buckets = append(buckets, kv)
		}
	}
	return buckets
}

// keysIn is "nats kv ls BUCKET FILTER" in each of the buckets.
func keysIn(t *testing.T, buckets []jetstream.KeyValue, filter string) (keys []string) {
	t.Helper()
	for _, kv := range buckets {
		lister, err := kv.ListKeysFiltered(t.Context(), filter)
		require.NoError(t, err)
		keys = slices.AppendSeq(keys, func(yield func(string) bool) {
			for key := range lister.Keys() {
				if !yield(key) {
					return
				}
			}
		})
	}
	slices.Sort(keys)
	return keys
}

// getRaw is "nats kv get BUCKET RUN --raw" in the bucket that has the run.
func getRaw(t *testing.T, buckets []jetstream.KeyValue, run string) ([]byte, jetstream.KeyValue) {
	t.Helper()
	for _, kv := range buckets {
		entry, err := kv.Get(t.Context(), run)
		if errors.Is(err, jetstream.ErrKeyNotFound) {
			continue
		}
		require.NoError(t, err)
		return entry.Value(), kv
	}
	return nil, nil
}

func read(t *testing.T, value []byte) (c personsCheckpoint) {
	t.Helper()
	require.NoError(t, json.Unmarshal(value, &c), "%s", value)
	return c
}

func TestStockTools_CheckpointOfAWaitingRun_TellsAPersonWhatIsGoingOn(t *testing.T) {
	t.Parallel()
	nc, _ := startServe(t)
	js, err := jetstream.New(nc)
	require.NoError(t, err)
	work := waitingRun(t, nc, "roof")
	work.toQuestion()
	require.NoError(t, work.run.Error(t.Context(), schema.Error{Type: "rain", Message: "it rains in"}, "")) // the answer forgot the earlier one

	buckets := checkpointBuckets(t, js)
	require.NotEmpty(t, buckets)
	var c personsCheckpoint
	var value []byte
	var bucket jetstream.KeyValue
	require.Eventually(t, func() bool {
		if value, bucket = getRaw(t, buckets, "roof"); value == nil {
			return false
		}
		c = read(t, value)
		return c.Status == "waiting" && c.LastError.Type == "rain"
	}, toolsLimit, 10*time.Millisecond)
	require.Less(t, len(value), 4<<10, "%s", value)
	require.True(t, strings.HasPrefix(string(value), `{"format":1,"overview":{`), "a person finds it at the beginning: %.80s", value)
	require.Equal(t, "roof", c.Run)
	require.Positive(t, c.Position.Stream)
	require.Positive(t, c.Counts.Events)
	require.Equal(t, "acme", c.Overview.Tenant)
	require.Equal(t, "large", c.Overview.ModelTier)
	require.Equal(t, 2, c.Overview.Turn.Turn)
	require.Equal(t, "answered", c.Overview.Turn.Status)
	require.Equal(t, "go on", c.Overview.Turn.Input)
	require.Equal(t, "I pay the carpenter", c.Overview.Turn.Answer[:19])
	require.True(t, strings.HasSuffix(c.Overview.Turn.Answer, "…"), "a text that is cut says so")
	require.Equal(t, "pay", c.OpenCalls[0].Name)
	require.Equal(t, "requested", c.OpenCalls[0].State)
	require.Equal(t, "rain", c.LastError.Type)
	require.Equal(t, "it rains in", c.LastError.Message)
	require.Equal(t, "May I?", c.Interrupts[0].Message)
	require.Equal(t, "wait", c.Overview.Recovery.Next)
	require.Equal(t, []string{
		"nothing until a wait of the run ends; no executor is needed until then",
		"turn 2 continues where its record ends",
		"waits for q1 (human_input): waymark input roof",
		"call c1 (pay) of turn 2: make, it has not begun",
	}, c.Overview.Recovery.Instructions)

	require.Equal(t, []string{"roof"}, keysIn(t, buckets, "*"), "the filter that the page names leaves runs")
	require.Greater(t, len(keysIn(t, buckets, ">")), 1, "the daemon's own keys are there, too")

	watcher, err := bucket.Watch(t.Context(), "roof", jetstream.UpdatesOnly())
	require.NoError(t, err)
	work.toEnd()
	for ended := false; !ended; {
		select {
		case entry := <-watcher.Updates():
			ended = read(t, entry.Value()).Status == "completed"
		case <-time.After(toolsLimit):
			require.FailNow(t, "the end is not seen by a watch")
		}
	}
	require.NoError(t, watcher.Stop())
	value, _ = getRaw(t, buckets, "roof")
	require.Equal(t, "ended", read(t, value).Overview.Recovery.Next)
}

func TestStockTools_SubscriberToTurns_SeesTheLifeOfEachTurn(t *testing.T) {
	t.Parallel()
	nc, _ := startServe(t)
	seen := make(chan *nats.Msg, 64)
	for _, name := range []string{"created", "updated", "finalized"} {
		_, err := nc.ChanSubscribe("waymark.observed.default.turn."+name+".*", seen)
		require.NoError(t, err)
	}
	require.NoError(t, nc.Flush())
	work := waitingRun(t, nc, "roof")
	work.toQuestion()
	work.toEnd()

	type change struct {
		Type, Status, Event   string
		Turn, Changes         int
		Recorded, Open, Ended int
	}
	want := []change{
		{"created", "open", "turn.started", 1, 1, 0, 0, 0},
		{"updated", "answered", "turn.answered", 1, 2, 1, 1, 0},
		{"updated", "answered", "error.raised", 1, 3, 1, 1, 0},
		{"finalized", "completed", "tool.returned", 1, 4, 1, 0, 1},
		{"created", "open", "turn.started", 2, 1, 0, 0, 0},
		{"updated", "answered", "turn.answered", 2, 2, 1, 1, 0},
		{"updated", "answered", "tool.called", 2, 3, 1, 1, 0},
		{"finalized", "completed", "tool.returned", 2, 4, 1, 0, 1},
	}
	ids := map[string]bool{}
	for _, expected := range want {
		select {
		case m := <-seen:
			var d struct {
				Run, Status, Event string
				Turn, Changes      int
				Calls              struct{ Recorded, Open, Returned int }
			}
			require.NoError(t, json.Unmarshal(m.Data, &d), "%s", m.Data)
			require.Equal(t, "roof", d.Run)
			require.Equal(t, "waymark.observed.default.turn."+expected.Type+".roof", m.Subject)
			require.Equal(t, []string{"io.waymark.turn." + expected.Type + ".v1"}, m.Header["ce-type"])
			require.Equal(t, []string{"roof"}, m.Header["ce-subject"])
			require.Equal(t, expected, change{expected.Type, d.Status, d.Event, d.Turn, d.Changes, d.Calls.Recorded, d.Calls.Open, d.Calls.Returned})
			ids[m.Header["ce-id"][0]] = true
		case <-time.After(toolsLimit):
			require.FailNow(t, "a notice is missing", "%+v", expected)
		}
	}
	require.Len(t, ids, len(want))
}
