package events

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/rs/zerolog"
	"golang.org/x/sync/errgroup"

	"github.com/waymarkio/waymark/internal/base/output"
	"github.com/waymarkio/waymark/internal/cli/base"
	"github.com/waymarkio/waymark/internal/look/failure"
	"github.com/waymarkio/waymark/internal/look/spans"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// OtelCmd is waymark otel.
type OtelCmd struct {
	All       bool     `help:"Without a saved position, begin with the oldest kept event."`
	NoFollow  bool     `help:"Stop at the end of the log."`
	Endpoint  string   `placeholder:"URL" help:"Collector, such as http://localhost:4318 (OTEL_EXPORTER_OTLP_ENDPOINT)."`
	Content   bool     `help:"Include content: tasks, messages, arguments, results, error messages."`
	Label     []string `placeholder:"KEY" help:"Include this label; may be repeated."`
	Service   string   `default:"waymark" placeholder:"NAME" environ:"OTEL_SERVICE_NAME" help:"service.name (OTEL_SERVICE_NAME; default: waymark)."`
	Position  string   `placeholder:"FILE" environ:"WAYMARK_OTEL_POSITION" help:"File with the exported position (WAYMARK_OTEL_POSITION; default: in the state directory)."`
	LogLevel  string   `default:"info" placeholder:"LEVEL" environ:"WAYMARK_LOG_LEVEL" help:"debug, info, warn or error (WAYMARK_LOG_LEVEL; default: info)."`
	LogFormat string   `default:"auto" enum:"auto,console,json" placeholder:"FORMAT" environ:"WAYMARK_LOG_FORMAT" help:"auto, console or json (WAYMARK_LOG_FORMAT; default: auto)."`
}

// Help is the text below the flags.
func (OtelCmd) Help() string {
	return `A run is a trace; its epochs, turns, model calls and tool calls are spans, sent when they have ended. A span exported twice has ` +
		`the same ids.

Examples:
  waymark otel --endpoint http://localhost:4318                    all runs, from now on
  waymark otel --endpoint http://localhost:4318 --all --no-follow  what the log has, once`
}

// hintCollector is the next step if the collector does not answer.
const hintCollector = "check that the collector runs and that --endpoint names its OTLP receiver over HTTP (port 4318; 4317 is gRPC's)"

// oncePatience is how long a one-time export waits for the collector.
const oncePatience = 20 * time.Second

// Run exports until Ctrl-C, or to the end of the log.
func (c OtelCmd) Run(ctx context.Context, a *base.App) error {
	log, err := base.NewLogger(a.Stderr, c.LogLevel, c.LogFormat)
	if err != nil {
		return err
	}
	client, err := spans.NewHTTPClient(c.Endpoint, a.Getenv)
	if err != nil {
		return failure.New(failure.Usage, "see: waymark otel --help", "%v", err)
	}
	defer client.Close()
	cl, err := a.Connect(ctx, nats.MaxReconnects(-1), nats.ReconnectWait(time.Second))
	if err != nil {
		return err
	}
	return cl.WithReader(ctx, func(fleet *publisher.Reader) error {
		err := c.follow(ctx, a, cl, fleet, c.exporter(a, client, log), log)
		switch {
		case ctx.Err() == nil:
			return err
		case c.NoFollow:
			return errors.Join(err, context.Cause(ctx)) // it should have sent everything
		case err != nil && !errors.Is(err, context.Canceled) && !errors.Is(err, context.Cause(ctx)):
			log.Warn().Err(err).Msg("stopped with unsent spans; the next export sends them")
		}
		return nil
	})
}

func (c OtelCmd) exporter(a *base.App, client spans.Client, log zerolog.Logger) *spans.Exporter {
	config := spans.ExporterConfig{
		Service: c.Service, Version: base.Versions().Waymark, Fleet: a.Fleet,
		Hint: hintCollector,
	}
	if c.NoFollow {
		config.Patience = oncePatience
	}
	return spans.NewExporter(client, config, log)
}

func (c OtelCmd) options() spans.Options { return spans.Options{Content: c.Content, Labels: c.Label} }

// collectorError adds the next step to a failed export.
func collectorError(err error) error {
	if !errors.Is(err, spans.ErrCollector) {
		return err
	}
	return &failure.Error{
		Code: failure.Unavailable, What: err.Error(), Own: true, Err: err,
		Hint: hintCollector + "; spans sent again keep their ids",
	}
}

// follow exports all runs of the fleet.
func (c OtelCmd) follow(ctx context.Context, a *base.App, cl *base.Client, fleet *publisher.Reader, exporter *spans.Exporter, log zerolog.Logger) error {
	js, settings, err := cl.Settings(ctx)
	if err != nil {
		return err
	}
	path := c.Position
	if path == "" {
		dir, err := a.StateDirectory()
		if err != nil {
			return fmt.Errorf("%w; or name a file with --position", err)
		}
		path = filepath.Join(dir, "otel-"+a.Fleet+".json")
	}
	positions, err := spans.OpenPositions(path, a.Fleet)
	if err != nil {
		return positionError(err)
	}
	defer func() {
		if err := positions.Close(); err != nil {
			log.Warn().Err(err).Msg("could not release the position's lock")
		}
	}()
	if _, ok := positions.Get(0); !ok && c.NoFollow && !c.All {
		return failure.New(failure.Usage, "add --all to export kept events, or omit --no-follow to export new ones",
			"--no-follow would export nothing: there is no saved position, so the export begins at the end of the log")
	}
	var removed atomic.Int64
	group, ctx := errgroup.WithContext(ctx)
	for shard := range settings.Shards {
		group.Go(func() error {
			return spans.NewFeed(spans.FeedConfig{
				Names: schema.NamesOf(a.Fleet, shard), JetStream: js, History: historyOf(fleet), Keys: fleet.Keys, Export: exporter.Export,
				Positions: positions, All: c.All, NoFollow: c.NoFollow, Options: c.options(),
				Removed: func(string) { removed.Add(1) },
			}, log).Run(ctx)
		})
	}
	if !c.NoFollow {
		log.Info().Str("fleet", a.Fleet).Str("position", path).Msg("exporting spans")
	}
	err = group.Wait()
	log.Info().Int64("spans", exporter.Sent.Load()).Int64("dropped", exporter.Dropped.Load()).Int64("failures", exporter.Failures.Load()).
		Int64("removed_runs", removed.Load()).Msg("stopped exporting spans")
	if c.NoFollow && err == nil && !a.Quiet {
		what := "exported " + output.Plural(exporter.Sent.Load(), "span")
		if n := removed.Load(); n > 0 {
			what += "; " + output.Plural(n, "removed run") + " omitted"
		}
		_, err = fmt.Fprintln(a.Stdout, what)
	}
	return positionError(collectorError(err))
}

func positionError(err error) error {
	if !errors.Is(err, spans.ErrPosition) {
		return err
	}
	return &failure.Error{
		Code: failure.Conflict, What: err.Error(), Own: true, Err: err,
		Hint: "stop the other process, or name another file with --position; to start over, move the file away and start with --all (spans exported again keep their ids) or without it",
	}
}

// historyOf reads a run from the daemon.
func historyOf(fleet *publisher.Reader) func(context.Context, string, func(schema.Record) error) error {
	return func(ctx context.Context, run string, yield func(schema.Record) error) error {
		err := fleet.Events(ctx, run, yield)
		switch {
		case errors.Is(err, publisher.ErrRunNotFound), errors.Is(err, publisher.ErrRunErased):
			return fmt.Errorf("%w: %w", spans.ErrNoRun, err)
		case errors.Is(err, publisher.ErrIncomplete):
			return fmt.Errorf("%w: %w", spans.ErrIncomplete, err)
		}
		return err
	}
}
