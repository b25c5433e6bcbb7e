//go:build waymark_failpoints

package chaos_test

import (
	"context"
	"fmt"

	"github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go"

	"github.com/waymarkio/waymark/internal/harness/checker"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

// found is the result of a read.
type found struct {
	run   string
	keys  *schema.Keys
	reply schema.GetReply
	log   []schema.Record
	// events: the view has them.
	events bool
}

// answer is the answer in a read. Events that do not add up to the head make it an answer that was never true.
func (f *found) answer() checker.Answer {
	a := checker.AnswerOf(&f.reply.Head, f.reply.Complete)
	if !f.events {
		return a
	}
	h := schema.NewHead(fleetName, f.run)
	for i := range f.log {
		h.Apply(f.keys, &f.log[i])
	}
	if h.Digest != a.Digest {
		a.Digest = fmt.Sprintf("head %.8s of %d, events %.8s of %d", a.Digest, a.Events, h.Digest, h.Counts.Events)
	}
	return a
}

// ask reads a run with the service's own protocol, to see the answer unchanged.
func (w *world) ask(ctx context.Context, nc *nats.Conn, run, view string) (*found, error) {
	body, err := json.Marshal(schema.GetRequest{View: view})
	if err != nil {
		return nil, err
	}
	sub, err := nc.SubscribeSync(nc.NewRespInbox())
	if err != nil {
		return nil, err
	}
	defer func() { _ = sub.Unsubscribe() }()
	if err := nc.PublishRequest(schema.ServiceSubject(schema.VerbGet, fleetName, run), sub.Subject, body); err != nil {
		return nil, err
	}
	keys, err := kvstore.ReadKeys(ctx, w.js, fleetName)
	if err != nil {
		return nil, err
	}
	f := &found{run: run, keys: keys, events: view == schema.ViewEvents}
	keep := func(r schema.Record) bool {
		f.log = append(f.log, r)
		return true
	}
	// Segments may come before or after the answer; the frames of the tail come after all of them.
	for {
		m, err := sub.NextMsgWithContext(ctx)
		if err != nil {
			return nil, err
		}
		if len(m.Data) == 0 && m.Header.Get("Status") == "503" {
			return nil, nats.ErrNoResponders
		}
		if m.Header.Get(schema.HeaderErrorCode) != "" {
			e := new(schema.ServiceError)
			if err := json.Unmarshal(m.Data, e); err != nil {
				return nil, err
			}
			return nil, e
		}
		switch m.Header.Get(schema.HeaderKind) {
		case schema.KindAnswer:
			if err := json.Unmarshal(m.Data, &f.reply); err != nil {
				return nil, err
			}
		case schema.KindSegment:
			_, frames, err := schema.DecodeSegment(m.Data)
			if err != nil {
				return nil, err
			}
			if err := schema.ReadFrames(frames, keep); err != nil {
				return nil, err
			}
		case schema.KindFrames:
			if err := schema.ReadFrames(m.Data, keep); err != nil {
				return nil, err
			}
		case schema.KindEnd:
			return f, nil
		}
		if m.Reply != "" {
			if err := nc.Publish(m.Reply, nil); err != nil {
				return nil, err
			}
		}
	}
}
