package webhook

import "net/http"

// SetTransport has the watch post through a transport. Call it before Run.
func SetTransport(w *Watch, transport http.RoundTripper) { w.client.Transport = transport }

// Transport is what a watch posts through.
func Transport(w *Watch) http.RoundTripper { return w.client.Transport }

// Known counts the runs that a watch has in memory. Call it after Run.
func Known(w *Watch) int { return len(w.runs) }
