package spans

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

const (
	// defaultCollector is the default collector address of OTLP exporters.
	defaultCollector = "http://localhost:4318"
	tracesPath       = "/v1/traces"
	// tracesOnly and allSignals are prefixes of variable names.
	tracesOnly   = "OTEL_EXPORTER_OTLP_TRACES_"
	allSignals   = "OTEL_EXPORTER_OTLP_"
	protobufType = "application/x-protobuf"
	// uploadTimeout bounds one request, unless a variable sets another value.
	uploadTimeout = 10 * time.Second
	// maxAnswer bounds how much of a collector's answer is read, and maxReason how much of it an error shows.
	maxAnswer = 1 << 20
	maxReason = 1 << 10
)

// HTTPClient sends spans by OTLP over HTTP, as protobuf. It tries once and is safe for concurrent use.
type HTTPClient struct {
	address string
	header  http.Header
	gzip    bool
	client  http.Client
}

// NewHTTPClient returns a client of the collector at endpoint. An empty endpoint means the one from
// OTEL_EXPORTER_OTLP_ENDPOINT. Headers, certificates, compression and timeout come from the standard variables of OTLP
// exporters (OTEL_EXPORTER_OTLP_HEADERS and so on). A variable with TRACES_ (OTEL_EXPORTER_OTLP_TRACES_HEADERS) has
// precedence. An invalid value is an error that names the variable.
func NewHTTPClient(endpoint string, getenv func(string) string) (*HTTPClient, error) {
	env := otlpEnv(getenv)
	if name, protocol := env.get("PROTOCOL"); protocol != "" && protocol != "http/protobuf" {
		return nil, fmt.Errorf("%s is %.40q, but spans are sent over HTTP as protobuf: set it to http/protobuf, and name the collector's HTTP receiver (port 4318)", name, protocol)
	}
	address, err := env.address(endpoint)
	if err != nil {
		return nil, err
	}
	c := &HTTPClient{header: http.Header{}}
	if user := address.User; user != nil { // errors contain addresses
		password, _ := user.Password()
		r := http.Request{Header: c.header}
		r.SetBasicAuth(user.Username(), password)
		address.User = nil
	}
	c.address = address.String()
	if err := env.headers(c.header); err != nil {
		return nil, err
	}
	c.header.Set("Content-Type", protobufType)
	switch name, compression := env.get("COMPRESSION"); compression {
	case "", "none":
	case "gzip":
		c.gzip = true
		c.header.Set("Content-Encoding", "gzip")
	default:
		return nil, fmt.Errorf("%s is %.40q: use gzip or none", name, compression)
	}
	c.client.Timeout = uploadTimeout
	if name, timeout := env.get("TIMEOUT"); timeout != "" {
		ms, err := strconv.ParseUint(timeout, 10, 31)
		if err != nil || ms == 0 {
			return nil, fmt.Errorf("%s is %.40q: use milliseconds, such as 10000", name, timeout)
		}
		c.client.Timeout = time.Duration(ms) * time.Millisecond
	}
	transport := &http.Transport{Proxy: http.ProxyFromEnvironment, ForceAttemptHTTP2: true, IdleConnTimeout: time.Minute}
	if transport.TLSClientConfig, err = env.tls(); err != nil {
		return nil, err
	}
	c.client.Transport = transport
	return c, nil
}

// Close closes idle connections.
func (c *HTTPClient) Close() { c.client.CloseIdleConnections() }

// UploadTraces implements [Client].
func (c *HTTPClient) UploadTraces(ctx context.Context, spans []*tracepb.ResourceSpans) error {
	// An ExportTraceServiceRequest is encoded like TracesData; its own package would import gRPC.
	body, err := proto.Marshal(&tracepb.TracesData{ResourceSpans: spans})
	if err != nil {
		return fmt.Errorf("encode spans: %w", err)
	}
	if c.gzip {
		var zipped bytes.Buffer
		w := gzip.NewWriter(&zipped)
		_, err := w.Write(body)
		if err = errors.Join(err, w.Close()); err != nil {
			return fmt.Errorf("compress spans: %w", err)
		}
		body = zipped.Bytes()
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, c.address, bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("request to %s: %w", c.address, err)
	}
	request.Header = c.header.Clone()
	request.Header.Set("User-Agent", "waymark")
	response, err := c.client.Do(request)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	answer, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	switch {
	case response.StatusCode < 200 || response.StatusCode > 299:
		reason := strings.ToValidUTF8(strings.TrimSpace(string(answer[:min(len(answer), maxReason)])), "")
		return &statusError{address: c.address, status: response.StatusCode, reason: reason}
	case err != nil:
		return fmt.Errorf("answer of %s: %w", c.address, err)
	case response.Header.Get("Content-Type") != protobufType:
		return nil
	}
	if dropped := partial(answer); dropped != nil {
		return dropped
	}
	return nil
}

// statusError is a collector's answer that refuses the spans.
type statusError struct {
	address string
	status  int
	reason  string
}

func (e *statusError) Error() string {
	return fmt.Sprintf("%s answers %d %s: %.1024q", e.address, e.status, http.StatusText(e.status), e.reason)
}

// partialError is a collector's report about spans that it accepted in part. They must not be sent again.
type partialError struct {
	rejected int64
	message  string
}

func (e *partialError) Error() string {
	return fmt.Sprintf("the collector rejected %d spans: %.1024q", e.rejected, e.message)
}

// partial reads the partial success of an ExportTraceServiceResponse: field 1, with rejected_spans (1) and
// error_message (2). It returns nil if there is none, and for invalid messages: the status already says that the spans
// were accepted.
func partial(answer []byte) *partialError {
	_, success := field(answer, 1)
	rejected, _ := field(success, 1)
	_, message := field(success, 2)
	if rejected == 0 && len(message) == 0 {
		return nil
	}
	return &partialError{rejected: int64(rejected), message: string(message)} //nolint:gosec // protobuf's int64
}

// field returns the value of a field of a protobuf message, which is a number or bytes; nothing beyond an unreadable one.
func field(message []byte, wanted protowire.Number) (value uint64, content []byte) {
	for len(message) > 0 {
		number, kind, n := protowire.ConsumeTag(message)
		if n < 0 {
			return value, content
		}
		message = message[n:]
		if n = protowire.ConsumeFieldValue(number, kind, message); n < 0 {
			return value, content
		}
		if number == wanted && kind == protowire.VarintType {
			value, _ = protowire.ConsumeVarint(message)
		}
		if number == wanted && kind == protowire.BytesType {
			content, _ = protowire.ConsumeBytes(message)
		}
		message = message[n:]
	}
	return value, content
}

// otlpEnv reads the standard variables of OTLP exporters.
type otlpEnv func(string) string

// get returns the value of a variable for traces, or else of the one for all signals, and the variable's name.
func (e otlpEnv) get(option string) (name, value string) {
	for _, prefix := range []string{tracesOnly, allSignals} {
		if value := strings.TrimSpace(e(prefix + option)); value != "" {
			return prefix + option, value
		}
	}
	return "", ""
}

// address returns the address for spans: an endpoint with a path unchanged, and a path below the endpoint of a variable
// for all signals.
func (e otlpEnv) address(endpoint string) (*url.URL, error) {
	name := "--endpoint"
	if endpoint == "" {
		name, endpoint = e.get("ENDPOINT")
	}
	if endpoint == "" {
		endpoint = defaultCollector
	}
	u, err := url.Parse(endpoint)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, fmt.Errorf("%s is not a valid address: write it as http://localhost:4318 or https://collector.example.com", name)
	}
	if name == allSignals+"ENDPOINT" || strings.Trim(u.Path, "/") == "" && name != tracesOnly+"ENDPOINT" {
		u = u.JoinPath(tracesPath)
	}
	return u, nil
}

// headers adds the headers of a variable: key=value pairs separated by commas, with percent-encoded values. Errors do
// not show values, because they may be secret.
func (e otlpEnv) headers(header http.Header) error {
	name, list := e.get("HEADERS")
	for i, pair := range strings.Split(list, ",") {
		if strings.TrimSpace(pair) == "" {
			continue
		}
		key, value, ok := strings.Cut(pair, "=")
		key = strings.TrimSpace(key)
		value, err := url.PathUnescape(strings.TrimSpace(value))
		if !ok || key == "" || err != nil {
			return fmt.Errorf("%s: its header number %d cannot be read: write key=value, with , and %% in values as %%2C and %%25", name, i+1)
		}
		header.Set(key, value)
	}
	return nil
}

// tls returns the certificates named by variables; nil for the system's.
func (e otlpEnv) tls() (*tls.Config, error) {
	rootsName, roots := e.get("CERTIFICATE")
	certName, cert := e.get("CLIENT_CERTIFICATE")
	keyName, key := e.get("CLIENT_KEY")
	if roots == "" && cert == "" && key == "" {
		return nil, nil
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if roots != "" {
		text, err := os.ReadFile(roots)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", rootsName, err)
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(text) {
			return nil, fmt.Errorf("%s: %s contains no PEM certificate", rootsName, roots)
		}
	}
	switch {
	case cert != "" && key != "":
		pair, err := tls.LoadX509KeyPair(cert, key)
		if err != nil {
			return nil, fmt.Errorf("%s and %s: %w", certName, keyName, err)
		}
		config.Certificates = []tls.Certificate{pair}
	case cert != "":
		return nil, fmt.Errorf("%s names a certificate without its key: set OTEL_EXPORTER_OTLP_CLIENT_KEY", certName)
	case key != "":
		return nil, fmt.Errorf("%s names a key without its certificate: set OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE", keyName)
	}
	return config, nil
}
