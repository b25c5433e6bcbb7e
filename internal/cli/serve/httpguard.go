package serve

import (
	"net/http"
	"time"

	"github.com/rs/zerolog"

	"github.com/waymarkio/waymark/internal/base/httpguard"
	"github.com/waymarkio/waymark/internal/cli/base"
)

// guard keeps web pages from reading health and metrics, which have no login, through a browser on this machine. It refuses requests of pages of
// another origin, and, on a loopback address, requests that name it by a DNS name.
func (h *healthServer) guard(log zerolog.Logger) {
	log = log.Sample(&zerolog.BurstSampler{Burst: 5, Period: time.Second})
	next, local := h.server.Handler, base.IsLoopback(h.listener.Addr().String())
	h.server.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Content-Type-Options", "nosniff")
		w.Header().Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")
		w.Header().Set("Cross-Origin-Resource-Policy", "same-origin")
		why := httpguard.Refusal(r, local)
		if why == "" {
			next.ServeHTTP(w, r)
			return
		}
		log.Warn().Str("host", r.Host).Str("origin", r.Header.Get("Origin")).Str("path", r.URL.Path).Str("remote", r.RemoteAddr).Msg("http request refused")
		answer(w, http.StatusForbidden, why)
	})
}
