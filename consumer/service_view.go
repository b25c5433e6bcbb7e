package consumer

import (
	"bytes"
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go"

	"github.com/waymarkio/waymark/schema"
)

const (
	// maxStateReply is the size of a piece of view state.
	maxStateReply = 256 << 10
	// maxUnacked bounds the replies under way unacknowledged, beside their bytes.
	maxUnacked = 256
)

// view is what a client asked to see of a run, and what was prepared for it.
type view struct {
	svc   *Service
	kind  string
	after int
	state *stateSink
	held  bool
}

// openView checks the view of a request and takes its place among the answers with content.
func (s *Service) openView(kind string, after int) (*view, error) {
	if kind == "" {
		kind = schema.ViewHead
	}
	v := &view{svc: s, kind: kind, after: after}
	switch kind {
	case schema.ViewHead, schema.ViewEvents, schema.ViewState:
	default:
		return nil, badField("/view", fmt.Errorf("view %.40q is none of head, events, state", kind))
	}
	if after < 0 || after != 0 && kind != schema.ViewEvents {
		return nil, badField("/after", fmt.Errorf("after is %d: it is the number of a segment, with view events", after))
	}
	if kind != schema.ViewHead {
		if !s.streams.TryAcquire(1) {
			return nil, fail(schema.CodeOverloaded, "Ask again later; view head is always there.", "%d answers with content are under way", s.cfg.Streams)
		}
		v.held = true
		s.stats.Streaming.Add(1)
	}
	return v, nil
}

func (v *view) close() {
	if v.state != nil {
		v.state.release()
	}
	if v.held {
		v.svc.streams.Release(1)
		v.svc.stats.Streaming.Add(-1)
	}
}

func (v *view) mode() mode { return mode{content: v.kind != schema.ViewHead} }

// prepare does what can fail for the view alone, before a takeover changes anything.
func (v *view) prepare(ctx context.Context, r *reading) error {
	switch v.kind {
	case schema.ViewEvents:
		if v.after > r.index.Count {
			return badField("/after", fmt.Errorf("after is %d, the run has %d segments", v.after, r.index.Count))
		}
		return v.svc.reader.checkSegments(ctx, r, v.after)
	case schema.ViewState:
		if v.state != nil {
			v.state.release()
		}
		v.state = &stateSink{state: schema.NewState(v.svc.cfg.Fleet, r.run), budget: v.svc.budget}
		if r.index.Bytes > schema.MaxStateView || r.tail.bytes > schema.MaxStateView {
			return errTooLarge
		}
		if err := v.svc.reader.checkSegments(ctx, r, 0); err != nil {
			return err
		}
		return v.svc.reader.content(ctx, r, 0, v.state)
	}
	return nil
}

// finish brings a folded state up to what was read since, and compares it with the head.
func (v *view) finish(ctx context.Context, r *reading) error {
	if v.state == nil {
		return nil
	}
	if v.state.state.Head.Position.Stream < r.logLast {
		rest := *r
		rest.index = schema.SegmentIndex{}
		v.state.last = 0 // the tail comes again from its beginning
		if err := v.svc.reader.content(ctx, &rest, 0, v.state); err != nil {
			return err
		}
	}
	if got := v.state.state.Head.Digest; got != r.head.Digest && r.complete() {
		v.svc.log.Error().Str(keyRun, r.run).Str("digest", got).Str("want", r.head.Digest).Msg("state and head differ")
		r.lost = append(r.lost, schema.Gap{Epoch: r.head.Epoch, From: v.state.state.Head.Sequence + 1, To: r.head.Sequence, At: r.head.Position, Reason: reasonLost})
	}
	return nil
}

// answer sends the first reply and then what the view shows.
func (s *Service) answer(t *task, v *view, r *reading, first any) error {
	if v.kind == schema.ViewHead {
		return t.whole(first)
	}
	if err := t.first(first); err != nil {
		return err
	}
	// The deadline of the first reply is over; what follows has its own, and ends with the service.
	ctx, cancel := context.WithTimeout(t.work, s.cfg.StreamTimeout)
	defer cancel()
	out, err := openReplies(ctx, t, s.cfg.AckTimeout)
	if err != nil {
		return err
	}
	defer out.close()
	if v.kind == schema.ViewEvents {
		err = s.reader.content(ctx, r, v.after, out)
	} else {
		err = out.json(v.state.state)
	}
	if err != nil {
		return err
	}
	return t.send(schema.KindEnd, nil, "")
}

// replies sends content under flow control: what the client has not acknowledged is bounded, and a client that is gone
// or stands still ends the answer.
type replies struct {
	ctx     context.Context //nolint:containedctx // one answer's own
	t       *task
	timeout time.Duration
	prefix  string
	acks    chan *nats.Msg
	sub     *nats.Subscription
	next    int
	unacked map[int]int
	bytes   int
}

func openReplies(ctx context.Context, t *task, timeout time.Duration) (*replies, error) {
	o := &replies{
		ctx: ctx, t: t, timeout: timeout, prefix: t.svc.nc.NewRespInbox() + ".",
		acks: make(chan *nats.Msg, 2*maxUnacked), unacked: make(map[int]int),
	}
	sub, err := t.svc.nc.ChanSubscribe(o.prefix+"*", o.acks)
	if err != nil {
		return nil, err
	}
	o.sub = sub
	return o, nil
}

func (o *replies) close() {
	// A closed connection has no subscription to end.
	_ = o.sub.Unsubscribe()
}

func (o *replies) segment(_ int, stored []byte) error { return o.data(schema.KindSegment, stored) }

func (o *replies) frames(chunk []byte) error { return o.data(schema.KindFrames, chunk) }

// json sends a value as JSON, in pieces.
func (o *replies) json(v any) error {
	var buf bytes.Buffer
	if err := json.MarshalWrite(&buf, v, json.Deterministic(true)); err != nil {
		return err
	}
	for buf.Len() > 0 {
		if err := o.data(schema.KindState, buf.Next(maxStateReply)); err != nil {
			return err
		}
	}
	return nil
}

// data sends one reply when there is room for it.
func (o *replies) data(kind string, body []byte) error {
	if err := o.take(); err != nil {
		return err
	}
	for len(o.unacked) > 0 && (o.bytes+len(body) > schema.FlowWindow || len(o.unacked) >= maxUnacked) {
		if err := o.wait(); err != nil {
			return err
		}
	}
	o.next++
	o.unacked[o.next] = len(body)
	o.bytes += len(body)
	return o.t.send(kind, body, o.prefix+strconv.Itoa(o.next))
}

// take takes the acknowledgements that are there.
func (o *replies) take() error {
	for {
		select {
		case m := <-o.acks:
			if err := o.acked(m); err != nil {
				return err
			}
		default:
			return o.ctx.Err()
		}
	}
}

// wait waits for one acknowledgement.
func (o *replies) wait() error {
	timer := time.NewTimer(o.timeout)
	defer timer.Stop()
	select {
	case m := <-o.acks:
		return o.acked(m)
	case <-timer.C:
		return fmt.Errorf("%d bytes not acknowledged within %s: %w", o.bytes, o.timeout, ErrClientGone)
	case <-o.ctx.Done():
		return context.Cause(o.ctx)
	}
}

// acked takes one acknowledgement. The server's word that nobody listens comes the same way.
func (o *replies) acked(m *nats.Msg) error {
	if len(m.Data) == 0 && m.Header.Get("Status") == "503" {
		return fmt.Errorf("nobody listens for the replies: %w", ErrClientGone)
	}
	n, err := strconv.Atoi(strings.TrimPrefix(m.Subject, o.prefix))
	if err != nil {
		return nil //nolint:nilerr // somebody's message to our inbox; it acknowledges nothing
	}
	o.bytes -= o.unacked[n]
	delete(o.unacked, n)
	return nil
}
