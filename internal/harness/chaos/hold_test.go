//go:build waymark_failpoints

package chaos_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/waymarkio/waymark/internal/harness/checker"
	"github.com/waymarkio/waymark/internal/nats/eventlog"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// heldCall is the call of the acts hold and rescue: its tool must not run twice.
var heldCall = publisher.ToolCall{ID: "mail", Name: "mail", Replay: schema.ReplayHold}

// hearsAfter is when the isolated executor receives messages again, once it continues with the call.
const hearsAfter = 200 * time.Millisecond

// twoBegin makes an executor record a call and then receive nothing more. Another takes the run over, a person
// settles the call as rerun, and its tool runs. Then the first one continues with the call, and only then receives
// messages again.
func twoBegin(seed uint64) *plan {
	return &plan{
		seed: seed, executors: 2, runs: 1, batch: 64, seal: 8, steps: []step{
			{kind: burst, acts: []act{{executor: 0, run: "run-1", what: "start", times: 1}}},
			{kind: burst, acts: []act{{executor: 0, run: "run-1", what: "step", times: 1, choice: 1}}}, // begins a turn
			{kind: burst, acts: []act{{executor: 0, run: "run-1", what: "hold", times: 1}, {executor: 1, run: "run-1", what: "rescue", times: 1}}},
		},
	}
}

// link is an executor's connection, which can be deaf: messages of the server are lost permanently.
type link struct {
	mu   sync.Mutex
	deaf bool
	open []net.Conn
}

// Dial implements nats.CustomDialer.
func (l *link) Dial(network, address string) (net.Conn, error) {
	conn, err := net.Dial(network, address)
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open = append(l.open, conn)
	return &linkConn{Conn: conn, link: l}, nil
}

// set makes it deaf. When it receives again its connections end, because messages are missing.
func (l *link) set(deaf bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.deaf && !deaf {
		for _, conn := range l.open {
			_ = conn.Close() // most are closed already
		}
		l.open = nil
	}
	l.deaf = deaf
}

type linkConn struct {
	net.Conn
	link *link
}

func (c *linkConn) Read(b []byte) (int, error) {
	for {
		n, err := c.Conn.Read(b)
		c.link.mu.Lock()
		deaf := c.link.deaf
		c.link.mu.Unlock()
		if err != nil || !deaf {
			return n, err
		}
	}
}

// tool requests the held call, and records its events and whether its tool runs.
func (x *executor) tool(ctx context.Context, run *publisher.Run) error {
	op := x.w.rec.Begin(checker.Op{
		Actor: x.name, Kind: checker.Call, Run: run.ID(), Epoch: run.Epoch(), Sequence: run.Head().Sequence + 1, Tool: heldCall.ID, Replay: heldCall.Replay,
	})
	_, err := run.OpenTurn().Tool(ctx, heldCall, func(_ context.Context, inv publisher.Invocation) (publisher.ToolResult, error) {
		op := x.w.rec.Begin(checker.Op{Actor: x.name, Kind: checker.Execute, Run: run.ID(), Epoch: inv.Epoch, Tool: heldCall.ID, Replay: heldCall.Replay})
		x.w.rec.End(op, func(op *checker.Op) { op.Outcome, op.Result = checker.OK, `"`+x.name+`"` })
		return publisher.Result(x.name)
	})
	x.w.rec.End(op, func(op *checker.Op) {
		judge(op, err)
		if head := run.Head(); head.Epoch == op.Epoch {
			op.Last = head.Sequence
		}
	})
	return err
}

// hold records the call, receives nothing more, and calls the tool when another executor has finished the call.
func (x *executor) hold(id string) {
	run := x.runs[id]
	if run == nil || run.OpenTurn() == nil {
		x.w.fail(fmt.Errorf("%s has no turn of %s", x.name, id))
		return
	}
	op := x.w.rec.Begin(checker.Op{Actor: x.name, Kind: checker.Call, Run: id, Epoch: run.Epoch(), Sequence: run.Head().Sequence + 1, Tool: heldCall.ID, Replay: heldCall.Replay})
	_, err := run.OpenTurn().Call(x.ctx, heldCall)
	x.link.set(true)
	x.w.rec.End(op, func(op *checker.Op) {
		judge(op, err)
		op.Last = run.Head().Sequence
	})
	x.w.must(x.w.eventually("another executor has brought "+id+" on", func() error { return x.w.logged(id, schema.ToolReturned) }))
	healed := make(chan struct{})
	time.AfterFunc(hearsAfter, func() { x.link.set(false); close(healed) })
	err = x.tool(x.ctx, run)
	for errors.Is(err, publisher.ErrUnresolved) && x.ctx.Err() == nil {
		if err = run.Resolve(x.ctx); err == nil {
			err = x.tool(x.ctx, run)
		}
	}
	<-healed
	if run.Err() != nil {
		delete(x.runs, id)
	}
}

// rescue takes the run over once the call is recorded, and brings the call to its end with a person's help.
func (x *executor) rescue(id string) {
	if err := x.w.eventually("the call of "+id+" is recorded", func() error { return x.w.logged(id, schema.ToolCalled) }); err != nil {
		x.w.fail(err)
		return
	}
	x.takeOver(id)
	run := x.runs[id]
	if run == nil {
		return // it is in the history why
	}
	err := x.tool(x.ctx, run)
	held, ok := errors.AsType[*publisher.HeldError](err)
	if !ok {
		x.w.fail(fmt.Errorf("%s: the call in doubt came to %w", x.name, err))
		return
	}
	key := schema.CallKey{Turn: run.Head().Turn, ToolCallID: heldCall.ID, Occurrence: 1}
	op := x.w.rec.Begin(checker.Op{Actor: x.name, Kind: checker.Control, Run: id, Tool: heldCall.ID, Detail: "settled as rerun"})
	reply, err := x.fleet.Settle(x.ctx, id, schema.SettleRequest{CallKey: key, CallEpoch: held.Epoch, How: schema.SettledRerun, By: "person"})
	x.w.rec.End(op, func(op *checker.Op) {
		judge(op, err)
		if err == nil {
			op.Event, op.Stream = reply.EventID, reply.Stream
		}
	})
	if err = errors.Join(err, run.Sync(x.ctx)); err == nil {
		err = x.tool(x.ctx, run)
	}
	x.w.must(err)
}

// logged is an error until the log of a run has an event of the name.
func (w *world) logged(id, name string) error {
	there := errors.New("it has not")
	err := eventlog.Read(w.ctx, w.js, w.names[w.shardOf(id)], id, 1, func(r schema.Record) error {
		if e, err := schema.Decode(r.Header, r.Body); err == nil && e.Name() == name {
			there = nil
		}
		return nil
	})
	return errors.Join(err, there)
}
