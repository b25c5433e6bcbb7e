package webhook

import "net/http"

// SetTransport has the watch post through a transport. Call it before Run.
func SetTransport(w *Watch, transport http.RoundTripper) { w.client.Transport = transport }
