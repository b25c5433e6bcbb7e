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

	"github.com/waymarkio/waymark/internal/cli/failure"
	"github.com/waymarkio/waymark/internal/cli/output"
	"github.com/waymarkio/waymark/internal/cli/prompt"
	"github.com/waymarkio/waymark/internal/httpguard"
	"github.com/waymarkio/waymark/schema"
)

//go:embed assets
var assets embed.FS

// Config is what an inspector is made of.
type Config struct {
	Fleet Fleet
	// Prompt writes the commands that pages show.
	Prompt prompt.Prompt
	// By is the viewer's name, which is recorded with what the viewer decides.
	By string
	// Acts: pages have buttons. NoContent: they show no messages, arguments, results and questions.
	Acts, NoContent bool
	// Local: the address is a loopback one. Secure: it is reached by TLS.
	Local, Secure bool
	// Token lets a viewer in as often as it is shown; empty means that [Inspector.NewToken] makes tokens of one use each.
	Token string
	// Used is called for each single-use token that was used; nil for no call.
	Used func()
	// Doctor looks at the fleet's server, streams and limits as waymark doctor does; nil where only that command does.
	Doctor func(ctx context.Context) ([]Finding, error)
	// Now is the clock that ages are told by.
	Now func() time.Time
}

// Inspector serves the pages. Close it.
type Inspector struct {
	Config
	mux       *http.ServeMux
	templates map[string]*template.Template
	door      door
	live      *hub
	// csrf proves that a form is of a page that this process made.
	csrf string
	// submissions are the forms that were sent last.
	submissions submissions
	stories     recent[readStory]
	needs       needs
	heads       heads
	// executors are those of the fleet as they were last read.
	executors cached[*schema.ExecutorsReply]
	findings  cached[[]Finding]
	// wanted is when a page wanted to say of an executor when it was heard, in nanoseconds.
	wanted atomic.Int64
}

// New returns the pages of a fleet.
func New(cfg Config) (*Inspector, error) {
	s := &Inspector{Config: cfg, mux: http.NewServeMux(), templates: parse(cfg.Now), csrf: rand.Text(), door: door{name: "waymark-ui-" + rand.Text()[:8], standing: cfg.Token}}
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
	s.mux.HandleFunc("GET /run/{run}/recovery.json", s.planJSON)
	s.mux.HandleFunc("GET /run/{run}/whole", s.plain(s.field))
	s.mux.HandleFunc("GET /run/{run}/asked", s.plain(s.asked))
	if cfg.Acts {
		s.mux.HandleFunc("POST /needs-you/answer", s.form(s.answer))
		s.mux.HandleFunc("POST /needs-you/settle", s.form(s.settle))
		s.mux.HandleFunc("POST /needs-you/command", s.form(s.command))
		s.mux.HandleFunc("POST /run/{run}/mark", s.form(s.mark))
		s.mux.HandleFunc("POST /run/{run}/act/{do}", s.form(s.act))
	}
	s.mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		s.trouble(w, r, failure.New(failure.NotFound, "begin with the fleet: /", "there is no page %s", r.URL.Path))
	})
	return s, nil
}

// Close ends the live pages.
func (s *Inspector) Close() { s.live.close() }

// policy lets a browser run and load what this package serves, and nothing else.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; form-action 'self'; " +
	"base-uri 'none'; frame-ancestors 'none'"

// ServeHTTP implements http.Handler: what no page may do is decided here, before any page is asked.
func (s *Inspector) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Content-Security-Policy", policy)
	h.Set("Referrer-Policy", "same-origin") // with no-referrer a browser sends a form of this origin with the origin null
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cache-Control", "no-store")
	if why := httpguard.Refusal(r, s.Local); why != "" {
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

// maxForm bounds a form that is sent, in bytes.
const maxForm = 1<<20 + 64<<10

// form takes a form that a page of this process made, and shows where it says to go on.
func (s *Inspector) form(do func(context.Context, *http.Request) (next, said string, err error)) http.HandlerFunc {
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
		done := s.submissions.once(r, func() (o outcome) { //nolint:contextcheck // it outlives the request
			// A second click ends the first request, and what is half done would stay so.
			ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), actWithin)
			defer cancel()
			o.next, o.said, o.err = do(ctx, r)
			return o
		})
		if done.err != nil {
			s.trouble(w, r, done.err)
			return
		}
		s.needs.forget()
		s.door.say(w, done.said, s.Secure)
		http.Redirect(w, r, done.next, http.StatusSeeOther)
	}
}

// statuses are those of HTTP for the exit codes of commands.
var statuses = map[failure.Code]int{
	failure.Usage: http.StatusBadRequest, failure.Unavailable: http.StatusServiceUnavailable, failure.NotFound: http.StatusNotFound,
	failure.Conflict: http.StatusConflict, failure.Refused: http.StatusForbidden, failure.Full: http.StatusInsufficientStorage,
}

// problem is what failed, and what to do.
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
	s.render(w, status, "trouble", v)
}

// cached is a value that is read again once it is old. The zero value is empty.
type cached[T any] struct {
	mu    sync.Mutex
	value T
	err   error
	at    time.Time
	// took is how long the last reading took.
	took time.Duration
	// busy is closed when the reading that is under way has ended; nil while there is none.
	busy chan struct{}
	// forgotten counts the times that the value was forgotten: a reading that began before is of no use.
	forgotten int
}

// get returns the value, and has it read again if it is older than a time. What takes long to read is read less often. It waits for a reading no longer than patience: then there is
// the older value, and no value yet is none.
func (c *cached[T]) get(old, patience time.Duration, read func(context.Context) (T, error)) (value T, ok bool, err error) {
	timer := time.NewTimer(patience)
	defer timer.Stop()
	for {
		busy := c.begin(old, read)
		if busy == nil {
			break
		}
		select {
		case <-busy:
			continue // it may have been forgotten meanwhile
		case <-timer.C:
		}
		break
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.value, !c.at.IsZero(), c.err
}

// begin begins a reading unless there is one under way, or the value is not old. It returns what is closed when the reading has ended.
func (c *cached[T]) begin(old time.Duration, read func(context.Context) (T, error)) chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.busy != nil || time.Since(c.at) <= max(old, 10*c.took) {
		return c.busy
	}
	done, forgotten := make(chan struct{}), c.forgotten
	c.busy = done
	go func() {
		defer close(done)
		ctx, cancel := context.WithTimeout(context.Background(), readWithin)
		defer cancel()
		began := time.Now()
		value, err := read(ctx)
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.busy = nil; c.forgotten == forgotten {
			c.value, c.err, c.at, c.took = value, err, time.Now(), time.Since(began)
		}
	}()
	return done
}

// peek returns the value as it was last read, if that is not long ago.
func (c *cached[T]) peek() (value T, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.value, c.err == nil && time.Since(c.at) < peekable
}

// peekable is how old a value may be that is shown without a reading.
const peekable = 5 * time.Second

// forget drops the value, and what a reading that is under way brings: both are from before what was just changed.
func (c *cached[T]) forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.forgotten++
	c.at, c.took = time.Time{}, 0
}

// readWithin bounds a reading that no request waits for.
const readWithin = time.Minute

// commandOf is the command that says what a page says.
func (s *Inspector) commandOf(words string) string { return output.Printable(s.Prompt.Command(words)) }
