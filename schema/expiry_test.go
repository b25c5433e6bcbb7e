package schema_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/schema"
)

// A wait lasts, from the server's time of the question, as long as the difference of the executor's two times.
func TestHead_Wait_ExpiresByTheServersClock(t *testing.T) {
	t.Parallel()
	stored := time.Date(2026, 3, 1, 12, 0, 0, 123456789, time.UTC)
	for name, test := range map[string]struct {
		asked, expires string
		stored         int64
		want           string
	}{
		"late executor":                  {"2026-03-01T11:00:00Z", "2026-03-01T11:30:00Z", stored.UnixNano(), "2026-03-01T12:30:00.123456789Z"},
		"early executor":                 {"2026-03-01T15:00:00+02:00", "2026-03-01T15:30:00+02:00", stored.UnixNano(), "2026-03-01T12:30:00.123456789Z"},
		"over before it was asked":       {"2026-03-01T11:00:00Z", "2026-03-01T10:59:00Z", stored.UnixNano(), "2026-03-01T11:59:00.123456789Z"},
		"never":                          {"2026-03-01T11:00:00Z", "", stored.UnixNano(), ""},
		"time of the question unknown":   {"", "2026-03-01T11:30:00Z", stored.UnixNano(), "2026-03-01T11:30:00Z"},
		"time of the server unknown":     {"2026-03-01T11:00:00Z", "2026-03-01T11:30:00Z", 0, "2026-03-01T11:30:00Z"},
		"as long as there are calendars": {"0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z", stored.UnixNano(), "2318-06-11T11:47:16.978232596Z"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := schema.Writer{Fleet: "f", Run: "run-1", Executor: "e", Epoch: 1}
			e, err := w.Event(&schema.RunWaitingData{InterruptID: "q", Reason: schema.WaitHumanInput, ExpiresAt: test.expires}, 0, stored, 0)
			require.NoError(t, err)
			e.Time = test.asked
			e.Seal()
			header, body := e.Encode()
			s := schema.NewState("f", "run-1")
			rec := schema.NewRecord(1, header, body)
			rec.Stored = test.stored
			require.Equal(t, schema.Applied, s.Apply(schema.NoKeys, &rec).Kind)
			require.Equal(t, test.want, s.Head.Interrupts[0].ExpiresAt)
			require.Equal(t, test.expires, s.Waits[0].ExpiresAt, "the content is the executor's own")
			require.Equal(t, test.want, schema.LiveOf(&s.Head).ExpiresAt)

			// It stays the same after sealing and reading.
			again, err := schema.NewFrameReader(schema.AppendFrame(nil, &rec)).Next()
			require.NoError(t, err)
			require.True(t, rec.Equal(&again))
			head := schema.NewHead("f", "run-1")
			head.Apply(schema.NoKeys, &again)
			require.Equal(t, s.Head, head)
		})
	}
}

// A question of a minute was open for ten seconds at the point. An hour later, in a fork and after a rewind, it has the
// fifty seconds that were left.
func TestHead_WaitInAForkOrAfterARewind_HasTheTimeThatWasLeft(t *testing.T) {
	t.Parallel()
	r := newTestRun(t)
	r.start()
	asked := r.now()
	mustApply(t, r.write(&schema.RunWaitingData{InterruptID: "q", Reason: schema.WaitHumanInput, ExpiresAt: schema.FormatTime(asked.Add(time.Minute))}, 0))
	mustApply(t, r.write(&schema.RunWaitingData{InterruptID: "never", Reason: schema.WaitHumanInput}, 0))
	at := r.head.Clone()
	for _, id := range []string{"q", "never"} {
		mustApply(t, r.event(r.makeControl(&schema.RunInputData{InterruptID: id, Payload: []byte(`"yes"`)}, 1)))
	}
	r.stream += 3600
	base := func() *schema.Base {
		to, err := schema.RewindTo(schema.Point{Kind: schema.PointRecord, Number: 3}, &at, nil)
		require.NoError(t, err)
		to.Time = schema.FormatTime(asked.Add(10 * time.Second))
		return to
	}
	now := r.now()
	mustApply(t, r.rewound(base()))
	fork := newTestRun(t)
	fork.stream = r.stream - 1
	fork.w.Run, fork.head, fork.state = "f1", schema.NewHead("f", "f1"), schema.NewState("f", "f1")
	mustApply(t, fork.write(&schema.RunStartedData{Agent: "coder", Executor: "ex-1", Base: base()}, 0))
	for name, h := range map[string]*schema.Head{"rewind": &r.head, "fork": &fork.head} {
		require.Equal(t, schema.StatusWaiting, h.Status, name)
		require.Equal(t, schema.FormatTime(now.Add(50*time.Second)), h.Interrupts[0].ExpiresAt, name)
		require.Empty(t, h.Interrupts[1].ExpiresAt, name)
	}
}
