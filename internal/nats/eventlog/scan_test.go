package eventlog_test

import (
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/harness/natstest"
	"github.com/waymarkio/waymark/internal/nats/eventlog"
	"github.com/waymarkio/waymark/schema"
)

func TestScan_End_ThenNewMessages(t *testing.T) {
	t.Parallel()
	js := natstest.Start(t).JetStream(t)
	names := schema.NamesOf("default", 0)
	_, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: names.EventStream(), Subjects: []string{names.EventSubjects()}, AllowDirect: true})
	require.NoError(t, err)
	publish := func(run, text string) {
		_, err := js.Publish(t.Context(), names.EventSubject(run), []byte(text))
		require.NoError(t, err)
	}
	read := func(from eventlog.FollowFrom) (texts []string, next eventlog.FollowFrom) {
		next, err := eventlog.Scan(t.Context(), js, names, from, func(a eventlog.Arrived) error {
			require.Equal(t, names.RunOfSubject(a.Subject) != "r2", string(a.Record.Body) != "two")
			texts = append(texts, string(a.Record.Body))
			return nil
		})
		require.NoError(t, err)
		return texts, next
	}
	texts, next := read(eventlog.FollowFrom{})
	require.Empty(t, texts, "an empty log has an end")
	publish("r1", "one")
	texts, next = read(next)
	require.Equal(t, []string{"one"}, texts)

	const many = 1200 // more than two answers
	for range many/2 - 1 {
		publish("r2", "two")
		publish("r1", "one")
	}
	publish("r2", "two")
	midway := time.Now()
	for _, tt := range []struct {
		name string
		from eventlog.FollowFrom
		want int
	}{
		{"all", eventlog.FollowFrom{}, many},
		{"after the first", next, many - 1},
		{"of a run", eventlog.FollowFrom{Run: "r2"}, many / 2},
		{"the last", eventlog.FollowFrom{Stream: many}, 1},
		{"behind the end", eventlog.FollowFrom{Stream: many + 1}, 0},
		{"of a run, behind the end", eventlog.FollowFrom{Stream: many + 1, Run: "r1"}, 0},
		{"of an unknown run", eventlog.FollowFrom{Run: "none"}, 0},
		{"of the time after", eventlog.FollowFrom{Since: midway}, 0},
		{"new", eventlog.FollowFrom{New: true}, 0},
	} {
		texts, next := read(tt.from)
		require.Len(t, texts, tt.want, tt.name)
		if tt.want == 0 && (tt.from.New || !tt.from.Since.IsZero()) {
			publish("r1", "new")
			texts, _ = read(next)
			require.Equal(t, "new", texts[len(texts)-1], tt.name)
		}
	}
}
