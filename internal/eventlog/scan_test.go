package eventlog_test

import (
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/eventlog"
	"github.com/waymarkio/waymark/internal/harness/natstest"
	"github.com/waymarkio/waymark/schema"
)

func TestScanner_End_ThenNewMessages(t *testing.T) {
	t.Parallel()
	js := natstest.Start(t).JetStream(t)
	names := schema.NamesOf("default", 0)
	_, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: names.EventStream(), Subjects: []string{names.EventSubjects()}, AllowDirect: true})
	require.NoError(t, err)
	publish := func(run, text string) {
		_, err := js.Publish(t.Context(), names.EventSubject(run), []byte(text))
		require.NoError(t, err)
	}
	empty, err := eventlog.Scan(t.Context(), js, names, eventlog.FollowFrom{})
	require.NoError(t, err)
	defer empty.Close()
	_, there, err := empty.NextIfThere(t.Context())
	require.NoError(t, err)
	require.False(t, there, "an empty log has an end")

	const many = 1200 // more than two answers
	for range many / 2 {
		publish("r1", "one")
		publish("r2", "two")
	}
	midway := time.Now()
	read := func(from eventlog.FollowFrom) (texts []string) {
		s, err := eventlog.Scan(t.Context(), js, names, from)
		require.NoError(t, err)
		defer s.Close()
		for {
			a, there, err := s.NextIfThere(t.Context())
			require.NoError(t, err)
			if !there {
				return texts
			}
			require.Equal(t, names.RunOfSubject(a.Subject) == "r1", string(a.Record.Body) == "one")
			texts = append(texts, string(a.Record.Body))
		}
	}
	require.Len(t, read(eventlog.FollowFrom{}), many)
	require.Len(t, read(eventlog.FollowFrom{Run: "r2"}), many/2)
	require.Len(t, read(eventlog.FollowFrom{Stream: many}), 1)
	require.Empty(t, read(eventlog.FollowFrom{Stream: many + 1}), "nothing is behind the end")
	require.Empty(t, read(eventlog.FollowFrom{Stream: many + 1, Run: "r1"}))
	require.Empty(t, read(eventlog.FollowFrom{Run: "none"}))
	require.Empty(t, read(eventlog.FollowFrom{Since: midway}))

	s, err := eventlog.Scan(t.Context(), js, names, eventlog.FollowFrom{New: true})
	require.NoError(t, err)
	defer s.Close()
	publish("r1", "new")
	a, err := s.Next(t.Context())
	require.NoError(t, err)
	require.Equal(t, "new", string(a.Record.Body))
	require.Equal(t, schema.StreamSequence(many+1), a.Record.Stream)
}
