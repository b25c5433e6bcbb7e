package examples

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// snippet: signed

// Signed reports whether a post was signed with the secret within the last five minutes.
func Signed(secret string, header http.Header, body []byte) bool {
	key, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(strings.TrimSpace(secret), "whsec_"))
	id, at := header.Get("webhook-id"), header.Get("webhook-timestamp")
	seconds, wrong := strconv.ParseInt(at, 10, 64)
	if err != nil || wrong != nil || time.Since(time.Unix(seconds, 0)).Abs() > 5*time.Minute {
		return false
	}
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte(id + "." + at + "." + string(body)))
	want := "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil))
	return hmac.Equal([]byte(want), []byte(header.Get("webhook-signature")))
}

// end of signed
