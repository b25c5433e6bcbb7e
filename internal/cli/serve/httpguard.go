package serve

import (
	"net"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"github.com/rs/zerolog"

	"github.com/waymarkio/waymark/internal/cli/base"
)

// guard keeps pages of the web from reading health and metrics through a browser on this machine. What has no login is meant for
// programs: a page of another origin is refused, and on a loopback address so is a name that somebody made resolve to it.
func (h *healthServer) guard(log zerolog.Logger) {
	log = log.Sample(&zerolog.BurstSampler{Burst: 5, Period: time.Second})
	next, local := h.server.Handler, base.IsLoopback(h.listener.Addr().String())
	h.server.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Content-Type-Options", "nosniff")
		w.Header().Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")
		w.Header().Set("Cross-Origin-Resource-Policy", "same-origin")
		why := ""
		switch {
		case local && !localName(r.Host):
			why = "this address is for this machine: ask for 127.0.0.1 or localhost"
		case otherOrigin(r):
			why = "pages of another origin may not ask"
		default:
			next.ServeHTTP(w, r)
			return
		}
		log.Warn().Str("host", r.Host).Str("origin", r.Header.Get("Origin")).Str("path", r.URL.Path).Str("remote", r.RemoteAddr).Msg("http request refused")
		answer(w, http.StatusForbidden, why)
	})
}

// localName reports whether a Host header names this machine in a way that no name server decides. Programs that send none are
// no browsers.
func localName(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	host = strings.Trim(host, "[]")
	_, err := netip.ParseAddr(host)
	return err == nil || host == "" || strings.EqualFold(host, "localhost")
}

// otherOrigin reports whether a browser says that a page of another origin asks. To follow a link is no such request.
func otherOrigin(r *http.Request) bool {
	if origin := r.Header.Get("Origin"); origin != "" && origin != "http://"+r.Host && origin != "https://"+r.Host {
		return true
	}
	site := r.Header.Get("Sec-Fetch-Site")
	return (site == "cross-site" || site == "same-site") && r.Header.Get("Sec-Fetch-Mode") != "navigate"
}
