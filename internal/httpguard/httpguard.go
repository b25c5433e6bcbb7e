package httpguard

import (
	"net"
	"net/http"
	"net/netip"
	"strings"
)

// Refusal says why a request is refused; empty for one that is not. local: the address that was asked is a loopback one.
func Refusal(r *http.Request, local bool) string {
	switch {
	case local && !localName(r.Host):
		return "this address is for this machine: ask for 127.0.0.1 or localhost"
	case otherOrigin(r):
		return "pages of another origin may not ask"
	}
	return ""
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
