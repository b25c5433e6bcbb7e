package cli

import (
	"fmt"
	"regexp"
	"runtime"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"
	"github.com/synadia-io/orbit.go/natscontext"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// heapMost bounds what a thousand requests at once may add to the heap of daemon, server and client, which share it here. The content
// under way alone may be 32 answers of 4 MiB.
const heapMost = 512 << 20

// A thousand clients ask for a run's whole content and do not read the answer, and two hundred take runs over (a thousand took 30 s and
// 12 MiB). The memory is bounded, and other clients are still served.
func TestService_ThousandRequests_AnsweredOrRefused(t *testing.T) {
	if testing.Short() {
		t.Skip("short: a thousand requests at once")
	}
	dir := t.TempDir()
	getenv := func(name string) string {
		return map[string]string{"HOME": dir, "XDG_CONFIG_HOME": dir, "WAYMARK_HTTP": "off", "WAYMARK_STATE_DIR": dir, "WAYMARK_QUOTA": "64MiB"}[name]
	}
	ready, stop, err := startDaemon(nil, getenv)
	require.NoError(t, err)
	defer func() {
		code, text := stop()
		require.Zero(t, code, text)
	}()
	file := regexp.MustCompile(` context=(\S+)`).FindStringSubmatch(ready)[1]
	closed := make(chan struct{})
	nc, _, err := natscontext.Connect(file, nats.ReconnectBufSize(-1), nats.ClosedHandler(func(*nats.Conn) { close(closed) }))
	require.NoError(t, err)
	defer func() {
		nc.Close()
		<-closed
	}()
	fleet, err := publisher.Connect(t.Context(), publisher.Config{Conn: nc, Fleet: schema.DefaultFleet, Executor: "e", Agent: "clerk"})
	require.NoError(t, err)
	defer func() { require.NoError(t, fleet.Close(t.Context())) }()
	r, err := fleet.Start(t.Context(), publisher.RunSpec{ID: "r1"})
	require.NoError(t, err)
	for range 64 {
		require.NoError(t, r.AddMessage(t.Context(), schema.Message{Role: schema.RoleUser, Parts: []schema.Part{schema.Text(strings.Repeat("0123456789", 12<<10))}}))
	}

	// ask sends them all, and counts what each got first.
	ask := func(many int, verb string, request func(int) any) (answered, refused int) {
		inbox := nc.NewInbox()
		sub, err := nc.SubscribeSync(inbox + ".*")
		require.NoError(t, err)
		require.NoError(t, sub.SetPendingLimits(-1, -1))
		for i := range many {
			body, err := json.Marshal(request(i))
			require.NoError(t, err)
			require.NoError(t, nc.PublishRequest(schema.ServiceSubject(verb, schema.DefaultFleet, "r1"), fmt.Sprintf("%s.%d", inbox, i), body))
		}
		first := map[string]bool{}
		for len(first) < many {
			m, err := sub.NextMsg(startLimit)
			require.NoError(t, err, "%d of %d had an answer", len(first), many)
			if first[m.Subject] {
				continue
			}
			first[m.Subject] = true
			switch code := m.Header.Get(schema.HeaderErrorCode); code {
			case "":
				answered++
			case "429", "503":
				refused++
			default:
				require.Fail(t, "refused for another reason", "%s: %s", code, m.Data)
			}
		}
		// The client has read none of it yet, and others are served.
		var out lockedBuffer
		code := Run(t.Context(), []string{"runs", "get", "r1"}, getenv, strings.NewReader(""), &out, &out)
		require.Zero(t, code, "%s", out.String())
		return answered, refused
	}

	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	answered, refused := ask(1000, schema.VerbGet, func(int) any { return schema.GetRequest{View: schema.ViewEvents} })
	runtime.ReadMemStats(&after)
	t.Logf("content: %d answered, %d refused, heap %d MiB more", answered, refused, (int64(after.HeapInuse)-int64(before.HeapInuse))>>20) //nolint:gosec // sizes
	require.Positive(t, answered)
	require.Positive(t, refused, "the rest is told to come again")
	require.Less(t, int64(after.HeapInuse)-int64(before.HeapInuse), int64(heapMost)) //nolint:gosec // sizes

	answered, refused = ask(200, schema.VerbRecover, func(i int) any { return schema.RecoverRequest{Executor: "e", RequestID: fmt.Sprint("q", i)} })
	runtime.ReadMemStats(&after)
	t.Logf("takeovers: %d answered, %d refused, heap %d MiB more", answered, refused, (int64(after.HeapInuse)-int64(before.HeapInuse))>>20) //nolint:gosec // sizes
	require.Positive(t, answered)
	require.Less(t, int64(after.HeapInuse)-int64(before.HeapInuse), int64(heapMost)) //nolint:gosec // sizes
	head, err := fleet.Head(t.Context(), "r1")
	require.NoError(t, err)
	require.GreaterOrEqual(t, int(head.Epoch), answered, "each that was answered took it over")
}
