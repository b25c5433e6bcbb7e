package schema_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/schema"
)

func TestRequests_NamedControlEvents_FoundByName(t *testing.T) {
	t.Parallel()
	r := newTestRun(t)
	r.write(&schema.RunStartedData{Agent: "coder", Executor: "ex-1"}, 0)
	name := func(i int) string { return schema.RequestName("mark", fmt.Sprint(i)) }
	mark := func(i int, nonce string) schema.StreamSequence {
		e, err := schema.NewControl("f", "daemon", r.head.Run, r.head.Epoch, nonce, &schema.CheckpointMarkedData{Name: fmt.Sprint(i % 3)}, r.now())
		require.NoError(t, err)
		require.Equal(t, schema.Applied, r.event(e).Kind)
		return r.head.Position.Stream
	}
	first := mark(0, schema.RequestNonce(name(0)))
	mark(1, schema.RequestNonce(""))
	last := mark(2, schema.RequestNonce(name(2)))
	require.Equal(t, 2, r.head.Requests.Len())
	for i, want := range map[int]schema.StreamSequence{0: first, 2: last} {
		at, ok := r.head.Requests.Find(name(i))
		require.True(t, ok)
		require.Equal(t, want, at)
	}
	for _, unknown := range []string{"", name(1), name(0)[1:] + "A"} {
		_, ok := r.head.Requests.Find(unknown)
		require.False(t, ok, unknown)
	}
	refused, err := schema.NewControl("f", "daemon", r.head.Run, r.head.Epoch, schema.RequestNonce(name(1)), &schema.RunInputData{InterruptID: "none"}, r.now())
	require.NoError(t, err)
	require.Equal(t, schema.Rejected, r.event(refused).Kind)
	foreign := *refused
	foreign.ID, foreign.Data = schema.ControlID("r1", r.head.Epoch, schema.RequestNonce(name(1))), []byte(`{}`)
	require.Equal(t, schema.Rejected, r.event(&foreign).Kind)
	require.Equal(t, 2, r.head.Requests.Len(), "only accepted events count")
	again := mark(0, schema.RequestNonce(name(0)))
	at, _ := r.head.Requests.Find(name(0))
	require.Equal(t, again, at, "the latest event of the name")
	require.Empty(t, schema.BaseOf(schema.Point{}, r.head.Records, &r.head).Head.Requests, "a fork is another run: its requests are its own")
}

func TestRequestOf_NonceOfAnotherForm_NoRequest(t *testing.T) {
	t.Parallel()
	name := schema.RequestName("mark", "1")
	for nonce, want := range map[string]string{
		name + ".a":            name,
		name:                   "",
		name[1:] + ".a":        "",
		name + "A.a":           "",
		`"` + name[1:] + ".a":  "",
		"\n" + name[1:] + ".a": "",
		"ö" + name[2:] + ".a":  "",
		"=" + name[1:] + ".a":  "",
		"+" + name[1:] + ".a":  "",
	} {
		e, err := schema.NewControl("f", "daemon", "r1", 1, nonce, &schema.CheckpointMarkedData{Name: "a"}, time.Unix(0, 0))
		require.NoError(t, err)
		require.Equal(t, want, schema.RequestOf(e), "%q", nonce)
	}
}
