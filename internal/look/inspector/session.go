package inspector

import (
	"crypto/rand"
	"crypto/subtle"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"

	"github.com/waymarkio/waymark/internal/look/failure"
)

// door lets viewers in. A token becomes a cookie.
type door struct {
	// host of the pages. Browsers send a cookie to every port of a host, and programs of others listen on this machine, so
	// each process has a host whose name no other program knows.
	host string
	// name of the session's cookie.
	name string

	mu sync.Mutex
	// tokens are unused single-use tokens; sessions are open. The latest is last.
	tokens, sessions []string
}

// kept bounds tokens and sessions: the oldest are dropped.
const kept = 64

// same compares secrets in constant time.
func same(a, b string) bool { return a != "" && subtle.ConstantTimeCompare([]byte(a), []byte(b)) == 1 }

// NewToken makes a single-use token.
func (s *Inspector) NewToken() string {
	token := rand.Text()
	s.door.mu.Lock()
	defer s.door.mu.Unlock()
	s.door.tokens = latest(append(s.door.tokens, token))
	return token
}

func latest(list []string) []string { return list[max(len(list)-kept, 0):] }

// enters uses a token, and returns the new session; empty for a wrong token.
func (d *door) enters(token string) (session string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	i := slices.IndexFunc(d.tokens, func(t string) bool { return same(t, token) })
	if i < 0 {
		return ""
	}
	d.tokens = slices.Delete(d.tokens, i, i+1)
	session = rand.Text()
	d.sessions = latest(append(d.sessions, session))
	return session
}

// knows reports whether a request has a session's cookie.
func (d *door) knows(r *http.Request) bool {
	cookie, err := r.Cookie(d.name)
	if err != nil {
		return false
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.ContainsFunc(d.sessions, func(session string) bool { return same(session, cookie.Value) })
}

func (d *door) cookie(name, value string) *http.Cookie {
	return &http.Cookie{Name: name, Value: value, Path: "/", HttpOnly: true, SameSite: http.SameSiteStrictMode}
}

// say shows a message on the next page, once.
func (d *door) say(w http.ResponseWriter, said string) {
	if said != "" {
		http.SetCookie(w, d.cookie(d.name+"-said", url.QueryEscape(said)))
	}
}

// said returns the message from the previous page.
func (d *door) said(w http.ResponseWriter, r *http.Request) string {
	cookie, err := r.Cookie(d.name + "-said")
	if err != nil {
		return ""
	}
	gone := d.cookie(d.name+"-said", "")
	gone.MaxAge = -1
	http.SetCookie(w, gone)
	text, err := url.QueryUnescape(cookie.Value)
	if err != nil {
		return ""
	}
	return text
}

// enter takes the token from the printed address. Its page loads the fleet by script: after a redirect
// from another site the browser would not send a strict cookie.
func (s *Inspector) enter(w http.ResponseWriter, r *http.Request) {
	v := s.view("Waymark", "", "")
	token := r.URL.Query().Get("t")
	session := s.door.enters(token)
	switch {
	case session != "":
		http.SetCookie(w, s.door.cookie(s.door.name, session))
		v.Body = "/"
		s.render(w, http.StatusOK, "entered", v)
		if s.Used != nil {
			s.Used()
		}
	case token == "":
		s.render(w, http.StatusOK, "enter", v)
	default:
		s.trouble(w, r, failure.New(failure.Refused, "open the address that waymark ui gave last: each lets one browser in", "this token is not valid, or was used"))
	}
}

// stranger answers a request without a cookie. After a link on another site the browser omits the cookie: the answer
// loads the page again, with it.
func (s *Inspector) stranger(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodGet && r.Header.Get("Sec-Fetch-Site") == "cross-site" && r.Header.Get("Sec-Fetch-Mode") == "navigate" {
		v := s.view("Waymark", "", "")
		v.Body = "/"
		if uri := r.URL.RequestURI(); !strings.HasPrefix(uri, "//") && !strings.Contains(uri, "\\") { // no other host
			v.Body = uri
		}
		s.render(w, http.StatusOK, "entered", v)
		return
	}
	v := s.view("Waymark", "", "")
	s.render(w, http.StatusUnauthorized, "enter", v)
}
