package cli

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	standard "github.com/standard-webhooks/standard-webhooks/libraries/go"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/cli/failure"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// The page's path: a secret, a daemon with an address, a run that asks, a receiver that checks the signature, and a daemon that is started
// again.
func TestServe_Webhook_PostsWhatNeedsAPerson(t *testing.T) {
	t.Parallel()
	where, _, fleet := provisioned(t)
	const secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSwMfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
	file := filepath.Join(t.TempDir(), "secret")
	require.NoError(t, os.WriteFile(file, []byte(secret+"\n"), 0o600))
	posts := make(chan map[string]any, 16)
	refused := false
	receiver := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		wh, failed := standard.NewWebhook(secret)
		if err == nil && failed == nil {
			err = wh.Verify(body, r.Header)
		}
		var event map[string]any
		if err != nil || json.Unmarshal(body, &event) != nil {
			t.Errorf("%v: %s", err, body)
		}
		if !refused {
			refused = true // one request at a time: there is one thing
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		posts <- event
	}))
	t.Cleanup(receiver.Close)
	getenv := func(string) string { return "" }
	serve := append([]string{"--http", "off", "--webhook", receiver.URL, "--webhook-secret", file}, where...)
	_, stop, err := startDaemon(serve, getenv)
	require.NoError(t, err)
	run, err := fleet.Start(t.Context(), publisher.RunSpec{ID: "asks"})
	require.NoError(t, err)
	require.NoError(t, run.Wait(t.Context(), schema.RunWaitingData{InterruptID: "q1", Reason: schema.WaitHumanInput, Message: "Which one?"}))
	next := func() map[string]any {
		select {
		case event := <-posts:
			return event
		case <-time.After(time.Minute):
			require.Fail(t, "no post")
			return nil
		}
	}
	first := next()
	require.Equal(t, "asks", first["subject"])
	require.Contains(t, first["data"], "interrupt_id")
	code, said := stop()
	require.Zero(t, code, said)
	_, stop, err = startDaemon(serve, getenv)
	require.NoError(t, err)
	require.Equal(t, first["id"], next()["id"], "a receiver knows that it is the same")
	_, _ = stop()

	for _, args := range [][]string{
		{"--webhook", receiver.URL},
		{"--webhook", "nowhere", "--webhook-secret", file},
		{"--webhook", receiver.URL, "--webhook-secret", filepath.Join(t.TempDir(), "none")},
		{"--webhook", receiver.URL, "--webhook-secret", os.Args[0]},
	} {
		var complaints bytes.Buffer
		code := Run(t.Context(), append(append([]string{"serve", "--http", "off"}, args...), where...), getenv, nil, io.Discard, &complaints)
		require.Contains(t, []int{int(failure.Usage), int(failure.NotFound)}, code, complaints.String())
		require.Contains(t, complaints.String(), "--webhook")
		require.Contains(t, complaints.String(), "hint: ")
	}
}
