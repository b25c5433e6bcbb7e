package spans_test

import (
	"bytes"
	"compress/gzip"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/waymarkio/waymark/internal/look/spans"
)

// noVariable is an environment without variables.
func noVariable(string) string { return "" }

// variables is an environment that has them alone.
func variables(pairs map[string]string) func(string) string {
	return func(name string) string { return pairs[name] }
}

// posted is a request that a collector got.
type posted struct {
	path   string
	header http.Header
	body   []byte
}

// recorder is a collector that keeps requests and gives each the answer.
func recorder(t *testing.T, answer func(w http.ResponseWriter)) (*httptest.Server, <-chan posted) {
	t.Helper()
	got := make(chan posted, 8)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		got <- posted{r.URL.Path, r.Header, body}
		answer(w)
	}))
	t.Cleanup(server.Close)
	return server, got
}

func accepts(http.ResponseWriter) {}

// oneSpan is the smallest export.
func oneSpan() []*tracepb.ResourceSpans {
	return []*tracepb.ResourceSpans{{ScopeSpans: []*tracepb.ScopeSpans{{Spans: []*tracepb.Span{{Name: "turn"}}}}}}
}

func TestHTTPClient_EachWayToNameACollector_PostsToItsPath(t *testing.T) {
	t.Parallel()
	const all, traces = "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
	for _, c := range []struct{ variable, flag, path, want string }{
		{"", "flag", "", "/v1/traces"},
		{"", "flag", "/", "/v1/traces"},
		{"", "flag", "/elsewhere", "/elsewhere"},
		{all, "", "", "/v1/traces"},
		{all, "", "/base/", "/base/v1/traces"},
		{traces, "", "", "/"},
		{traces, "", "/mine", "/mine"},
	} {
		t.Run(c.variable+c.flag+c.path, func(t *testing.T) {
			t.Parallel()
			server, got := recorder(t, accepts)
			server.Start()
			environment, endpoint := map[string]string{all: "http://127.0.0.1:1"}, ""
			if c.flag != "" {
				endpoint = server.URL + c.path
			} else {
				environment[c.variable] = server.URL + c.path
			}
			client, err := spans.NewHTTPClient(endpoint, variables(environment))
			require.NoError(t, err)
			defer client.Close()
			require.NoError(t, client.UploadTraces(t.Context(), oneSpan()))
			request := <-got
			require.Equal(t, c.want, request.path)
			require.Equal(t, "application/x-protobuf", request.header.Get("Content-Type"))
			sent := new(tracepb.TracesData)
			require.NoError(t, proto.Unmarshal(request.body, sent))
			require.True(t, proto.Equal(&tracepb.TracesData{ResourceSpans: oneSpan()}, sent))
		})
	}
}

func TestHTTPClient_HeadersCompressionAndLogin_AreSent(t *testing.T) {
	t.Parallel()
	server, got := recorder(t, accepts)
	server.Start()
	client, err := spans.NewHTTPClient("http://ann:secret@"+server.Listener.Addr().String(), variables(map[string]string{
		"OTEL_EXPORTER_OTLP_HEADERS":            "left-out=1",
		"OTEL_EXPORTER_OTLP_TRACES_HEADERS":     "x-tenant = a%2Cb , x-more=c=d",
		"OTEL_EXPORTER_OTLP_TRACES_COMPRESSION": "gzip",
	}))
	require.NoError(t, err)
	defer client.Close()
	require.NoError(t, client.UploadTraces(t.Context(), oneSpan()))
	request := <-got
	require.Equal(t, "a,b", request.header.Get("X-Tenant"))
	require.Equal(t, "waymark", request.header.Get("User-Agent"))
	require.Equal(t, "c=d", request.header.Get("X-More"))
	require.Empty(t, request.header.Get("Left-Out"))
	require.Equal(t, "Basic YW5uOnNlY3JldA==", request.header.Get("Authorization"))
	unzipped, err := gzip.NewReader(bytes.NewReader(request.body))
	require.NoError(t, err)
	body, err := io.ReadAll(unzipped)
	require.NoError(t, err)
	require.NoError(t, proto.Unmarshal(body, new(tracepb.TracesData)))

	server.Close()
	err = client.UploadTraces(t.Context(), oneSpan())
	require.Error(t, err)
	require.NotContains(t, err.Error(), "secret")
	require.NotContains(t, err.Error(), "ann")
}

func TestHTTPClient_OwnCertificates_AreUsed(t *testing.T) {
	t.Parallel()
	server, got := recorder(t, accepts)
	server.TLS = &tls.Config{MinVersion: tls.VersionTLS12, ClientAuth: tls.RequireAnyClientCert}
	server.StartTLS()
	dir := t.TempDir()
	write := func(name, kind string, der []byte) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600))
		return path
	}
	pair := server.TLS.Certificates[0]
	key, err := x509.MarshalPKCS8PrivateKey(pair.PrivateKey)
	require.NoError(t, err)
	environment := map[string]string{}
	upload := func() error {
		client, err := spans.NewHTTPClient(server.URL, variables(environment))
		require.NoError(t, err)
		defer client.Close()
		return client.UploadTraces(t.Context(), oneSpan())
	}
	require.ErrorContains(t, upload(), "certificate signed by unknown authority")
	cert := write("cert.pem", "CERTIFICATE", pair.Certificate[0])
	environment["OTEL_EXPORTER_OTLP_CERTIFICATE"] = cert
	require.Error(t, upload(), "the collector wants a certificate")
	environment["OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE"] = cert
	environment["OTEL_EXPORTER_OTLP_CLIENT_KEY"] = write("key.pem", "PRIVATE KEY", key)
	require.NoError(t, upload())
	require.Len(t, got, 1)
}

func TestHTTPClient_Timeout_EndsARequest(t *testing.T) {
	t.Parallel()
	end := make(chan struct{})
	server, _ := recorder(t, func(http.ResponseWriter) { <-end })
	server.Start()
	defer close(end)
	client, err := spans.NewHTTPClient(server.URL, variables(map[string]string{"OTEL_EXPORTER_OTLP_TIMEOUT": "50"}))
	require.NoError(t, err)
	defer client.Close()
	require.ErrorContains(t, client.UploadTraces(t.Context(), oneSpan()), "Client.Timeout")
}

func TestHTTPClient_UnusableVariables_AreNamedWithTheNextStep(t *testing.T) {
	t.Parallel()
	missing := filepath.Join(t.TempDir(), "missing.pem")
	empty := filepath.Join(t.TempDir(), "empty.pem")
	require.NoError(t, os.WriteFile(empty, nil, 0o600))
	for _, c := range []struct{ name, value, want string }{
		{"PROTOCOL", "grpc", `is "grpc", but spans are sent over HTTP as protobuf: set it to http/protobuf`},
		{"TRACES_PROTOCOL", "http/json", "set it to http/protobuf"},
		{"ENDPOINT", "collector:4317", "is not a valid address: write it as http://localhost:4318"},
		{"TRACES_ENDPOINT", "unix:///run/geheim", "is not a valid address"},
		{"HEADERS", "a=b,geheim", "its header number 2 cannot be read: write key=value"},
		{"TRACES_HEADERS", "a=%geheim", "its header number 1 cannot be read"},
		{"TIMEOUT", "10s", "use milliseconds"},
		{"TIMEOUT", "0", "use milliseconds"},
		{"COMPRESSION", "zstd", "use gzip or none"},
		{"CERTIFICATE", missing, "missing.pem"},
		{"CERTIFICATE", empty, "contains no PEM certificate"},
		{"CLIENT_CERTIFICATE", empty, "without its key: set OTEL_EXPORTER_OTLP_CLIENT_KEY"},
		{"TRACES_CLIENT_KEY", empty, "without its certificate: set OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE"},
	} {
		name := "OTEL_EXPORTER_OTLP_" + c.name
		_, err := spans.NewHTTPClient("", variables(map[string]string{name: c.value}))
		require.ErrorContains(t, err, name)
		require.ErrorContains(t, err, c.want)
		require.NotContains(t, err.Error(), "geheim")
	}
}

// partialSuccess is the answer of a collector that dropped spans.
func partialSuccess(rejected uint64, message string) []byte {
	inner := protowire.AppendVarint(protowire.AppendTag(nil, 1, protowire.VarintType), rejected)
	inner = protowire.AppendString(protowire.AppendTag(inner, 2, protowire.BytesType), message)
	return protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), inner)
}

func TestExporter_PartialSuccess_IsNotSentAgain(t *testing.T) {
	t.Parallel()
	server, got := recorder(t, func(w http.ResponseWriter) {
		w.Header().Set("Content-Type", "application/x-protobuf")
		_, _ = w.Write(partialSuccess(2, "too old"))
	})
	server.Start()
	client := overHTTP(t, server.URL)
	err := client.UploadTraces(t.Context(), oneSpan())
	require.EqualError(t, err, `the collector rejected 2 spans: "too old"`)
	<-got
	exporter := spans.NewExporter(client, spans.ExporterConfig{Patience: time.Second}, zerolog.Nop())
	require.NoError(t, exporter.Export(t.Context(), oneSpan()[0].GetScopeSpans()[0].GetSpans()))
	require.Len(t, got, 1)
	require.Zero(t, exporter.Failures.Load())
}

func TestHTTPClient_AnswersThatAreNoPartialSuccess_AreSuccess(t *testing.T) {
	t.Parallel()
	for _, body := range [][]byte{nil, {0xff}, {0x0a, 0x7f}, partialSuccess(0, ""), []byte("ok")} {
		server, _ := recorder(t, func(w http.ResponseWriter) {
			w.Header().Set("Content-Type", "application/x-protobuf")
			_, _ = w.Write(body)
		})
		server.Start()
		require.NoError(t, overHTTP(t, server.URL).UploadTraces(t.Context(), oneSpan()), "%q", body)
	}
}
