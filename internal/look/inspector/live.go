package inspector

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/waymarkio/waymark/internal/base/output"
)

// Paces of live pages.
const (
	// pulse is the interval at which a page is rendered again without an event, because it shows ages.
	pulse = 5 * time.Second
	// silence is the interval of messages on an idle stream, and writeWithin bounds one write to a viewer.
	silence     = 15 * time.Second
	writeWithin = 20 * time.Second
	// remadeWithin bounds the rendering of an open page.
	remadeWithin = 10 * time.Second
)

// hub subscribes to the fleet's accepted events, once for all viewers, and renders the open pages again.
type hub struct {
	fleet Fleet
	stop  func()

	mu      sync.Mutex
	streams map[string]*stream
	closed  chan struct{}
	// refused is the server's refusal of the subscription.
	refused error
}

// update is a message to a viewer: the current page, or why it is out of date.
type update struct {
	event string
	data  []byte
}

// stream is one open page, in one browser or several.
type stream struct {
	run string
	// woken has a token after an event that the page may show.
	woken   chan struct{}
	viewers map[chan *update]bool
	last    *update
	end     context.CancelFunc
}

func newHub(fleet Fleet) (*hub, error) {
	h := &hub{fleet: fleet, streams: make(map[string]*stream), closed: make(chan struct{})}
	stop, err := fleet.Observe(h.wake, func(err error) {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.refused = err
	})
	if err != nil {
		return nil, err
	}
	h.stop = stop
	return h, nil
}

func (h *hub) close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	select {
	case <-h.closed:
		return
	default:
	}
	h.stop()
	close(h.closed)
	for _, s := range h.streams {
		s.end()
	}
}

// watched reports whether a page is open.
func (h *hub) watched() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.streams) > 0
}

// wake renders the open pages again that a run's event may change; without a run, all of them.
func (h *hub) wake(run string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, s := range h.streams {
		if run == "" || s.run == "" || s.run == run {
			select {
			case s.woken <- struct{}{}:
			default: // it has one
			}
		}
	}
}

// trouble says why open pages may be out of date; empty if they are not.
func (h *hub) trouble() string {
	if !h.fleet.Connected() {
		return "The connection to the NATS server is lost. This page shows what was read before, and goes on once the server is back."
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.refused != nil {
		return fmt.Sprintf("These credentials may not hear events: this page is read again every %s only.", pulse)
	}
	return ""
}

// watch adds a viewer of a page. The first one begins the stream, the last one ends it.
func (h *hub) watch(key, run string, every time.Duration, remake func(context.Context) *update) (updates chan *update, leave func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := h.streams[key]
	if s == nil {
		ctx, end := context.WithCancel(context.Background())
		s = &stream{run: run, woken: make(chan struct{}, 1), viewers: make(map[chan *update]bool), end: end}
		h.streams[key] = s
		go h.feed(ctx, s, every, remake)
	}
	updates = make(chan *update, 1)
	s.viewers[updates] = true
	if s.last != nil {
		updates <- s.last
	}
	return updates, func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(s.viewers, updates)
		if len(s.viewers) == 0 && h.streams[key] == s {
			delete(h.streams, key)
			s.end()
		}
	}
}

// feed renders a page again after events, at most once per every, and sends it to the viewers that have it open.
func (h *hub) feed(ctx context.Context, s *stream, every time.Duration, remake func(context.Context) *update) {
	beat := time.NewTicker(pulse)
	defer beat.Stop()
	for {
		began := time.Now()
		page := remake(ctx)
		h.mu.Lock()
		if page != nil && (s.last == nil || page.event != s.last.event || !bytes.Equal(page.data, s.last.data)) {
			s.last = page
			for v := range s.viewers {
				select {
				case <-v: // the viewer has not read the last one
				default:
				}
				v <- page
			}
		}
		h.mu.Unlock()
		// A slow page is rendered less often.
		rest := time.NewTimer(max(every, 4*time.Since(began)))
		select {
		case <-rest.C:
		case <-ctx.Done():
			rest.Stop()
			return
		}
		select {
		case <-s.woken:
		case <-beat.C:
		case <-ctx.Done():
			return
		}
	}
}

// follow sends a page as it changes, over an event stream.
func (s *Inspector) follow(w http.ResponseWriter, r *http.Request, p *page) {
	out := http.NewResponseController(w)
	send := func(event string, data []byte) bool {
		_ = out.SetWriteDeadline(time.Now().Add(writeWithin)) // a writer without deadlines is the tests'
		var b bytes.Buffer
		fmt.Fprintf(&b, "event: %s\n", event)
		for line := range bytes.Lines(data) {
			fmt.Fprintf(&b, "data: %s\n", bytes.TrimRight(line, "\r\n"))
		}
		b.WriteString("\n")
		_, err := w.Write(b.Bytes())
		return err == nil && out.Flush() == nil
	}
	asked := r.Clone(context.WithoutCancel(r.Context()))
	asked.URL.Path = r.URL.Path[len("/live"):]
	run := r.PathValue("run")
	remake := func(live context.Context) *update {
		ctx, cancel := context.WithTimeout(live, remadeWithin)
		defer cancel()
		u := s.fragment(ctx, asked, p)
		if u == nil && live.Err() == nil {
			u = &update{"trouble", []byte("This page takes longer than " + remadeWithin.String() + " to read: it shows what was there before.")}
		}
		return u
	}
	updates, leave := s.live.watch(asked.URL.RequestURI(), run, p.every, remake) //nolint:contextcheck // it serves all viewers, and outlives this one
	defer leave()
	w.Header().Set("Content-Type", "text/event-stream")
	if !send("hello", []byte("-")) {
		return
	}
	quiet := time.NewTicker(silence)
	defer quiet.Stop()
	for {
		select {
		case page := <-updates:
			if !send(page.event, page.data) {
				return
			}
		case <-quiet.C:
			if !send("silence", []byte("-")) {
				return
			}
		case <-s.live.closed:
			return
		case <-r.Context().Done():
			return
		}
	}
}

// fragment renders the part of a page that changes.
func (s *Inspector) fragment(ctx context.Context, r *http.Request, p *page) *update {
	if why := s.live.trouble(); why != "" && !s.Fleet.Connected() {
		return &update{"trouble", []byte(why)}
	}
	v, err := p.show(ctx, r)
	if err != nil {
		if ctx.Err() != nil {
			return nil
		}
		why, _ := s.problemOf(ctx, err)
		return &update{"trouble", []byte(output.Printable(why.What))}
	}
	s.complete(v, r)
	return &update{"page", s.execute(p.name, "live", v)}
}
