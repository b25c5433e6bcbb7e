package cli

import (
	"context"
	"crypto/rand"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/rogpeppe/go-internal/testscript"

	"github.com/waymarkio/waymark/internal/nats/natsconn"
	"github.com/waymarkio/waymark/schema"
)

// scriptRun publishes a small run to the local server, as an executor without the SDK would:
//
//	agent RUN open     started, with a tool call under way
//	agent RUN done     complete
func scriptRun(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: agent RUN open|done")
	}
	ctx, cancel := context.WithTimeout(context.Background(), startLimit)
	defer cancel()
	end, err := natsconn.Discover(ctx, ts.Getenv("WAYMARK_STATE_DIR"))
	if err == nil {
		err = publishRun(ctx, end, args[0], args[1] == "open")
	}
	if err != nil {
		ts.Fatalf("%v", err)
	}
}

// scriptTakeover takes a run over: takeover RUN EXECUTOR [REASON].
func scriptTakeover(ts *testscript.TestScript, neg bool, args []string) {
	ctx, cancel := context.WithTimeout(context.Background(), startLimit)
	defer cancel()
	end, err := natsconn.Discover(ctx, ts.Getenv("WAYMARK_STATE_DIR"))
	ts.Check(err)
	nc, err := end.Connect()
	ts.Check(err)
	defer nc.Close()
	reason := schema.TakeoverRequest
	if len(args) > 2 {
		reason = args[2]
	}
	if err = takeOver(ctx, nc, args[0], args[1], reason); (err != nil) != neg {
		ts.Fatalf("takeover %v: %v", args, err)
	}
}

// takeOver takes a run of the default fleet over for an executor.
func takeOver(ctx context.Context, nc *nats.Conn, run, executor, reason string) error {
	body, err := json.Marshal(schema.RecoverRequest{Executor: executor, Reason: reason, RequestID: rand.Text(), View: schema.ViewHead})
	if err != nil {
		return err
	}
	reply, err := nc.RequestWithContext(ctx, schema.ServiceSubject(schema.VerbRecover, schema.DefaultFleet, run), body)
	if err == nil && reply.Header.Get(schema.HeaderError) != "" {
		err = fmt.Errorf("%s", reply.Data)
	}
	return err
}

func publishRun(ctx context.Context, end natsconn.Endpoint, run string, open bool) (err error) {
	closed := make(chan struct{})
	nc, err := end.Connect(nats.ClosedHandler(func(*nats.Conn) { close(closed) }))
	if err != nil {
		return err
	}
	defer func() {
		nc.Close()
		<-closed
	}()
	js, err := jetstream.New(nc)
	if err != nil {
		return err
	}
	events := []schema.Data{
		&schema.RunStartedData{Agent: "coder", Executor: "shell-test", Task: "mend the\x1b[31m roof", Labels: map[string]string{"team": "blue"}},
		&schema.TurnStartedData{Turn: 1, Messages: []schema.Message{textMessage("user", "mend the roof")}},
		&schema.ToolCalledData{ToolCallID: "call-1", Name: "hammer", Arguments: jsontext.Value(`{"nails":3}`), Replay: schema.ReplayHold},
	}
	if !open {
		events = append(events,
			&schema.ToolReturnedData{ToolCallID: "call-1", Result: jsontext.Value(`"three nails"`)},
			&schema.TurnEndedData{Turn: 1, Messages: []schema.Message{textMessage("assistant", "mended")}},
			&schema.RunEndedData{Status: string(schema.StatusCompleted), Summary: "the roof is mended"},
		)
	}
	w := schema.Writer{Fleet: schema.DefaultFleet, Run: run, Executor: "shell-test", Epoch: 1}
	last := uint64(0)
	for i, data := range events {
		turn := int32(1)
		if i == 0 || strings.HasPrefix(data.EventName(), "run.") {
			turn = 0
		}
		e, err := w.Event(data, turn, time.Now(), 0)
		if err != nil {
			return err
		}
		header, body := e.Encode()
		msg := &nats.Msg{Subject: schema.MappedSubject(schema.DefaultFleet, run), Header: header, Data: body}
		ack, err := js.PublishMsg(ctx, msg, jetstream.WithMsgID(e.ID), jetstream.WithExpectLastSequencePerSubject(last))
		if err != nil {
			return fmt.Errorf("publish %s: %w", e.ID, err)
		}
		last = ack.Sequence
		if err := w.Commit(e); err != nil {
			return err
		}
	}
	return nil
}

// scriptPublish publishes the events of a file to the local server, as the run's executor without the SDK would: publish
// RUN FILE. Each line is the name of an event, its turn where it has one, and its data: tool.called@1 {"name":"hammer"}.
// A line that begins with ! is an event that is lost on its way. A run that is there goes on where it stands.
func scriptPublish(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: publish RUN FILE")
	}
	ctx, cancel := context.WithTimeout(context.Background(), startLimit)
	defer cancel()
	events, err := parseScriptEvents(ts.ReadFile(args[1]))
	if err != nil {
		ts.Fatalf("%s: %v", args[1], err)
	}
	end, err := natsconn.Discover(ctx, ts.Getenv("WAYMARK_STATE_DIR"))
	if err == nil {
		err = publishEvents(ctx, end, args[0], events)
	}
	if err != nil {
		ts.Fatalf("%v", err)
	}
}

// scriptEvent is what a line of a script's file says.
type scriptEvent struct {
	data schema.Data
	turn int32
	lost bool
}

func parseScriptEvents(text string) (events []scriptEvent, err error) {
	for l := range strings.Lines(text) {
		if l = strings.TrimSpace(l); l == "" {
			continue
		}
		e, err := parseScriptEvent(l)
		if err != nil {
			return nil, err
		}
		events = append(events, e)
	}
	return events, nil
}

func parseScriptEvent(line string) (scriptEvent, error) {
	kept, lost := strings.CutPrefix(line, "!")
	name, text, _ := strings.Cut(kept, " ")
	name, turn, _ := strings.Cut(name, "@")
	e := schema.Event{Type: schema.TypeOf(name), DataContentType: schema.ContentTypeJSON, Data: []byte(text)}
	data, err := schema.ParseData(&e)
	if err != nil {
		return scriptEvent{}, err
	}
	if data == nil {
		return scriptEvent{}, fmt.Errorf("event %q is not known", name)
	}
	n := 0
	if turn != "" {
		if n, err = strconv.Atoi(turn); err != nil {
			return scriptEvent{}, err
		}
	}
	return scriptEvent{data: data, turn: int32(n), lost: lost}, nil //nolint:gosec // a test's own number
}

func publishEvents(ctx context.Context, end natsconn.Endpoint, run string, events []scriptEvent) (err error) {
	closed := make(chan struct{})
	nc, err := end.Connect(nats.ReconnectBufSize(-1), nats.ClosedHandler(func(*nats.Conn) { close(closed) }))
	if err != nil {
		return err
	}
	defer func() {
		nc.Close()
		<-closed
	}()
	js, err := jetstream.New(nc)
	if err != nil {
		return err
	}
	w, err := writerOf(ctx, nc, run)
	if err != nil {
		return err
	}
	for _, next := range events {
		e, err := w.Event(next.data, next.turn, time.Now(), 0)
		if err != nil {
			return err
		}
		header, body := e.Encode()
		msg := &nats.Msg{Subject: schema.MappedSubject(schema.DefaultFleet, run), Header: header, Data: body}
		if next.lost {
			err = w.Commit(e)
		} else if _, err = js.PublishMsg(ctx, msg, jetstream.WithMsgID(e.ID)); err == nil {
			err = w.Commit(e)
		}
		if err != nil {
			return fmt.Errorf("publish %s: %w", e.ID, err)
		}
	}
	return nil
}

// writerOf makes the writer that goes on with the run, or begins it.
func writerOf(ctx context.Context, nc *nats.Conn, run string) (*schema.Writer, error) {
	w := &schema.Writer{Fleet: schema.DefaultFleet, Run: run, Executor: "shell-test", Epoch: 1}
	answer, err := nc.RequestWithContext(ctx, schema.ServiceSubject(schema.VerbGet, w.Fleet, run), []byte(`{}`))
	if err != nil {
		return nil, err
	}
	if answer.Header.Get(schema.HeaderErrorCode) != "" {
		if !strings.Contains(string(answer.Data), string(schema.CodeNotFound)) {
			return nil, fmt.Errorf("looking at run %s: %s", run, answer.Data)
		}
		return w, nil
	}
	var reply schema.GetReply
	if err := json.Unmarshal(answer.Data, &reply); err != nil {
		return nil, err
	}
	w.Executor, w.Epoch, w.Last = reply.Head.Executor, reply.Head.Epoch, reply.Head.Sequence
	return w, nil
}

func textMessage(role, text string) schema.Message {
	return schema.Message{Role: role, Parts: []schema.Part{schema.Text(text)}}
}
