package main

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/errgroup"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

func main() {
	shards := flag.Int("shards", 8, "shards of the fleet")
	collector := flag.String("collector", "http://localhost:4318/v1/traces", "OTLP receiver over HTTP")
	flag.Parse()
	fmt.Fprintln(os.Stderr, export(context.Background(), *shards, *collector))
	os.Exit(1)
}

// export returns when it cannot go on.
func export(ctx context.Context, shards int, collector string) error {
	reader, err := publisher.NewReader(ctx, publisher.Config{})
	if err != nil {
		return err
	}
	js, err := jetstream.New(reader.Conn())
	if err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	for shard := range shards {
		o := observer{reader, schema.NamesOf(reader.Name(), shard), collector, map[string]*run{}}
		group.Go(func() error { return o.follow(ctx, js) })
	}
	return group.Wait()
}

// object is one of OTLP's JSON form.
type object = map[string]any

// observer exports the runs of one shard.
type observer struct {
	reader    *publisher.Reader
	names     schema.Names
	collector string
	runs      map[string]*run
}

func (o *observer) follow(ctx context.Context, js jetstream.JetStream) error {
	consumer, err := js.Consumer(ctx, o.names.EventStream(), "observer")
	if err != nil {
		return fmt.Errorf("%s: durable consumer observer: %w; make it with the daemon's key", o.names.EventStream(), err)
	}
	for ctx.Err() == nil {
		messages, err := consumer.Fetch(256, jetstream.FetchMaxWait(time.Second))
		if err != nil {
			return err
		}
		var ended []object
		var taken []jetstream.Msg
		for m := range messages.Messages() {
			spans, err := o.take(ctx, m)
			if err != nil {
				return err
			}
			ended, taken = append(ended, spans...), append(taken, m)
		}
		if err := cmp.Or(o.send(ctx, ended), messages.Error()); err != nil {
			return err
		}
		for _, m := range taken {
			_ = m.Ack() // a lost acknowledgement brings the message again
		}
	}
	return nil
}

// take returns the spans that end with a message. A run that this process does not know is read from its first event, and
// its spans are sent again: so nothing is missed that the daemon moved out of the log before it was read here.
func (o *observer) take(ctx context.Context, m jetstream.Msg) (ended []object, err error) {
	id := o.names.RunOfSubject(m.Subject())
	meta, err := m.Metadata()
	keys, kerr := o.reader.Keys(ctx)
	if err = errors.Join(err, kerr); err != nil || id == "" || id == schema.BarrierRun {
		return nil, err
	}
	rec := schema.NewRecord(schema.StreamSequence(meta.Sequence.Stream), m.Headers(), m.Data())
	rec.Stored = meta.Timestamp.UnixNano()
	if before, err := strconv.ParseUint(m.Headers().Get(jetstream.ExpectedLastSubjSeqHeader), 10, 64); err == nil {
		rec.Behind = schema.StreamSequence(before)
	}
	if r := o.runs[id]; r != nil {
		if rec.Stream <= r.head.Position.Stream {
			return nil, nil // the collector has accepted its spans
		}
		if ended, whole := r.apply(keys, &rec); whole {
			return ended, nil
		}
	}
	if len(o.runs) >= 8192 { // a bound of memory
		clear(o.runs)
	}
	r := &run{head: schema.NewHead(o.names.Fleet, id)}
	err = o.reader.Events(ctx, id, func(old schema.Record) error {
		spans, _ := r.apply(keys, &old)
		ended = append(ended, spans...)
		return nil
	})
	switch {
	case errors.Is(err, publisher.ErrRunNotFound), errors.Is(err, publisher.ErrRunErased):
		return nil, nil
	case err != nil && !errors.Is(err, publisher.ErrIncomplete):
		return nil, err
	}
	o.runs[id] = r
	return ended, nil
}

// send returns when the collector accepted the spans. It drops a batch that the collector calls invalid.
func (o *observer) send(ctx context.Context, spans []object) error {
	if len(spans) == 0 {
		return nil
	}
	resource := object{"attributes": attributes("service.name", "waymark", "service.namespace", o.names.Fleet)}
	body, err := json.Marshal(object{"resourceSpans": []object{{"resource": resource, "scopeSpans": []object{{"spans": spans}}}}})
	if err != nil {
		return err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, o.collector, bytes.NewReader(body))
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", "application/json")
	client := http.Client{Timeout: 10 * time.Second}
	answer, err := client.Do(request)
	if err != nil {
		return err
	}
	defer func() { _ = answer.Body.Close() }() // only the status counts
	switch {
	case answer.StatusCode == http.StatusBadRequest:
		fmt.Fprintln(os.Stderr, "the collector calls spans invalid; dropped:", len(spans))
	case answer.StatusCode >= http.StatusMultipleChoices:
		return fmt.Errorf("%s answers %s", o.collector, answer.Status)
	}
	return nil
}

// run is what the spans of a run need besides its events.
type run struct {
	head        schema.Head
	order       schema.Order
	started     schema.RunStartedData
	began, turn int64 // when run and turn began, by the server's clock
}

// apply folds the run's next record, and returns the spans that end with it. Without older events it is not whole.
func (r *run) apply(keys *schema.Keys, rec *schema.Record) (ended []object, whole bool) {
	open := slices.Clone(r.head.OpenCalls)
	r.order.Next(&r.head, rec)
	v := r.head.Apply(keys, rec)
	if v.Kind != schema.Applied {
		return nil, v.Reason != schema.ReasonGap && v.Reason != schema.ReasonEpochAhead
	}
	r.began = cmp.Or(r.began, rec.Stored)
	root, turn := r.id(8, "run"), r.id(8, "turn", r.head.TurnEpoch, r.head.Turn)
	end := func(id, parent, operation, subject string, start int64, failure *schema.Error, more ...any) {
		more = append(more, "gen_ai.operation.name", operation, "gen_ai.agent.name", r.started.Agent, "waymark.run.id", r.head.Run)
		status := 0
		if failure != nil {
			status, more = 2, append(more, "error.type", failure.Type)
		}
		ended = append(ended, object{
			"traceId": r.id(16), "spanId": id, "parentSpanId": parent, "name": operation + " " + subject, "kind": map[string]int{"chat": 3}[operation],
			"startTimeUnixNano": strconv.FormatInt(start, 10), "endTimeUnixNano": strconv.FormatInt(rec.Stored, 10),
			"attributes": attributes(more...), "status": object{"code": status},
		})
	}
	call := func(ms int64, failure *schema.Error) {
		parent, name := root, ""
		if v.Call.Turn == r.head.Turn {
			parent = turn
		}
		if i := slices.IndexFunc(open, func(c schema.OpenCall) bool { return c.CallKey == v.Call }); i >= 0 {
			name = open[i].Name
		}
		end(r.id(8, "call", v.Event.ID), parent, "execute_tool", name, rec.Stored-1e6*ms, failure, "gen_ai.tool.name", name, "gen_ai.tool.call.id", v.Call.ToolCallID)
	}
	var failure *schema.Error
	switch d := v.Data.(type) {
	case *schema.RunStartedData:
		r.started = *d
	case *schema.TurnStartedData:
		r.turn = rec.Stored
	case *schema.TurnAnsweredData:
		if v.Opened {
			r.turn = rec.Stored - 1e6*d.DurationMS
		}
		u := cmp.Or(d.Usage, new(schema.Usage))
		end(r.id(8, "chat", v.Event.ID), turn, "chat", r.started.Model, rec.Stored-1e6*d.DurationMS, nil,
			"gen_ai.provider.name", r.started.Provider, "gen_ai.request.model", r.started.Model, "gen_ai.response.model", d.Model,
			"gen_ai.response.id", d.ResponseID, "gen_ai.usage.input_tokens", u.InputTokens, "gen_ai.usage.output_tokens", u.OutputTokens)
	case *schema.ToolReturnedData:
		call(d.DurationMS, nil)
	case *schema.ToolFailedData:
		call(d.DurationMS, &d.Error)
	case *schema.TurnEndedData:
		failure = d.Error
	case *schema.RunEndedData:
		end(root, "", "invoke_agent", r.started.Agent, r.began, d.Error, "waymark.run.status", d.Status)
	}
	if v.Over {
		end(turn, root, "turn", strconv.Itoa(int(r.head.Turn)), r.turn, failure)
	}
	return ended, true
}

// attributes are those of names and values in turn, without empty values.
func attributes(pairs ...any) (out []object) {
	for pair := range slices.Chunk(pairs, 2) {
		kind := "stringValue"
		if _, number := pair[1].(int64); number {
			kind = "intValue"
		}
		if value := fmt.Sprint(pair[1]); value != "" && value != "0" {
			out = append(out, object{"key": pair[0], "value": object{kind: value}})
		}
	}
	return out
}

// id is that of a span of the run, or of its trace.
func (r *run) id(bytes int, of ...any) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%#v", append(of, r.head.Fleet, r.head.Run)))
	return hex.EncodeToString(sum[:bytes])
}
