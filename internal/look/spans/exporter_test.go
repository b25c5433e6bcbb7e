package spans_test

import (
	"compress/gzip"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/waymarkio/waymark/internal/look/spans"
)

// receiver is a collector's OTLP receiver over HTTP, that reads with the official types.
func receiver(t *testing.T, status func(n int, spans []*tracepb.Span) int) (*httptest.Server, *collector) {
	t.Helper()
	got, n := new(collector), new(atomic.Int64)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body := io.Reader(r.Body)
		if r.Header.Get("Content-Encoding") == "gzip" {
			unzipped, err := gzip.NewReader(r.Body)
			if err != nil {
				http.Error(w, err.Error(), http.StatusBadRequest)
				return
			}
			body = unzipped
		}
		raw, err := io.ReadAll(body)
		request := new(tracepb.TracesData)
		if err == nil {
			err = proto.Unmarshal(raw, request)
		}
		if err != nil || r.URL.Path != "/v1/traces" {
			http.Error(w, "no traces", http.StatusBadRequest)
			return
		}
		var all []*tracepb.Span
		for _, resource := range request.GetResourceSpans() {
			for _, scope := range resource.GetScopeSpans() {
				all = append(all, scope.GetSpans()...)
			}
		}
		if code := status(int(n.Add(1)), all); code != http.StatusOK {
			http.Error(w, "not now", code)
			return
		}
		_ = got.UploadTraces(r.Context(), request.GetResourceSpans())
		w.Header().Set("Content-Type", "application/x-protobuf")
	}))
	t.Cleanup(server.Close)
	return server, got
}

func overHTTP(t *testing.T, url string) *spans.HTTPClient {
	t.Helper()
	client, err := spans.NewHTTPClient(url, noVariable)
	require.NoError(t, err)
	t.Cleanup(client.Close)
	return client
}

func TestExport_CollectorAway_Waits(t *testing.T) {
	t.Parallel()
	server, got := receiver(t, func(n int, _ []*tracepb.Span) int {
		if n <= 2 {
			return http.StatusServiceUnavailable
		}
		return http.StatusOK
	})
	all := recovered(t).all(spans.Options{})
	exporter := spans.NewExporter(overHTTP(t, server.URL), spans.ExporterConfig{Service: "waymark", Fleet: "default"}, zerolog.Nop())
	require.NoError(t, exporter.Export(t.Context(), all))
	require.Len(t, got.all(), len(all))
	require.EqualValues(t, len(all), exporter.Sent.Load())
	require.EqualValues(t, 2, exporter.Failures.Load())
	for i, s := range got.all() {
		require.True(t, proto.Equal(all[i], s), "it arrives as it was sent")
	}
}

func TestExport_PatienceOver_Fails(t *testing.T) {
	t.Parallel()
	server, _ := receiver(t, func(int, []*tracepb.Span) int { return http.StatusUnauthorized })
	exporter := spans.NewExporter(overHTTP(t, server.URL), spans.ExporterConfig{Patience: time.Second}, zerolog.Nop())
	err := exporter.Export(t.Context(), recovered(t).all(spans.Options{}))
	require.ErrorIs(t, err, spans.ErrCollector)
	require.ErrorContains(t, err, "401")

	ctx, cancel := context.WithCancelCause(t.Context())
	stopped := errors.New("stopped")
	cancel(stopped)
	exporter = spans.NewExporter(overHTTP(t, server.URL), spans.ExporterConfig{}, zerolog.Nop())
	require.ErrorIs(t, exporter.Export(ctx, recovered(t).all(spans.Options{})), stopped)
}

func TestExport_RefusedSpan_SkippedAlone(t *testing.T) {
	t.Parallel()
	server, got := receiver(t, func(_ int, all []*tracepb.Span) int {
		for _, s := range all {
			if s.GetName() == "execute_tool search" {
				return http.StatusBadRequest
			}
		}
		return http.StatusOK
	})
	all := recovered(t).all(spans.Options{})
	exporter := spans.NewExporter(overHTTP(t, server.URL), spans.ExporterConfig{}, zerolog.Nop())
	require.NoError(t, exporter.Export(t.Context(), all))
	require.Len(t, got.all(), len(all)-1)
	require.EqualValues(t, 1, exporter.Dropped.Load())
	require.Zero(t, exporter.Failures.Load())
}
