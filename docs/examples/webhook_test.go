package examples_test

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/docs/examples"
	"github.com/waymarkio/waymark/internal/look/webhook"
)

// The check on the page takes what the daemon signs, and nothing else.
func TestSigned_PostOfTheDaemon_IsTaken(t *testing.T) {
	t.Parallel()
	const secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSwMfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
	body := []byte(`{"id":"x"}`)
	post := func(at time.Time, signature string) http.Header {
		h := http.Header{}
		h.Set("webhook-id", "run.waiting.1")
		h.Set("webhook-timestamp", strconv.FormatInt(at.Unix(), 10))
		h.Set("webhook-signature", signature)
		return h
	}
	daemon, err := webhook.ParseSecret(secret)
	require.NoError(t, err)
	sign := func(at time.Time) string {
		signature, err := daemon.Sign("run.waiting.1", at, body)
		require.NoError(t, err)
		return signature
	}
	now := time.Now()
	require.True(t, examples.Signed(secret, post(now, sign(now)), body))
	require.True(t, examples.Signed(secret+"\n", post(now, sign(now)), body), "as a file has it")
	require.False(t, examples.Signed(secret, post(now, sign(now)), []byte(`{"id":"y"}`)))
	old := now.Add(-6 * time.Minute)
	require.False(t, examples.Signed(secret, post(old, sign(old)), body))
	require.False(t, examples.Signed("whsec_"+base64.StdEncoding.EncodeToString(make([]byte, 32)), post(now, sign(now)), body))
	require.False(t, examples.Signed(secret, http.Header{}, body))
	text := hmac.New(sha256.New, []byte(strings.TrimPrefix(secret, "whsec_")))
	text.Write([]byte("run.waiting.1." + strconv.FormatInt(now.Unix(), 10) + "." + string(body)))
	require.False(t, examples.Signed(secret, post(now, "v1,"+base64.StdEncoding.EncodeToString(text.Sum(nil))), body), "the text itself is not the key")
}
