package service

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/waymarkio/waymark/consumer/reader"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

// get answers a read without takeover.
func (s *Service) get(ctx context.Context, t *task) error {
	var req schema.GetRequest
	if err := t.decode(&req); err != nil {
		return err
	}
	if req.At != "" {
		return s.getAt(ctx, t, &req)
	}
	v, err := s.openView(t, req.View, req.After)
	if err != nil {
		return err
	}
	defer v.close()
	r, err := s.routing.proven(ctx, t.run, v.want())
	if err == nil && r.Head.Status == "" {
		return errNothingAccepted(t.run)
	}
	if err == nil {
		err = v.prepare(ctx, r)
	}
	if err == nil {
		err = v.finish(ctx, r)
	}
	if err != nil {
		return err
	}
	return s.answer(ctx, v, r, func(state *schema.State, next string) any {
		return &schema.GetReply{
			Head: r.Head, State: state, Next: next, Quarantined: r.Head.Quarantined(s.cfg.MaxClaims), Pauses: s.pausesOf(&r.Head), Full: s.liveRuns.FullFor(r.Run), Complete: r.Complete(), Gaps: r.Gaps(), Segments: r.Segments, Bytes: r.Segments.Bytes + r.TailBytes(),
			Shard: r.Source.Store.Names.Shard, Damage: r.Damage, Overdue: s.cfg.Heartbeats.Overdue(r.Head.Run),
		}
	})
}

// history answers with the kept checkpoints of a run, at most a moment old.
func (s *Service) history(ctx context.Context, t *task, _ *struct{}) (*schema.HistoryReply, error) {
	reply := &schema.HistoryReply{Run: t.run, Checkpoints: []schema.HistoryEntry{}}
	src := s.routing.of(t.run)
	if err := src.Barrier.Insist(ctx); err != nil {
		return nil, err
	}
	list, err := src.Store.Checkpoints.History(ctx, t.run)
	if err != nil && !errors.Is(err, kvstore.ErrNotFound) {
		return nil, err
	}
	for _, stored := range list {
		c := stored.Checkpoint
		if c == nil {
			s.stats.CorruptCheckpoints.Add(1)
			continue
		}
		reply.Checkpoints = append(reply.Checkpoints, schema.HistoryEntry{
			Revision: stored.Revision, Epoch: c.Epoch, Sequence: c.Sequence, Turn: c.Turn, Status: c.Status,
			Events: c.Counts.Events, Position: c.Position, Digest: c.Digest, UpdatedAt: c.UpdatedAt, Stored: schema.FormatTime(stored.Stored),
		})
	}
	if len(reply.Checkpoints) == 0 {
		// No checkpoint yet, or no such run: the log tells.
		if _, err := s.routing.proven(ctx, t.run, reader.Head); err != nil {
			return nil, err
		}
	}
	return reply, nil
}

// settle records an operator's decision about a call in doubt.
func (*Service) settle(t *task, req *schema.SettleRequest) (c change, err error) {
	if c.who, err = t.sender(req.By); err != nil {
		return c, err
	}
	if req.ToolCallID == "" {
		return c, badField("/tool_call_id", errors.New("is required"))
	}
	if err := onlyEncrypted(req.Refs, "/result"); err != nil {
		return c, err
	}
	data := &schema.ToolSettledData{ToolCallID: req.ToolCallID, How: req.How, Result: req.Result, Refs: req.Refs, IsError: req.IsError, By: c.who.by, Claimed: c.who.claimed}
	if _, err := schema.MarshalData(data); err != nil {
		return c, wrongField(err)
	}
	attempt := []string{"settle", req.IdempotencyKey(t.run), fmt.Sprint(req.CallEpoch)}
	c.name, c.stateful, c.frequent = schema.RequestName(attempt...), true, true
	c.same = repeatOf(t.run, func(first *schema.ToolSettledData, _ *schema.Event, refusal error) error {
		return sameSettlement(t.run, first, req, c.who, refusal)
	})
	c.decide = func(_ context.Context, r *reader.Snapshot) (decision, error) {
		data.Occurrence = req.Occurrence
		d := decision{turn: req.Turn, refusal: settleable(r, req)}
		if d.refusal == nil {
			d.data = data
		}
		return d, nil
	}
	return c, nil
}

// sameSettlement adds to the refusal of a request the different settlement that the attempt at the call has.
func sameSettlement(run string, first *schema.ToolSettledData, req *schema.SettleRequest, who sender, refusal error) error {
	by, same := sender{by: first.By, claimed: first.Claimed}, func(a, b *bool) bool { return a == nil && b == nil || a != nil && b != nil && *a == *b }
	if first.How == req.How && by == who && schema.SameJSON(first.Result, req.Result) && same(first.IsError, req.IsError) {
		return nil
	}
	return decidedAlready(refusal, "call %s of turn %d of run %s was settled already, as %s by %s", req.ToolCallID, req.Turn, run, first.How, by.name())
}

// settleable checks that the call can be settled in this way. The read is proven. Each open call of an ended run can
// be settled: the run has no executor, and is kept until a person has settled the call.
func settleable(r *reader.Snapshot, req *schema.SettleRequest) error {
	i := slices.IndexFunc(r.Head.OpenCalls, func(c schema.OpenCall) bool { return c.CallKey == req.CallKey })
	hint := "To see its open calls, and what becomes of each: waymark plan " + r.Run
	ended := r.Head.Status.Terminal()
	may := i >= 0 && r.Head.OpenCalls[i].MayHaveRun(r.Head.Epoch)
	switch {
	case i < 0:
		return schema.Fail(schema.CodeNotInDoubt, hint, "run %s has no open call %s of turn %d, occurrence %d", r.Run, req.ToolCallID, req.Turn, req.Occurrence)
	case req.CallEpoch != r.Head.OpenCalls[i].Epoch && req.CallEpoch == 0:
		return badField("/call_epoch", fmt.Errorf("is required: the epoch of the attempt that was seen; the present one is %d", r.Head.OpenCalls[i].Epoch))
	case req.CallEpoch != r.Head.OpenCalls[i].Epoch:
		return schema.Fail(schema.CodeConflict, "Look at what the call did outside, and settle it with its epoch as it is now: waymark plan "+r.Run,
			"call %s of turn %d of run %s was begun or settled again in epoch %d: the attempt of epoch %d is over", req.ToolCallID, req.Turn, r.Run,
			r.Head.OpenCalls[i].Epoch, req.CallEpoch)
	case ended && req.How == schema.SettledRerun:
		return schema.Fail(schema.CodeRunEnded, "Settle it otherwise, or let an executor go on with the run: waymark reopen "+r.Run,
			"run %s is %s, and has no executor to run call %s of turn %d again", r.Run, r.Head.Status, req.ToolCallID, req.Turn)
	case !ended && !may && r.Head.OpenCalls[i].State.Requested():
		state := "has not begun"
		if c := r.Head.OpenCalls[i]; c.Replay.Rerunnable() && c.Decision != schema.DecisionAsk && c.Decision != schema.DecisionDeny {
			state = "may be running: as " + string(c.Replay) + ", its begin is not recorded"
		}
		return schema.Fail(schema.CodeNotInDoubt, "The run's executor runs it. To stop it: waymark cancel "+r.Run, "call %s of turn %d is requested and %s",
			req.ToolCallID, req.Turn, state)
	case !ended && !may && r.Head.Status.Claimable():
		return schema.Fail(schema.CodeNotInDoubt, "The command waymark settle opens the next epoch first, which puts the call in doubt. Otherwise settle it once an executor has taken the run over.",
			"call %s of turn %d is open and its executor is gone, but no other one has taken the run over", req.ToolCallID, req.Turn)
	case !ended && !may:
		return schema.Fail(schema.CodeNotInDoubt, hint, "call %s of turn %d is open, but its executor still runs it", req.ToolCallID, req.Turn)
	case req.How == schema.SettledAdopted && r.Head.OpenCalls[i].State != schema.CallLate && len(req.Result) == 0:
		return schema.Fail(schema.CodeConflict, "Give a result, or settle it otherwise.", "call %s of turn %d has no late result to adopt", req.ToolCallID, req.Turn)
	default:
		return nil
	}
}
