package spans

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	resourcepb "go.opentelemetry.io/proto/otlp/resource/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"

	"github.com/waymarkio/waymark/internal/base/pause"
)

const (
	// firstPause and longestPause bound the pauses between tries of one export.
	firstPause   = 500 * time.Millisecond
	longestPause = 30 * time.Second
	// complainEvery is how often an unavailable collector is logged.
	complainEvery = time.Minute
)

// Client sends spans, once: see [HTTPClient].
type Client interface {
	UploadTraces(ctx context.Context, spans []*tracepb.ResourceSpans) error
}

// ExporterConfig describes the source of the spans, and how long to try.
type ExporterConfig struct {
	// Service is the resource's service.name, and Version its service.version.
	Service, Version string
	// Fleet is the resource's service.namespace.
	Fleet string
	// Patience bounds the tries of one export; 0 means no bound.
	Patience time.Duration
	// Hint is logged with the first failure.
	Hint string
}

// Exporter sends spans until the collector has accepted them. It is safe for concurrent use.
type Exporter struct {
	client Client
	config ExporterConfig
	log    zerolog.Logger
	// Sent, Dropped and Failures count accepted spans, spans that the collector refused as invalid, and failed tries.
	Sent, Dropped, Failures atomic.Int64
}

// NewExporter returns an exporter.
func NewExporter(client Client, config ExporterConfig, log zerolog.Logger) *Exporter {
	return &Exporter{client: client, config: config, log: log}
}

// Export returns when the collector has accepted the spans, or has called them invalid: then they are dropped and
// counted. It returns an error that wraps [ErrCollector] when patience is over, and that of ctx when ctx ends.
func (e *Exporter) Export(ctx context.Context, spans []*tracepb.Span) error {
	if len(spans) == 0 {
		return nil
	}
	wait, began, complained := firstPause, time.Now(), time.Time{}
	for {
		err := e.client.UploadTraces(ctx, e.request(spans))
		switch verdict := judge(err); {
		case err == nil:
			e.Sent.Add(int64(len(spans)))
			return nil
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case verdict == taken:
			e.log.Warn().Err(err).Int("spans", len(spans)).Msg("the collector dropped spans")
			e.Sent.Add(int64(len(spans)))
			return nil
		case verdict == invalid && len(spans) == 1:
			e.log.Error().Err(err).Str("span", spans[0].GetName()).Hex("trace_id", spans[0].GetTraceId()).Msg("collector refused span; dropped")
			e.Dropped.Add(1)
			return nil
		case verdict == invalid:
			half := len(spans) / 2
			if err := e.Export(ctx, spans[:half]); err != nil {
				return err
			}
			return e.Export(ctx, spans[half:])
		}
		e.Failures.Add(1)
		if e.config.Patience > 0 && time.Since(began)+wait > e.config.Patience {
			return fmt.Errorf("%w within %s: %w", ErrCollector, e.config.Patience, err)
		}
		if time.Since(complained) >= complainEvery {
			complained = time.Now()
			e.log.Error().Err(err).Str("hint", e.config.Hint).Int("spans", len(spans)).Msg("collector does not accept spans; retrying")
		}
		if err := pause.For(ctx, wait/2+rand.N(wait)); err != nil { //nolint:gosec // no secret
			return err
		}
		wait = min(2*wait, longestPause)
	}
}

func (e *Exporter) request(spans []*tracepb.Span) []*tracepb.ResourceSpans {
	resource := attrs{}
	resource.text("service.name", e.config.Service)
	resource.text("service.namespace", e.config.Fleet)
	resource.text("service.version", e.config.Version)
	resource.text("waymark.fleet", e.config.Fleet)
	return []*tracepb.ResourceSpans{{
		Resource: &resourcepb.Resource{Attributes: resource},
		ScopeSpans: []*tracepb.ScopeSpans{{
			Scope: &commonpb.InstrumentationScope{Name: "github.com/waymarkio/waymark", Version: e.config.Version},
			Spans: spans,
		}},
	}}
}

// verdict is the meaning of a failed try.
type verdict int

const (
	// again: a later try may succeed.
	again verdict = iota
	// taken: the collector has accepted the valid spans; sending again would not help.
	taken
	// invalid: the collector would refuse the same bytes again.
	invalid
)

func judge(err error) verdict {
	if err == nil {
		return taken
	}
	if _, ok := errors.AsType[*partialError](err); ok {
		return taken
	}
	if answer, ok := errors.AsType[*statusError](err); ok {
		switch answer.status {
		case http.StatusBadRequest, http.StatusRequestEntityTooLarge, http.StatusUnprocessableEntity:
			return invalid
		}
	}
	return again
}
