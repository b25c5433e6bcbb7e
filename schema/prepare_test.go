package schema_test

import (
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/waymarkio/waymark/schema"
)

// TestFold_PreparedAnyOrder_Same prepares a log from its end, on many goroutines.
func TestFold_PreparedAnyOrder_Same(t *testing.T) {
	var log []schema.Record
	ordinaryRun(t, 20, func(rec *schema.Record) { log = append(log, *rec) })
	log = append(log, log[3], schema.Record{Stream: 1 << 20, Body: []byte("no event")})
	prepared := make([]schema.Prepared, len(log))
	var group errgroup.Group
	for i := len(log) - 1; i >= 0; i-- {
		group.Go(func() error {
			prepared[i] = schema.Prepare(schema.NoKeys, &log[i])
			return nil
		})
	}
	require.NoError(t, group.Wait())
	ahead, at := schema.NewHead("default", "run-01hq3v8j5k"), schema.NewHead("default", "run-01hq3v8j5k")
	for i := range log {
		require.Equal(t, schema.PositionOf(&log[i]), prepared[i].Position())
		require.Equal(t, at.Apply(schema.NoKeys, &log[i]), ahead.ApplyPrepared(&prepared[i]))
		require.Equal(t, at, ahead)
	}
	require.Positive(t, at.Counts.DeadLetters)
}

func TestPrepareSealed_AnyEvent_SameAsItsRecord(t *testing.T) {
	for name, change := range map[string]func(*schema.Event){
		"as sealed":               func(*schema.Event) {},
		"a year of five digits":   func(e *schema.Event) { e.Time = "12026-01-02T03:04:05Z" },
		"no time":                 func(e *schema.Event) { e.Time = "" },
		"a turn below zero":       func(e *schema.Event) { e.Turn = -1 },
		"no epoch":                func(e *schema.Event) { e.Epoch = 0 },
		"an epoch out of range":   func(e *schema.Event) { e.Epoch = math.MaxUint32 },
		"a later epoch":           func(e *schema.Event) { e.Epoch++ },
		"a line feed in the type": func(e *schema.Event) { e.Type += "\n" },
		"a long type":             func(e *schema.Event) { e.Type = strings.Repeat("x", schema.MaxAttribute+1) },
		"another type":            func(e *schema.Event) { e.Type = "com.example.é %41" },
		"no source":               func(e *schema.Event) { e.Source = "" },
		"invalid UTF-8":           func(e *schema.Event) { e.Source = "/a\xff" },
		"another run":             func(e *schema.Event) { e.Subject = strings.Repeat("x", schema.MaxIdentifier+1) },
		"no reference":            func(e *schema.Event) { e.DataRef = "elsewhere" },
		"an invalid attribute":    func(e *schema.Event) { e.Extensions = map[string]string{"Note-1": "x"} },
		"another content type":    func(e *schema.Event) { e.DataContentType = "text/plain" },
		"no JSON":                 func(e *schema.Event) { e.Data = []byte("{") },
		"other data":              func(e *schema.Event) { e.Data = []byte(`{"turn":7}`) },
	} {
		t.Run(name, func(t *testing.T) {
			at := schema.NewHead("default", "run-01hq3v8j5k")
			ordinaryRun(t, 2, func(rec *schema.Record) {
				e, err := schema.Decode(rec.Header, rec.Body)
				require.NoError(t, err)
				change(e)
				p := schema.PrepareSealed(e, e.Seal())
				own, log := at.Clone(), at.Clone()
				header, body := e.Encode()
				verdict := log.Apply(schema.ExecutorsOnly, &schema.Record{Header: header, Body: body})
				require.Equal(t, verdict, own.ApplyPrepared(&p))
				require.Equal(t, log, own)
				at.Apply(schema.ExecutorsOnly, rec)
			})
		})
	}
}
