package httpguard

import (
	"net"
	"net/http"
	"net/netip"
	"strings"
)

// Refusal returns why a request is refused; empty if it is not. local: the requested address is a loopback address.
func Refusal(r *http.Request, local bool) string {
	switch {
	case local && !localName(r.Host):
		return "this address is for this machine only: use 127.0.0.1 or localhost"
	case otherOrigin(r):
		return "requests from pages of another origin are refused"
	}
	return ""
}

// localName reports whether a Host header names this machine without a name server. Programs that send no Host header
// are not browsers.
func localName(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	host = strings.Trim(host, "[]")
	_, err := netip.ParseAddr(host)
	return err == nil || host == "" || strings.EqualFold(host, "localhost")
}

// otherOrigin reports whether a browser marks the request as coming from a page of another origin. Following a link
// does not count.
func otherOrigin(r *http.Request) bool {
	if origin := r.Header.Get("Origin"); origin != "" && origin != "http://"+r.Host && origin != "https://"+r.Host {
		return true
	}
	site := r.Header.Get("Sec-Fetch-Site")
	return (site == "cross-site" || site == "same-site") && r.Header.Get("Sec-Fetch-Mode") != "navigate"
}
