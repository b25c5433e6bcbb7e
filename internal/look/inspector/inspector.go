package inspector

import (
	"context"
	"crypto/rand"
	"embed"
	"errors"
	"html/template"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/singleflight"

	"github.com/waymarkio/waymark/internal/base/httpguard"
	"github.com/waymarkio/waymark/internal/base/output"
	"github.com/waymarkio/waymark/internal/base/prompt"
	"github.com/waymarkio/waymark/internal/look/failure"
	"github.com/waymarkio/waymark/schema"
)

//go:embed assets
var assets embed.FS

// Config configures an inspector.
type Config struct {
	Fleet Fleet
	// Prompt formats the commands that pages show.
	Prompt prompt.Prompt
	// OwnContext: the commands leave out the context or key of the viewer, and each reader adds an own one.
	OwnContext bool
	// By is the viewer's name, which is recorded with what the viewer decides.
	By string
	// Acts: pages have buttons. NoContent: they show no messages, arguments, results and questions.
	Acts, NoContent bool
	// Used is called after each use of a token; nil for no call.
	Used func()
	// Now is the clock for ages.
	Now func() time.Time
	// First is the inspector that shows these pages behind its door, after [Inspector.Also]; nil for the first one.
	First *Inspector
}

// Inspector serves the pages. Close it.
type Inspector struct {
	Config
	mux       *http.ServeMux
	templates map[string]*template.Template
	door      *door
	fleets    *fleets
	// links puts the addresses in pages behind the first inspector's door, below at; nil and "" for the first one.
	links *strings.Replacer
	at    string
	live  *hub
	// csrf proves that this process rendered the form.
	csrf string
	// submissions are the latest submitted forms.
	submissions submissions
	needs       needs
	heads       heads
	// executors is the latest list of the fleet's executors.
	executors cached[*schema.ExecutorsReply]
	// wanted is when a page last showed an executor's heartbeat, in nanoseconds.
	wanted atomic.Int64
}

// New returns the pages of a fleet.
func New(cfg Config) (*Inspector, error) {
	s := &Inspector{Config: cfg, mux: http.NewServeMux(), templates: parse(cfg.Now), csrf: rand.Text(), fleets: new(fleets), door: &door{name: "waymark-ui-" + rand.Text()[:8]}}
	if cfg.First != nil {
		s.below(cfg.First)
	} else {
		s.door.host = strings.ToLower(rand.Text()) + ".localhost"
	}
	var err error
	if s.live, err = newHub(cfg.Fleet); err != nil {
		return nil, err
	}
	go s.listen()
	for _, p := range s.pages() {
		s.mux.HandleFunc("GET "+p.path, func(w http.ResponseWriter, r *http.Request) { s.whole(w, r, &p) })
		if p.every > 0 {
			s.mux.HandleFunc("GET /live"+strings.TrimSuffix(p.path, "{$}"), func(w http.ResponseWriter, r *http.Request) { s.follow(w, r, &p) })
		}
	}
	s.mux.HandleFunc("GET /run/{run}/whole", s.plain(s.field))
	s.mux.HandleFunc("GET /run/{run}/asked", s.plain(s.asked))
	if cfg.Acts {
		s.mux.HandleFunc("POST /needs-you/answer", s.each(s.answer))
		s.mux.HandleFunc("POST /needs-you/settle", s.each(s.settle))
		s.mux.HandleFunc("POST /act/{do}", s.each(s.act))
		s.mux.HandleFunc("POST /pause", s.form(s.pause))
		s.mux.HandleFunc("POST /run/{run}/mark", s.form(s.mark))
		s.mux.HandleFunc("POST /run/{run}/act/fork", s.form(s.fork))
		s.mux.HandleFunc("POST /run/{run}/act/signal", s.form(s.signal))
		s.mux.HandleFunc("POST /run/{run}/act/rewind", s.form(s.rewind))
	}
	s.mux.HandleFunc("/in/{fleet}/", s.other)
	s.mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		s.trouble(w, r, failure.New(failure.NotFound, "begin with the fleet: /", "there is no page %s", r.URL.Path))
	})
	return s, nil
}

// Host is the only host name under which an inspector shows its pages. Browsers resolve it to the loopback addresses. It
// is as secret as a token.
func (s *Inspector) Host() string { return s.door.host }

// Close ends the live pages.
func (s *Inspector) Close() { s.live.close() }

// policy restricts the browser to this package's scripts and files.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; " +
	"base-uri 'none'; frame-ancestors 'none'"

// ServeHTTP implements http.Handler. It refuses forbidden requests before a page handles them.
func (s *Inspector) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Content-Security-Policy", policy)
	h.Set("Referrer-Policy", "same-origin") // with no-referrer a browser sends a form of this origin with the origin null
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cache-Control", "no-store")
	why := httpguard.Refusal(r, false)
	if host, _, _ := strings.Cut(r.Host, ":"); !strings.EqualFold(host, s.door.host) {
		why = "this is not the address of the pages: open the one that waymark ui gave you"
	}
	if why != "" {
		http.Error(w, why, http.StatusForbidden)
		return
	}
	if name, ok := strings.CutPrefix(r.URL.Path, "/assets/"); ok && r.Method == http.MethodGet {
		h.Set("Cache-Control", "no-cache")
		http.ServeFileFS(w, r, assets, "assets/"+name) // the same for all: no secret is in them
		return
	}
	if r.URL.Path == "/enter" {
		s.enter(w, r)
		return
	}
	if !s.door.knows(r) {
		s.stranger(w, r)
		return
	}
	s.mux.ServeHTTP(w, r)
}

// maxForm bounds a submitted form, in bytes.
const maxForm = 1<<20 + 64<<10

// form handles a form of this process, and redirects to the page that the action names.
func (s *Inspector) form(do func(context.Context, *http.Request) (next, said string, err error)) http.HandlerFunc {
	return s.submitted(func(ctx context.Context, r *http.Request) (o outcome) {
		o.next, o.said, o.err = do(ctx, r)
		return o
	})
}

// submitted handles a form of this process.
func (s *Inspector) submitted(do func(context.Context, *http.Request) outcome) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		r.Body = http.MaxBytesReader(w, r.Body, maxForm)
		if err := r.ParseForm(); err != nil {
			s.trouble(w, r, failure.New(failure.Usage, "send less: an answer may have 1 MiB", "the form cannot be read: %v", err))
			return
		}
		if !s.madeHere(r) {
			s.trouble(w, r, failure.New(failure.Refused, "reload the page and send it again", "this form is not of a page of this process"))
			return
		}
		done := s.submissions.once(r, func() outcome { //nolint:contextcheck // it outlives the request
			// A second click ends the first request, which must not leave the action half done.
			ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), actWithin)
			defer cancel()
			return do(ctx, r)
		})
		if done.err != nil {
			s.trouble(w, r, done.err)
			return
		}
		s.needs.forget()
		if done.page != nil {
			s.render(w, http.StatusOK, "bulk", done.page)
			return
		}
		s.door.say(w, done.said)
		http.Redirect(w, r, s.at+done.next, http.StatusSeeOther)
	}
}

// statuses are the HTTP statuses of exit codes.
var statuses = map[failure.Code]int{
	failure.Usage: http.StatusBadRequest, failure.Unavailable: http.StatusServiceUnavailable, failure.NotFound: http.StatusNotFound,
	failure.Conflict: http.StatusConflict, failure.Refused: http.StatusForbidden, failure.Full: http.StatusInsufficientStorage,
}

// problem is a failure with its next step.
type problem struct{ What, Do string }

func (s *Inspector) problemOf(ctx context.Context, err error) (problem, int) {
	f := failure.Explain(ctx, err)
	status, ok := statuses[f.Code]
	if !ok {
		status = http.StatusInternalServerError
	}
	return problem{f.What, f.Advice(s.Prompt)}, status
}

// trouble shows an error as a page.
func (s *Inspector) trouble(w http.ResponseWriter, r *http.Request, err error) {
	if r.Context().Err() != nil && errors.Is(err, r.Context().Err()) {
		return // the viewer is gone
	}
	p, status := s.problemOf(r.Context(), err)
	v := s.view("That did not work", "", "")
	v.Body = p
	if s.door.knows(r) {
		v.Fleets = s.fleets.look(r.Context(), s)
	}
	s.render(w, status, "trouble", v)
}

// cached is a value that is read again after a time. The zero value is empty.
type cached[T any] struct {
	reads singleflight.Group

	mu    sync.Mutex
	value T
	err   error
	at    time.Time
	// took is the duration of the last read.
	took time.Duration
	// forgotten counts calls of forget: the result of an earlier read is dropped.
	forgotten int
}

// get returns the value, and reads it again if it is older than old. A slow value is read less often. After patience it
// returns the older value; ok is false if there is none, or none that could be read lately.
func (c *cached[T]) get(old, patience time.Duration, read func(context.Context) (T, error)) (value T, ok bool, err error) {
	late := time.NewTimer(patience)
	defer late.Stop()
	for waits := true; waits && !c.recent(old); { // it may be forgotten while it is read
		select {
		case <-c.reads.DoChan("", func() (any, error) { c.fill(read); return nil, nil }):
		case <-late.C:
			waits = false
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.value, time.Since(c.at) < max(old, 11*c.took)+peekable, c.err
}

func (c *cached[T]) recent(old time.Duration) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return time.Since(c.at) <= old // a server that was away may be back
	}
	return time.Since(c.at) <= max(old, 10*c.took)
}

func (c *cached[T]) fill(read func(context.Context) (T, error)) {
	ctx, cancel := context.WithTimeout(context.Background(), readWithin)
	defer cancel()
	c.mu.Lock()
	forgotten, began := c.forgotten, time.Now()
	c.mu.Unlock()
	value, err := read(ctx)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.forgotten == forgotten {
		c.value, c.err, c.at, c.took = value, err, time.Now(), time.Since(began)
	}
}

// peek returns the latest value without reading it, if it is recent.
func (c *cached[T]) peek() (value T, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.value, c.err == nil && time.Since(c.at) < peekable
}

// peekable is the maximum age of a value from peek.
const peekable = 5 * time.Second

// forget drops the value and the result of a read in progress: both precede a change.
func (c *cached[T]) forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.forgotten++
	c.at, c.took = time.Time{}, 0
}

// readWithin bounds a read in the background.
const readWithin = time.Minute

// commandOf is the command that prints the content of a page.
func (s *Inspector) commandOf(words string) string { return output.Printable(s.Prompt.Command(words)) }
