package nemesis_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/rs/zerolog"

	"github.com/waymarkio/waymark/internal/harness/natstest"
	"github.com/waymarkio/waymark/internal/nats/natsd"
)

// Variables that make the test's program a process of the world. Their values are the settings as JSON.
const (
	NodeVariable     = "WAYMARK_NEMESIS_NODE"
	ExecutorVariable = "WAYMARK_NEMESIS_EXECUTOR"
)

// MetricsVariable makes such a process serve its resource usage (memory, goroutines, open files)
// like a daemon, on a free port that [Ready] names. Its value is any text.
const MetricsVariable = "WAYMARK_NEMESIS_METRICS"

// startLimit bounds the start of a process. A cluster's node may have to recover much, on a machine that is busy.
const startLimit = 2 * time.Minute

// NodeSettings are a nats-server's.
type NodeSettings struct {
	StateDir string `json:"state_dir"`
	Port     int    `json:"port"`
	// Interval syncs at the server's default interval, and not each message: Waymark must not run on that.
	Interval bool `json:"interval,omitzero"`
	// MaxStore bounds the store in bytes; 0 means the server's choice.
	MaxStore int64 `json:"max_store,omitzero"`
	// Ping is how often a silent connection is pinged, in milliseconds; 0 means natsd's default.
	Ping    int64             `json:"ping_ms,omitzero"`
	Cluster *natstest.Cluster `json:"cluster,omitzero"`
}

// options are those of its server.
func (s *NodeSettings) options(o *server.Options) {
	if s.MaxStore > 0 {
		o.JetStreamMaxStore = s.MaxStore
	}
	if s.Ping > 0 {
		o.PingInterval = time.Duration(s.Ping) * time.Millisecond
	}
	if s.Cluster != nil {
		s.Cluster.Options(o)
	}
}

// Ready is the one line that a process writes when it has begun, or cannot.
type Ready struct {
	URL string `json:"url,omitzero"`
	// Unclean says that the server's process before this one did not stop cleanly.
	Unclean bool `json:"unclean,omitzero"`
	// Metrics is the address of its metrics.
	Metrics string `json:"metrics,omitzero"`
	Error   string `json:"error,omitzero"`
}

// runRole is a process of the world: a server or an executor, as its environment says. It ends with ctx, and when standard input ends: then its parent has exited.
func runRole(ctx context.Context, getenv func(string) string, stdin io.Reader, stdout, stderr io.Writer) int {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	// A read that never ends cannot be awaited: this goroutine lives as long as the process.
	go func() {
		_, _ = io.Copy(io.Discard, stdin)
		cancel()
	}()
	log := zerolog.New(stderr).With().Timestamp().Logger()
	metrics, stop, err := "", func() error { return nil }, error(nil)
	if getenv(MetricsVariable) != "" {
		metrics, stop, err = serveMetrics(ctx)
	}
	switch {
	case err != nil:
	case getenv(NodeVariable) != "":
		err = runNode(ctx, getenv(NodeVariable), metrics, stdout, log)
	case getenv(ExecutorVariable) != "":
		err = runExecutor(ctx, getenv(ExecutorVariable), metrics, stdout, log)
	default:
		err = errors.New("it has no role: set " + NodeVariable + " or " + ExecutorVariable)
	}
	if err = errors.Join(err, stop()); err != nil {
		log.Error().Err(err).Msg("ended")
		return 1
	}
	return 0
}

// serveMetrics serves this process's resource usage, in Prometheus' form, until it is stopped.
func serveMetrics(ctx context.Context) (url string, stop func() error, err error) {
	var lc net.ListenConfig
	listener, err := lc.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", func() error { return nil }, err
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	server := &http.Server{Handler: promhttp.HandlerFor(registry, promhttp.HandlerOpts{}), ReadHeaderTimeout: time.Second}
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = server.Serve(listener) // until it is closed
	}()
	return "http://" + listener.Addr().String() + "/metrics", func() error {
		err := server.Close()
		<-served
		return err
	}, nil
}

func say(stdout io.Writer, r Ready) error {
	line, err := json.Marshal(r)
	if err != nil {
		return err
	}
	_, err = stdout.Write(append(line, '\n'))
	return err
}

// runNode serves until ctx ends, and stops cleanly.
func runNode(ctx context.Context, settings, metrics string, stdout io.Writer, log zerolog.Logger) error {
	var s NodeSettings
	if err := json.Unmarshal([]byte(settings), &s); err != nil {
		return fmt.Errorf("%s: %w", NodeVariable, err)
	}
	cfg := natsd.Config{
		StateDir: s.StateDir, Port: s.Port, Options: s.options,
		// It is stopped while others of its cluster are gone, and may not wait for them.
		StopTimeout: time.Minute,
	}
	if s.Interval {
		cfg.Sync = natsd.SyncInterval
	}
	begin, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	server, err := natsd.Start(begin, cfg, log)
	if err != nil {
		return errors.Join(err, say(stdout, Ready{Error: err.Error()}))
	}
	if err := say(stdout, Ready{URL: server.URL(), Unclean: server.UncleanStart(), Metrics: metrics}); err != nil {
		return errors.Join(err, server.Close())
	}
	if err = server.WaitForShutdown(ctx); err == nil {
		err = errors.New("the server stopped by itself")
	}
	if ctx.Err() != nil {
		err = nil // it was asked to
	}
	return errors.Join(err, server.Close())
}
