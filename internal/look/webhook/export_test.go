package webhook

import "net/http"

// SetTransport makes the watch post through a transport. Call it before Run.
func SetTransport(w *Watch, transport http.RoundTripper) { w.client.Transport = transport }

// Transport is the transport of a watch's posts.
func Transport(w *Watch) http.RoundTripper { return w.client.Transport }

// Known counts the runs that a watch has in memory. Call it after Run.
func Known(w *Watch) int { return len(w.runs) }
