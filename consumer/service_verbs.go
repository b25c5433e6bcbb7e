package consumer

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

// get answers a read without takeover.
func (s *Service) get(ctx context.Context, t *task) error {
	var req schema.GetRequest
	if err := t.decode(&req); err != nil {
		return err
	}
	v, err := s.openView(t, req.View, req.After) //nolint:contextcheck // a task carries its own context
	if err != nil {
		return err
	}
	defer v.close()
	r, err := s.proven(ctx, t.run, v.mode())
	if err == nil && r.head.Status == "" {
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
	return s.answer(v, r, func() any {
		return &schema.GetReply{
			Head: r.head, Quarantined: r.head.Quarantined(s.cfg.MaxClaims), Complete: r.complete(), Gaps: r.gaps(), Segments: r.index, Bytes: r.index.Bytes + r.tail.bytes,
		}
	})
}

// list answers with a page of runs, as their checkpoints are.
func (s *Service) list(ctx context.Context, t *task) error {
	var req schema.ListRequest
	if err := t.decode(&req); err != nil {
		return err
	}
	set(&req.Limit, schema.DefaultList)
	if req.Limit < 1 || req.Limit > schema.MaxList {
		return badField("/limit", fmt.Errorf("limit is %d, use 1 to %d", req.Limit, schema.MaxList))
	}
	if req.Related != "" {
		if err := schema.CheckName("run id", req.Related); err != nil {
			return badField("/related", err)
		}
	}
	if req.After != "" {
		if err := schema.CheckName("run id", req.After); err != nil {
			return badField("/after", err)
		}
	}
	for i, status := range req.Status {
		if !slices.Contains(statuses, status) {
			return badField(fmt.Sprintf("/status/%d", i), fmt.Errorf("status %.40q is none of %v", status, statuses))
		}
	}
	page, next, err := s.page(ctx, &req)
	if err != nil {
		return err
	}
	reply := schema.ListReply{Runs: []schema.RunSummary{}, Next: next}
	// A page that does not fit one message ends earlier.
	room := t.svc.nc.MaxPayload()/2 - replyOverhead
	for _, stored := range page {
		sum := s.summary(&stored)
		room -= summarySize(&sum)
		if room < 0 && len(reply.Runs) > 0 {
			reply.Next = reply.Runs[len(reply.Runs)-1].Run
			break
		}
		reply.Runs = append(reply.Runs, sum)
	}
	return t.whole(&reply)
}

var statuses = []schema.Status{
	schema.StatusRunning, schema.StatusWaiting, schema.StatusInterrupted, schema.StatusOrphaned,
	schema.StatusCompleted, schema.StatusFailed, schema.StatusCancelled,
}

// page merges the pages of all shards. Behind the place where a shard stopped looking nothing is known of it, so the
// merged page ends there, too.
func (s *Service) page(ctx context.Context, req *schema.ListRequest) (page []kvstore.Stored, next string, err error) {
	live := req.Quarantined || len(req.Status) > 0 && !slices.ContainsFunc(req.Status, schema.Status.Terminal)
	for _, src := range s.places.Load().shards {
		list := src.store.Checkpoints.List
		if live {
			list = src.store.Checkpoints.ListLive
		}
		part, more, err := list(ctx, req.After, req.Limit, func(c *schema.Checkpoint) bool { return s.matches(c, req) })
		if err != nil {
			return nil, "", err
		}
		page = append(page, part...)
		if more != "" && (next == "" || more < next) {
			next = more
		}
	}
	slices.SortFunc(page, func(a, b kvstore.Stored) int { return strings.Compare(a.Run, b.Run) })
	if next != "" {
		page = slices.DeleteFunc(page, func(p kvstore.Stored) bool { return p.Run > next })
	}
	if len(page) > req.Limit {
		page = page[:req.Limit]
		next = page[req.Limit-1].Run
	}
	return page, next, nil
}

// matches reports whether a checkpoint is one the request asks for.
func (s *Service) matches(c *schema.Checkpoint, req *schema.ListRequest) bool {
	if len(req.Status) > 0 && !slices.Contains(req.Status, c.Status) ||
		req.Quarantined && !c.Quarantined(s.cfg.MaxClaims) ||
		req.Related != "" && !related(c, req.Related) ||
		req.Agent != "" && req.Agent != c.Agent ||
		req.Parent != "" && (c.Parent == nil || c.Parent.Run != req.Parent) {
		return false
	}
	for k, v := range req.Labels {
		if got, ok := c.Labels[k]; !ok || got != v {
			return false
		}
	}
	return true
}

// related reports whether a run was started by another, continues it, or carries out its hand-off.
func related(c *schema.Checkpoint, run string) bool {
	return c.Parent != nil && c.Parent.Run == run || c.ResumedFrom == run || c.Handoff != nil && c.Handoff.Run == run
}

// summary is a checkpoint's line in a list. Of one that cannot be read only the run is known.
func (s *Service) summary(stored *kvstore.Stored) schema.RunSummary {
	c := stored.Checkpoint
	if c == nil {
		return schema.RunSummary{Run: stored.Run}
	}
	sum := schema.RunSummary{
		Run: stored.Run, Agent: c.Agent, Executor: c.Executor, Status: c.Status, Epoch: c.Epoch, Turn: c.Turn,
		OpenCalls: len(c.OpenCalls), InDoubt: len(c.InDoubt()), Events: c.Counts.Events, ToolCalls: c.Counts.ToolCalls,
		ResumedFrom: c.ResumedFrom, Waits: len(c.Interrupts), Quarantined: c.Quarantined(s.cfg.MaxClaims),
		Labels: maps.Clone(c.Labels), Gapped: !c.Complete(), StartedAt: c.StartedAt, UpdatedAt: c.UpdatedAt, Usage: c.Usage,
	}
	if c.Parent != nil {
		sum.Parent = c.Parent.Run
	}
	if c.Handoff != nil {
		sum.HandoffOf = c.Handoff.Run
	}
	return sum
}

// summarySize is the size of a line in JSON, roughly; a page keeps to half of a message, so roughly will do.
func summarySize(sum *schema.RunSummary) int64 {
	n := 512 + len(sum.Run) + len(sum.Agent) + len(sum.Executor) + len(sum.Parent) + len(sum.ResumedFrom) + len(sum.HandoffOf)
	for k, v := range sum.Labels {
		n += len(k) + len(v) + 6
	}
	return int64(n)
}

// history answers with the checkpoints kept of a run.
func (s *Service) history(ctx context.Context, t *task) error {
	reply := schema.HistoryReply{Run: t.run, Checkpoints: []schema.HistoryEntry{}}
	for _, src := range s.places.Load().of(t.run) {
		list, err := src.store.Checkpoints.History(ctx, t.run)
		if err != nil && !errors.Is(err, kvstore.ErrNotFound) {
			return err
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
		if len(list) > 0 {
			break
		}
	}
	if len(reply.Checkpoints) == 0 {
		// No checkpoint yet, or no such run: the log tells.
		if _, err := s.proven(ctx, t.run, mode{}); err != nil {
			return err
		}
	}
	return t.whole(&reply)
}

// settle records an operator's word about a call in doubt.
func (s *Service) settle(ctx context.Context, t *task) error {
	var req schema.SettleRequest
	if err := t.decode(&req); err != nil {
		return err
	}
	if err := schema.CheckName("operator", req.By); err != nil {
		return badField("/by", err)
	}
	if req.ToolCallID == "" {
		return badField("/tool_call_id", errors.New("is required"))
	}
	set(&req.Occurrence, 1)
	data := &schema.ToolSettledData{ToolCallID: req.ToolCallID, How: req.How, Result: req.Result, IsError: req.IsError, By: req.By}
	if _, err := schema.MarshalData(data); err != nil {
		if wrong, ok := errors.AsType[*schema.DataError](err); ok {
			return badField(wrong.Path, err)
		}
		return badField("/", err)
	}
	reply, err := s.control(ctx, t.run, "", func(_ context.Context, r *reading) (decision, error) {
		return decision{data: data, turn: req.Turn}, settleable(r, &req)
	})
	if err != nil {
		return err
	}
	return t.whole(&schema.SettleReply{EventID: reply.EventID, Stream: reply.Stream})
}

// settleable checks that the call is in doubt and can be settled so. The reading is proven.
func settleable(r *reading, req *schema.SettleRequest) error {
	i := slices.IndexFunc(r.head.OpenCalls, func(c schema.OpenCall) bool { return c.CallKey == req.CallKey })
	const hint = "waymark.get shows the run's open calls and which of them are in doubt."
	switch {
	case i < 0:
		return fail(schema.CodeNotInDoubt, hint, "run %s has no open call %s of turn %d, occurrence %d", r.run, req.ToolCallID, req.Turn, req.Occurrence)
	case !r.head.OpenCalls[i].InDoubt:
		return fail(schema.CodeNotInDoubt, hint, "call %s of turn %d is open, but its executor is still at it", req.ToolCallID, req.Turn)
	case req.How == schema.SettledAdopted && !r.head.OpenCalls[i].Late && len(req.Result) == 0:
		return fail(schema.CodeConflict, "Give a result, or settle it otherwise.", "call %s of turn %d has no late result to adopt", req.ToolCallID, req.Turn)
	default:
		return nil
	}
}
