package main

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/rogpeppe/go-internal/testscript"

	"github.com/waymarkio/waymark/internal/natsd"
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
	end, err := natsd.Discover(ctx, filepath.Join(ts.Getenv("WORK"), "state"))
	if err == nil {
		err = publishRun(ctx, end, args[0], args[1] == "open")
	}
	if err != nil {
		ts.Fatalf("%v", err)
	}
}

func publishRun(ctx context.Context, end natsd.Endpoint, run string, open bool) (err error) {
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
	names := schema.NamesOf(schema.DefaultFleet, 0)
	for i, data := range events {
		turn := int32(1)
		if i == 0 || strings.HasPrefix(data.EventName(), "run.") {
			turn = 0
		}
		e, _, err := w.Event(data, turn, time.Now(), w.Chain, 0)
		if err != nil {
			return err
		}
		header, body := e.Encode()
		msg := &nats.Msg{Subject: names.EventSubject(run), Header: header, Data: body}
		if _, err := js.PublishMsg(ctx, msg, jetstream.WithMsgID(e.ID)); err != nil {
			return fmt.Errorf("publish %s: %w", e.ID, err)
		}
		if err := w.Commit(e); err != nil {
			return err
		}
	}
	return nil
}

func textMessage(role, text string) schema.Message {
	return schema.Message{Role: role, Parts: []schema.Part{schema.Text(text)}}
}
