package spans

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"

	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"

	"github.com/waymarkio/waymark/schema"
)

// MaxLine bounds a line of a file of events, in bytes.
const MaxLine = 64 << 20

// Single exports whole runs once, from their first event.
type Single struct {
	fleet    string
	opts     Options
	keys     func(context.Context) (*schema.Keys, error)
	export   func(context.Context, []*tracepb.Span) error
	trackers map[string]*Tracker
	batch    []*tracepb.Span
}

// NewSingle returns a single export. keys returns the keys that verify control events.
func NewSingle(fleet string, opts Options, keys func(context.Context) (*schema.Keys, error), export func(context.Context, []*tracepb.Span) error) *Single {
	return &Single{fleet: fleet, opts: opts, keys: keys, export: export, trackers: make(map[string]*Tracker)}
}

// Take takes the next record of a run.
func (s *Single) Take(ctx context.Context, run string, rec *schema.Record) error {
	t := s.trackers[run]
	if t == nil {
		t = NewTracker(s.fleet, run, s.opts)
		s.trackers[run] = t
	}
	keys, err := s.keys(ctx)
	if err != nil {
		return err
	}
	ended, _ := t.Apply(keys, rec)
	s.batch = append(s.batch, ended...)
	if len(s.batch) < batchSpans {
		return nil
	}
	return s.Finish(ctx)
}

// Finish exports the ended spans.
func (s *Single) Finish(ctx context.Context) error {
	for len(s.batch) > 0 {
		n := min(len(s.batch), batchSpans)
		if err := s.export(ctx, s.batch[:n]); err != nil {
			return err
		}
		s.batch = s.batch[n:]
	}
	return nil
}

// Runs returns the number of runs seen.
func (s *Single) Runs() int { return len(s.trackers) }

// Open returns the number of spans that have begun but not ended.
func (s *Single) Open() int {
	n := 0
	for _, t := range s.trackers {
		n += t.Open()
	}
	return n
}

// ReadFile calls yield for each event of a file with one structured CloudEvent per line, in order.
func ReadFile(path string, yield func(run string, rec *schema.Record) error) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }() // it was only read
	return readEvents(f, path, yield)
}

func readEvents(r io.Reader, name string, yield func(run string, rec *schema.Record) error) error {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, MaxLine)
	header := map[string][]string{"Content-Type": {schema.ContentTypeStructured}}
	n := 0
	for lines.Scan() {
		n++
		if len(lines.Bytes()) == 0 {
			continue
		}
		rec := schema.Record{Stream: schema.StreamSequence(n), Header: header, Body: append([]byte(nil), lines.Bytes()...)}
		e, err := schema.Decode(rec.Header, rec.Body)
		if err != nil {
			return fmt.Errorf("%s: line %d: %w", name, n, err)
		}
		if err := yield(e.Subject, &rec); err != nil {
			return err
		}
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("%s: line %d: %w", name, n+1, err)
	}
	return nil
}
