package serve

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"github.com/waymarkio/waymark/internal/cli/base"
	"github.com/waymarkio/waymark/internal/look/failure"
)

// DefaultHTTP is where health and metrics are served.
const DefaultHTTP = "127.0.0.1:9477"

// maxScrapes bounds the scrapes answered at once.
const maxScrapes = 4

// healthServer answers /healthz, /readyz and /metrics.
type healthServer struct {
	listener net.Listener
	server   *http.Server
	// ready: the daemon takes work. It is set once, and cleared when the daemon stops.
	ready atomic.Bool
	// waits is what a daemon that starts waits for; nil for nothing.
	waits atomic.Pointer[base.Finding]
	// shown is the running daemon; nil while there is none.
	shown atomic.Pointer[shown]
}

// shown is a running daemon, with its metrics.
type shown struct {
	*daemon
	now     func() time.Time
	metrics http.Handler
}

// listenHealth opens the address; "off" means none.
func listenHealth(ctx context.Context, address string, log zerolog.Logger) (*healthServer, error) {
	if address == "off" {
		return new(healthServer), nil
	}
	if _, _, err := net.SplitHostPort(address); err != nil {
		return nil, failure.New(failure.Usage, "write host and port, such as 127.0.0.1:0, or off", "--http %q is not an address", address)
	}
	var lc net.ListenConfig
	listener, err := lc.Listen(ctx, "tcp", address)
	if err != nil {
		return nil, &failure.Error{
			Code: failure.Unavailable,
			What: fmt.Sprintf("cannot listen on --http %s: %v", address, err),
			Hint: "stop what listens there, or choose another address: waymark serve --http 127.0.0.1:0 takes a free port",
			Own:  true,
			Err:  err,
		}
	}
	h := &healthServer{listener: listener}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", h.healthz)
	mux.HandleFunc("GET /readyz", h.readyz)
	mux.HandleFunc("GET /metrics", h.metrics)
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, http.StatusOK, "waymark: /healthz, /readyz, /metrics")
	})
	h.server = &http.Server{
		Handler:           mux,
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       5 * time.Second,
		WriteTimeout:      30 * time.Second,
		IdleTimeout:       time.Minute,
		MaxHeaderBytes:    16 << 10,
	}
	h.guard(log)
	return h, nil
}

// url is the address with the port in use.
func (h *healthServer) url() string {
	if h.listener == nil {
		return ""
	}
	return "http://" + h.listener.Addr().String()
}

// Run serves until shutdown.
func (h *healthServer) run() error {
	if h.listener == nil {
		return nil
	}
	if err := h.server.Serve(h.listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serving health and metrics: %w", err)
	}
	return nil
}

// shutdown ends requests under way within ctx.
func (h *healthServer) shutdown(ctx context.Context) error {
	if h.listener == nil {
		return nil
	}
	return errors.Join(h.server.Shutdown(ctx), closeListener(h.listener))
}

// closeListener closes a listener that Serve may have closed already.
func closeListener(l net.Listener) error {
	if err := l.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
		return err
	}
	return nil
}

func (h *healthServer) healthz(w http.ResponseWriter, r *http.Request) {
	tell(w, "not alive", h.restartTroubles(r.Context()))
}

// restartTroubles are those that a restart of the daemon repairs. A start or a stop has its own limits, and a restart makes no room on a disk.
func (h *healthServer) restartTroubles(ctx context.Context) []base.Finding {
	if s := h.shown.Load(); s != nil {
		return s.liveness(ctx, s.now())
	}
	return nil
}

// tell answers with what is wrong, if there is anything. Warnings are no failure.
func tell(w http.ResponseWriter, first string, list []base.Finding) {
	status := http.StatusServiceUnavailable
	if !base.AnyFailed(list) {
		status, first = http.StatusOK, "ok"
	}
	answer(w, status, troubles(first, list))
}

// starting is why a daemon that starts or stops takes no work.
func (h *healthServer) starting() []base.Finding {
	if f := h.waits.Load(); f != nil {
		return []base.Finding{*f}
	}
	return []base.Finding{base.Find("daemon", base.Failed, "wait; the daemon's log shows its progress", "is starting or stopping")}
}

func (h *healthServer) readyz(w http.ResponseWriter, r *http.Request) {
	s := h.shown.Load()
	if s == nil || !h.ready.Load() {
		tell(w, "not ready", h.starting())
		return
	}
	tell(w, "not ready", s.readiness(r.Context(), s.now(), proofFresh))
}

func (h *healthServer) metrics(w http.ResponseWriter, r *http.Request) {
	s := h.shown.Load()
	if s == nil {
		tell(w, "no metrics", h.starting())
		return
	}
	s.metrics.ServeHTTP(w, r)
}

func answer(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(status)
	_, _ = w.Write([]byte(text + "\n")) // the client may be gone
}
