package service

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/waymarkio/waymark/consumer/internal/logkey"
	"github.com/waymarkio/waymark/consumer/reader"
	"github.com/waymarkio/waymark/internal/base/failpoint"
	"github.com/waymarkio/waymark/schema"
)

// maxUnacked bounds the number of unacknowledged replies, in addition to their bytes.
const maxUnacked = 256

// view is one answer in a view that the client asked for, and the state folded for it.
type view struct {
	svc   *Service
	task  *task
	view  string
	state *reader.StateSink
	held  bool
	// out belongs to view events; cancel ends its deadline.
	out    *replies
	cancel context.CancelFunc
}

// openView opens the view of a request, "" for state. For view events it takes a place among the streams: other views
// wait for no client, so clients that do not take their events do not block a takeover with view state. stateBudget
// bounds the memory of view state. View head keeps one head; at a point it reads the run, of any size, without that
// bound.
func (s *Service) openView(t *task, name string) (*view, error) {
	v := &view{svc: s, task: t, view: cmp.Or(name, schema.ViewState)}
	if v.view == schema.ViewEvents {
		if !s.streams.TryAcquire(1) {
			return nil, schema.Fail(schema.CodeOverloaded, "Ask again later, or for view state or head.", "%d streams of events are under way", s.cfg.Streams)
		}
		v.held = true
		s.stats.Streaming.Add(1)
	}
	return v, nil
}

// open prepares to send content. That has a deadline other than the answer's, and ends with the service.
func (v *view) open() error {
	ctx, cancel := context.WithTimeout(v.task.work, streamTimeout)
	out, err := openReplies(ctx, v.task, v.svc.cfg.AckTimeout)
	if err != nil {
		cancel()
		return err
	}
	v.out, v.cancel = out, cancel
	return nil
}

// close stops sending and frees what was taken. It may be called again.
func (v *view) close() {
	if v.out != nil {
		v.cancel()
		v.out.close()
	}
	if v.state != nil {
		v.state.Release()
	}
	if v.held {
		v.held = false
		v.svc.streams.Release(1)
		v.svc.stats.Streaming.Add(-1)
	}
}

func (v *view) want() reader.Want { return reader.Want(v.view != schema.ViewHead) }

// prepare does what can fail for the view alone, before a takeover changes anything.
func (v *view) prepare(ctx context.Context, r *reader.Snapshot) error {
	if v.view != schema.ViewState {
		return nil
	}
	if v.state != nil {
		v.state.Release()
	}
	if err := v.foldable(r); err != nil {
		return err
	}
	if err := v.fold(ctx, r.Run, &r.Head); err != nil {
		return err
	}
	if err := v.svc.reader.Sealed(ctx, r, &reader.Cursor{Next: 1}, v.state); err != nil {
		return err
	}
	return v.svc.reader.Tail(ctx, r, v.state)
}

// foldable refuses view state of a run that is too large for the daemon to fold.
func (v *view) foldable(r *reader.Snapshot) error {
	if v.view == schema.ViewState && r.Segments.Bytes+r.TailBytes() > schema.MaxStateView {
		return reader.ErrTooLarge
	}
	return nil
}

// fold begins a state for folding a run up to a head, with a fork's content from its base.
func (v *view) fold(ctx context.Context, run string, to *schema.Head) error {
	keys, err := v.svc.keys.Keys(ctx)
	if err != nil {
		return err
	}
	v.state = reader.NewStateSink(keys, schema.NewState(v.svc.cfg.Fleet, run), v.svc.budget)
	return v.svc.reader.Graft(ctx, v.state, run, to.Base, 0)
}

// finish folds the events read since, and compares the state with the head.
func (v *view) finish(ctx context.Context, r *reader.Snapshot) error {
	if v.state == nil {
		return nil
	}
	if v.state.State.Head.Position.Stream < r.LogLast {
		keys, err := v.svc.keys.Keys(ctx)
		if err != nil {
			return err
		}
		v.state.Again(keys)
		if err := v.svc.reader.Tail(ctx, r, v.state); err != nil {
			return err
		}
	}
	if got := v.state.State.Head.Digest; got != r.Head.Digest && r.Complete() {
		v.svc.log.Error().Str(logkey.Run, r.Run).Str("digest", got).Str("want", r.Head.Digest).Msg("state and head differ")
		r.Lost = append(r.Lost, schema.Gap{Epoch: r.Head.Epoch, From: v.state.State.Head.Sequence + 1, To: r.Head.Sequence, At: r.Head.Position, Reason: schema.ReasonLost})
	}
	return nil
}

// answer sends the view's content, and then the answer itself, which is built last.
func (s *Service) answer(v *view, r *reader.Snapshot, build func(*schema.State) any) error {
	t := v.task
	if err := failpoint.Hit(t.work, failpoint.BeforeReply); err != nil {
		return err
	}
	switch v.view {
	case schema.ViewHead:
		return t.whole(build(nil))
	case schema.ViewState:
		return v.joined(build)
	default:
		if err := v.open(); err != nil {
			return err
		}
		if err := s.reader.Sealed(v.out.ctx, r, &reader.Cursor{Next: 1}, v.out); err != nil {
			return err
		}
		if err := t.answer(build(nil)); err != nil {
			return err
		}
		if err := s.reader.Tail(v.out.ctx, r, v.out); err != nil {
			return err
		}
	}
	return t.send(schema.KindEnd, nil, "")
}

// replies sends content with flow control: unacknowledged data is bounded, and a client that is gone or does not
// acknowledge ends the answer.
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

func (o *replies) Segment(_ int, stored []byte) error { return o.data(schema.KindSegment, stored) }

func (o *replies) Frames(chunk []byte) error { return o.data(schema.KindFrames, chunk) }

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

// take reads the acknowledgements that have arrived.
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
		return fmt.Errorf("%w: %w", ErrClientGone, schema.Fail(schema.CodeNotAcknowledged,
			"Publish an empty message to the reply subject of each reply that has one, or ask for view state or head: they need no acknowledgement.",
			"%d replies with %d bytes were not acknowledged within %s: no more are sent", len(o.unacked), o.bytes, o.timeout))
	case <-o.ctx.Done():
		return context.Cause(o.ctx)
	}
}

// acked reads one acknowledgement. The server's message that there is no subscriber arrives on the same inbox.
func (o *replies) acked(m *nats.Msg) error {
	if len(m.Data) == 0 && m.Header.Get("Status") == "503" {
		return fmt.Errorf("no subscriber for the replies: %w", ErrClientGone)
	}
	n, err := strconv.Atoi(strings.TrimPrefix(m.Subject, o.prefix))
	if err != nil {
		return nil //nolint:nilerr // a foreign message to our inbox; it acknowledges nothing
	}
	o.bytes -= o.unacked[n]
	delete(o.unacked, n)
	return nil
}
