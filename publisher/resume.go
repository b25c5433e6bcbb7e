package publisher

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"

	"github.com/waymarkio/waymark/internal/eventlog"
	"github.com/waymarkio/waymark/internal/fleetclient"
	"github.com/waymarkio/waymark/schema"
)

// ResumeSpec describes a takeover.
type ResumeSpec struct {
	// Reason is claim, request, restart, input or reopen; empty means request. Only reopen, or At, takes over a run
	// that has ended.
	Reason string
	// At, if it is not the zero point, is where the run continues: after that point, under its own id, even if it has
	// ended. Later events stay in the record but are no longer part of the run. Their external effects are not undone:
	// calls that the agent makes again have new idempotency keys. Leave Reason empty with it. To continue after the
	// outcome of the third tool call: schema.Point{Kind: schema.PointResult, Number: 3}.
	At schema.Point
	// RequestID makes a repeated Resume continue the epoch that the first one opened, instead of opening another; empty
	// means a new id. Use an id that outlives the process if the takeover must not be done twice.
	RequestID string
	// ExpectedEpoch, if set, is the epoch that was seen before the decision to take the run over. If another takeover
	// came since, Resume returns [ErrConflict], whose text names the executor.
	ExpectedEpoch schema.Epoch
	// Agent that the executor runs; empty means the agent of Config, or any agent if Config names none.
	Agent string
	// AllowGaps takes over a run although events of it are known to be missing. Without it Resume returns
	// [ErrIncomplete]. The takeover itself is done then, and can be repeated with AllowGaps.
	AllowGaps bool
	// HeadOnly and OnControl as in [RunSpec].
	HeadOnly  bool
	OnControl func(event *schema.Event, data schema.Data)
}

// Resume takes a run over. It opens a new epoch, which fences the previous executor, and returns the handle with the
// run's state, which includes every acknowledged event. Continue with [Run.OpenTurn], [Run.Phase] and [Turn.Tool].
//
// It returns [ErrRunNotFound], [ErrRunEnded], [ErrPointNotFound], [ErrPointAmbiguous], [ErrWrongAgent], [ErrConflict],
// [ErrIncomplete], [ErrUnavailable] and [ErrNoService]. They wrap the daemon's *schema.ServiceError, with its hint.
func (f *Fleet) Resume(ctx context.Context, run string, spec ResumeSpec) (*Run, error) {
	if err := checkRun(run); err != nil {
		return nil, err
	}
	if spec.At != (schema.Point{}) {
		if spec.Reason != "" {
			return nil, configError("Reason", spec.Reason, "leave it empty if At is set")
		}
		spec.Reason = schema.TakeoverRewind
	} else if spec.Reason == schema.TakeoverRewind {
		return nil, configError("At", "the end of the run", "name the point after which the run continues, and leave Reason empty")
	}
	if spec.Agent == "" {
		spec.Agent = f.cfg.Agent
	}
	if err := f.appear(); err != nil {
		return nil, fmt.Errorf("resume of run %s: %w", run, err)
	}
	if !spec.HeadOnly {
		if err := f.mayRead(ctx, run); err != nil {
			return nil, fmt.Errorf("resume (nothing was changed): %w", err)
		}
	}
	return f.resume(ctx, run, spec)
}

// resume is Resume for a run of any agent, unless spec names one.
func (f *Fleet) resume(ctx context.Context, run string, spec ResumeSpec) (*Run, error) {
	if err := f.appear(); err != nil {
		return nil, fmt.Errorf("resume of run %s: %w", run, err)
	}
	if spec.RequestID == "" {
		spec.RequestID = rand.Text()
	}
	defer f.takeovers.begin(run)()
	request := &schema.RecoverRequest{
		Executor: f.cfg.Executor, Instance: f.cfg.Instance, Agent: spec.Agent, Reason: spec.Reason, RequestID: spec.RequestID,
		ExpectedEpoch: spec.ExpectedEpoch, View: schema.ViewEvents,
	}
	if spec.Reason == schema.TakeoverRewind {
		request.At = spec.At.String()
	}
	if spec.HeadOnly {
		request.View = schema.ViewHead
	}
	var read *assembly
	var reply *schema.RecoverReply
	err := f.service().Ask(ctx, schema.VerbRecover, run, request, func() *fleetclient.Replies {
		begin := func() { read = newAssembly(ctx, f.Reader, run) }
		begin()
		return &fleetclient.Replies{
			Answer: func(body []byte) error {
				reply = new(schema.RecoverReply)
				return fleetclient.Decode(body, reply)
			},
			Again: begin,
			Piece: func(kind string, frames []byte) error {
				return readPiece(kind, frames, func(rec schema.Record) error { return read.take(ctx, rec) })
			},
		}
	})
	if err == nil {
		err = read.finish(ctx, 0)
	}
	if err != nil {
		return nil, err
	}
	state := read.state
	if spec.HeadOnly {
		state.Head = reply.Head
	}
	err = checkFold(run, &state.Head, &reply.Head, reply.Complete, reply.Gaps)
	if err != nil {
		if !spec.AllowGaps || reply.Complete {
			return nil, fmt.Errorf("resume of run %s: %w", run, err)
		}
		// The missing events are missing in the content. The daemon's head has the run's position.
		state.Head = reply.Head
	}
	if !spec.HeadOnly {
		if err := cmp.Or(f.hasKeys(ctx, &reply.Head), read.unread); err != nil {
			return nil, fmt.Errorf("resume: %w", unreadableOf(err, reply.Head.KeyIDs))
		}
	}
	r := newRun(f, schema.NamesOf(f.cfg.Fleet, reply.Shard), run)
	r.ledger.onControl = spec.OnControl
	if err := r.ledger.takeUp(state, reply); err != nil {
		return nil, err
	}
	if spec.HeadOnly {
		r.ledger.keepHead()
	}
	return r, nil
}

// rebuild reads the run again from the daemon, because the log no longer has the message that the handle knows: the
// purger purges sealed events once later ones exist. It returns errAgain if the leader still has it.
func (a *appender) rebuild(ctx context.Context, items []*item) error {
	before, beforeID := a.ledger.end()
	rec, found, err := eventlog.Next(ctx, a.js, a.names, a.run, before)
	if err != nil {
		return errors.Join(errAgain, err)
	}
	if found && rec.Stream == before {
		return errAgain // an older replica answered
	}
	gone := fmt.Errorf("run %s: %w: %s at stream sequence %d was acknowledged", a.run, ErrLogRegressed, beforeID, before)
	var behind []schema.Record
	seen := false
	err = a.events(ctx, a.run, func(rec schema.Record) error {
		switch {
		case rec.Stream == before:
			if seen = schema.PositionOf(&rec).ID == beforeID; !seen {
				return a.ledger.die(gone)
			}
		case rec.Stream > before:
			if behind = append(behind, rec); len(behind) > maxBehind {
				return a.ledger.die(fmt.Errorf("run %s: %w: more than %d messages were written behind this handle", a.run, ErrFenced, maxBehind))
			}
		}
		return nil
	})
	switch {
	case errors.Is(err, ErrLogRegressed), errors.Is(err, ErrFenced):
		return err
	case errors.Is(err, ErrIncomplete), err == nil && !seen:
		return a.ledger.die(errors.Join(gone, err))
	case err != nil:
		return errors.Join(errAgain, err)
	}
	for i := range behind {
		if err := a.meet(ctx, &behind[i], items); err != nil {
			return err
		}
	}
	return errAgain // now continue reading after them
}

// maxBehind bounds the foreign messages held in memory.
const maxBehind = 4096
