package service

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/waymarkio/waymark/consumer/internal/logkey"
	"github.com/waymarkio/waymark/consumer/reader"
	"github.com/waymarkio/waymark/internal/failpoint"
	"github.com/waymarkio/waymark/schema"
)

// maxUnacked bounds the number of unacknowledged replies, in addition to their bytes.
const maxUnacked = 256

// wish is the view of a run that a request asks for.
type wish struct {
	view  string
	after int
}

// view is one answer in a view that the client asked for, and the state folded for it.
type view struct {
	svc  *Service
	task *task
	wish
	state *reader.StateSink
	held  bool
	// out and early belong to view events; cancel ends the deadline of both.
	out    *replies
	early  *reader.Early
	cancel context.CancelFunc
}

// openView checks the view of a request. For view events it takes a place and begins to send: close must be called
// before any other reply is sent to the client.
func (s *Service) openView(t *task, want wish) (*view, error) {
	v := &view{svc: s, task: t, wish: want}
	if err := v.check(); err != nil {
		return nil, err
	}
	if err := v.hold(); err != nil {
		return nil, err
	}
	if v.view == schema.ViewEvents {
		if err := v.begin(); err != nil {
			v.close()
			return nil, err
		}
	}
	return v, nil
}

// pointView checks the view of a request for a point. For view events it takes a place.
func (s *Service) pointView(t *task, want wish) (*view, error) {
	v := &view{svc: s, task: t, wish: want}
	if err := v.check(); err != nil {
		return nil, err
	}
	return v, v.hold()
}

// check checks the wish and fills in its defaults.
func (v *view) check() error {
	if v.view == "" {
		v.view = schema.ViewState
	}
	switch v.view {
	case schema.ViewHead, schema.ViewEvents, schema.ViewState:
	default:
		return badField("/view", fmt.Errorf("view %.40q is none of state, head, events", v.view))
	}
	if v.after < 0 || v.after != 0 && v.view != schema.ViewEvents {
		return badField("/after", fmt.Errorf("after is %d: it is the number of a segment, with view events", v.after))
	}
	return nil
}

// hold takes a place among the streams of events. Other views wait for no client, so clients that do not take their
// events do not block a takeover with view state. StateBudget bounds the memory of view state. View
// head keeps one head; at a point it reads the run, of any size, without that bound.
func (v *view) hold() error {
	if v.view != schema.ViewEvents {
		return nil
	}
	if !v.svc.streams.TryAcquire(1) {
		return schema.Fail(schema.CodeOverloaded, "Ask again later, or for view state or head.", "%d streams of events are under way", v.svc.cfg.Streams)
	}
	v.held = true
	v.svc.stats.Streaming.Add(1)
	return nil
}

// begin sends the segments that are known already, while the run is read and proven.
func (v *view) begin() error {
	ctx, err := v.open()
	if err != nil {
		return err
	}
	v.early = v.svc.reader.SendEarly(ctx, v.task.run, v.after, v.out)
	return nil
}

// open prepares to send content. That has a deadline other than the answer's, and ends with the service.
func (v *view) open() (context.Context, error) {
	ctx, cancel := context.WithTimeout(v.task.work, v.svc.cfg.StreamTimeout)
	out, err := openReplies(ctx, v.task, v.svc.cfg.AckTimeout)
	if err != nil {
		cancel()
		return nil, err
	}
	v.out, v.cancel = out, cancel
	return ctx, nil
}

// close stops sending and frees what was taken. It may be called again.
func (v *view) close() {
	if v.out != nil {
		v.cancel()
		if v.early != nil {
			v.early.Stop()
		}
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
	switch v.view {
	case schema.ViewEvents:
		if v.after > r.Segments.Count {
			return badField("/after", fmt.Errorf("after is %d, the run has %d segments", v.after, r.Segments.Count))
		}
	case schema.ViewState:
		if v.state != nil {
			v.state.Release()
		}
		if err := v.foldable(r); err != nil {
			return err
		}
		if err := v.fold(ctx, r.Run, &r.Head); err != nil {
			return err
		}
		before := len(r.Lost)
		err := v.svc.reader.Content(ctx, r, &reader.Cursor{Next: 1}, v.state)
		if err == nil && len(r.Lost) == before {
			return nil
		}
		mended, merr := v.svc.reader.Mend(ctx, r, err)
		if merr != nil || !mended {
			return errors.Join(err, merr)
		}
		v.state.Release()
		if err := v.fold(ctx, r.Run, &r.Head); err != nil {
			return err
		}
		return v.svc.reader.Content(ctx, r, &reader.Cursor{Next: 1}, v.state)
	}
	return nil
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
func (s *Service) answer(v *view, r *reader.Snapshot, build func(*schema.StateView) any) error {
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
		if err := v.segments(r); err != nil {
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

// segments sends a read's segments that were not sent early. If damage changed the read, those already sent are taken
// back.
func (v *view) segments(r *reader.Snapshot) error {
	if err := v.early.Wait(); err != nil {
		return err
	}
	ctx, rd, p := v.out.ctx, v.svc.reader, &v.early.Cursor
	begun := p.Next > v.after+1
	before := len(r.Lost)
	var err error
	if begun && !p.Fits(&r.Segments) {
		err = v.again(r)
	} else {
		err = rd.Sealed(ctx, r, p, v.out)
		if begun && errors.Is(err, reader.ErrDoesNotFollow) {
			err = v.again(r)
		}
	}
	if err == nil && len(r.Lost) == before {
		return nil
	}
	mended, merr := rd.Mend(ctx, r, err)
	if merr != nil || !mended || v.after > r.Segments.Count {
		return errors.Join(err, merr)
	}
	return v.again(r)
}

// again takes back what was sent and sends the read's segments.
func (v *view) again(r *reader.Snapshot) error {
	v.svc.stats.Restarted.Add(1)
	v.svc.log.Warn().Str(logkey.Run, r.Run).Msg("segments sent early are not those of the run, sent again")
	if err := v.task.send(schema.KindAgain, nil, ""); err != nil {
		return err
	}
	return v.svc.reader.Sealed(v.out.ctx, r, &reader.Cursor{Next: v.after + 1}, v.out)
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
