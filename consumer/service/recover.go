package service

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/waymarkio/waymark/consumer/internal/control"
	"github.com/waymarkio/waymark/consumer/internal/logkey"
	"github.com/waymarkio/waymark/consumer/reader"
	"github.com/waymarkio/waymark/internal/base/failpoint"
	"github.com/waymarkio/waymark/internal/base/keyring"
	"github.com/waymarkio/waymark/internal/base/pause"
	"github.com/waymarkio/waymark/schema"
)

// takeover opens the next epoch of a run for the request's executor, or continues the one that an earlier try of the
// request opened. The returned read ends with the event that opened it, or after it for a later repeat.
//
// prepare is called with each read before its takeover is published: failures for the client's own reasons come
// before any change.
//
// to is the point after which a rewind continues, and nil for any other takeover. A read before a rewind shows
// records that it abandons, so the run is read again after it, as for a repeated request.
func (w *controlWriter) takeover(ctx context.Context, run string, req *schema.RecoverRequest, to *schema.Point, want reader.Want,
	prepare func(*reader.Snapshot) error,
) (*reader.Snapshot, error) {
	if to != nil {
		want = reader.Content // the point is searched in it
	}
	rewound := false
	for {
		r, err := w.routing.undoubted(ctx, run, func() (*reader.Snapshot, error) {
			r, err := w.routing.reader.Repeat(ctx, run, func() (*reader.Snapshot, error) {
				return w.routing.find(ctx, run, want)
			})
			if err == nil && (r.Empty() || r.Head.Status == "") {
				// Stale answers can hide a run; only a barrier proves that there is none.
				r, err = w.routing.proven(ctx, run, want)
			}
			return r, err
		})
		if err != nil {
			return nil, err
		}
		again, refusal := w.judge(r, req)
		if rewound && !again && refusal == nil {
			// This request opened its epoch already. A second rewind would fence the next executor, and abandon its
			// work.
			refusal = schema.Fail(schema.CodeConflict, "Look at the run, then ask again with a request_id of its own: "+hintRun,
				"run %s was rewound, and another takeover came right behind: executor %s has it in epoch %d", r.Run, r.Head.Executor, r.Head.Epoch)
		}
		if again || refusal != nil {
			now, err := w.routing.reader.Current(ctx, r)
			switch {
			case err != nil:
				return nil, err
			case !now:
				continue
			case refusal != nil:
				return nil, refusal
			}
			if to != nil && !rewound {
				if _, err := w.firstRewind(ctx, r, req, to); err != nil {
					return nil, err
				}
			}
			if err := prepare(r); err != nil {
				return nil, err
			}
			return r, nil
		}
		if err := prepare(r); err != nil {
			return nil, err
		}
		var base *schema.Base
		name := ""
		if to != nil {
			if name, err = w.firstRewind(ctx, r, req, to); err != nil {
				return nil, err
			}
			if base, err = w.routing.reader.Rewind(ctx, r, *to); err != nil {
				return nil, err
			}
		}
		opened, err := w.open(ctx, r, req, name, base)
		if err != nil {
			return nil, err
		}
		if opened {
			w.stats.Takeovers.Add(1)
			if to == nil {
				return r, nil
			}
			rewound, req.ExpectedEpoch = true, 0 // the read after it is in the epoch that was opened
			continue
		}
		// Another takeover or an earlier try of ours came first: the next read tells which.
		if err := pause.For(ctx, retryPause); err != nil {
			return nil, fmt.Errorf("run %s: %w: %w", run, err, control.ErrRefused)
		}
	}
}

// firstRewind refuses a rewind whose request id did an earlier one, or one to another point: a late repeat would abandon
// another executor's work. It returns the request's name.
func (w *controlWriter) firstRewind(ctx context.Context, r *reader.Snapshot, req *schema.RecoverRequest, to *schema.Point) (string, error) {
	c := change{name: schema.RequestName("rewind", req.RequestID)}
	c.same = repeatOf(r.Run, func(d *schema.RunResumedData, e *schema.Event, _ error) error {
		switch {
		case d.To == nil || d.To.Point != to.String():
			return schema.Fail(schema.CodeConflict, hintOwnRequestID, "request_id %s opened epoch %d of run %s elsewhere than at %s", req.RequestID, e.Epoch, r.Run, to)
		case e.Epoch != r.Head.Epoch:
			return schema.Fail(schema.CodeConflict, "Look at the run, then ask again with a request_id of its own: "+hintRun,
				"request_id %s rewound run %s to %s in epoch %d, and executor %s has it in epoch %d", req.RequestID, r.Run, to, e.Epoch, r.Head.Executor, r.Head.Epoch)
		}
		return nil
	})
	if there, err := w.earlier(ctx, r, &c, nil); err != nil || there != nil {
		return "", err
	}
	return c.nameIn(&r.Head)
}

// hintOwnRequestID is the hint for a request_id that an earlier takeover used.
const hintOwnRequestID = "Use a request_id of its own for every takeover."

// judge tells, from the read, whether the request's epoch is open already, or why the request must be refused. Both
// need a proven read.
func (w *controlWriter) judge(r *reader.Snapshot, req *schema.RecoverRequest) (again bool, refusal *schema.ServiceError) {
	h := &r.Head
	pauses := h.PausedBy(w.pauses())
	switch {
	case h.Status == "":
		return false, errNothingAccepted(r.Run)
	case req.Agent != "" && h.Agent != "" && req.Agent != h.Agent:
		return false, schema.Fail(schema.CodeWrongAgent, "Ask with an executor of agent "+h.Agent+".", "run %s is one of agent %s, not %s", r.Run, h.Agent, req.Agent)
	case h.RequestID == req.RequestID && h.Epoch > 1:
		if h.Executor != req.Executor {
			return false, schema.Fail(schema.CodeConflict, hintOwnRequestID,
				"request_id %s opened epoch %d of run %s for executor %s", req.RequestID, h.Epoch, r.Run, h.Executor)
		}
		if n := len(h.Superseded); (req.Reason == schema.TakeoverRewind) != (n > 0 && h.Superseded[n-1].Epoch == h.Epoch) {
			return false, schema.Fail(schema.CodeConflict, hintOwnRequestID,
				"request_id %s opened epoch %d of run %s for another reason than %s", req.RequestID, h.Epoch, r.Run, req.Reason)
		}
		return true, nil
	case req.After != "":
		return false, schema.Fail(schema.CodeConflict, "Look at the run, and decide again: "+hintRun,
			"run %s was taken over before all of it was read: executor %s has it in epoch %d", r.Run, cmp.Or(h.Executor, "none"), h.Epoch)
	case moved(h, req.ExpectedEpoch) != nil:
		return false, moved(h, req.ExpectedEpoch)
	case h.Status.Terminal() && req.Reason != schema.TakeoverReopen && req.Reason != schema.TakeoverRewind:
		return false, errEnded(r)
	case len(pauses) > 0:
		return false, errPaused(r.Run, &pauses[0])
	case req.Reason == schema.TakeoverClaim && !h.Status.Claimable():
		return false, schema.Fail(schema.CodeConflict, "Claim another run, or ask with reason request to take it over all the same.",
			"run %s is %s with executor %s and not to be claimed", r.Run, h.Status, h.Executor)
	case req.Reason == schema.TakeoverClaim && h.Quarantined(w.maxClaims):
		return false, schema.Fail(schema.CodeQuarantined, "Look at what it stops at, then: waymark release "+r.Run+"; or ask with reason request.",
			"run %s is quarantined: %d claims in a row made no progress", r.Run, h.Stalled)
	default:
		return false, nil
	}
}

// moved refuses a request whose sender saw another epoch of the run than the current one; 0 is any.
func moved(h *schema.Head, expected schema.Epoch) *schema.ServiceError {
	if expected == 0 || expected == h.Epoch {
		return nil
	}
	why := "was taken over: it is"
	if expected > h.Epoch {
		why = "is" // the sender did not see that, or not in this run
	}
	return schema.Fail(schema.CodeConflict, "Look at the run, and decide again: "+hintRun,
		"run %s %s in epoch %d, with executor %s, and not in epoch %d", h.Run, why, h.Epoch, cmp.Or(h.Executor, "none"), expected)
}

// open publishes the takeover after the read's last event and folds it; a claim's needs places at that event. name is the request's, if it is a rewind, and
// to is as in [schema.RunResumedData]. It reports false if another event came first. The acknowledgement is both
// barrier and fence: it comes from the real leader, and the older executor's next compare-and-set fails.
func (w *controlWriter) open(ctx context.Context, r *reader.Snapshot, req *schema.RecoverRequest, name string, to *schema.Base) (bool, error) {
	h := &r.Head
	data := &schema.RunResumedData{
		Executor: req.Executor, Instance: req.Instance, Reason: req.Reason, RequestID: req.RequestID,
		From: schema.From{Epoch: h.Epoch, Sequence: h.Sequence, Digest: h.Digest}, To: to,
	}
	e, err := schema.NewControl(w.fleet, w.replica, r.Run, h.Epoch+1, schema.RequestNonce(name), data, w.now())
	if err != nil {
		return false, fmt.Errorf("takeover of run %s: %w", r.Run, err)
	}
	if err := w.keys.Sign(ctx, e, h.Digest); err != nil {
		return false, fmt.Errorf("takeover of run %s: %w", r.Run, err)
	}
	if req.Reason == schema.TakeoverClaim {
		if err := w.places.take(ctx, r); err != nil {
			return false, err
		}
	}
	if err := failpoint.Hit(ctx, failpoint.BeforeTakeover); err != nil {
		return false, err
	}
	at, err := control.Publish(ctx, w.js, r.Source.Store, e, r.LogLast)
	if errors.Is(err, control.ErrRefused) {
		w.stats.Refused.Add(1)
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("takeover of run %s: %w", r.Run, err)
	}
	if err := failpoint.Hit(ctx, failpoint.AfterTakeover); err != nil {
		return false, err
	}
	return w.advance(ctx, r, e, at)
}

// advance folds the log up to a control event at its position. It reports false if the event is not there. If the
// fold refuses the event it returns an error, because the next one would be refused, too: [keyring.ErrSigner] for its
// signature, else the answer to the request.
func (w *controlWriter) advance(ctx context.Context, r *reader.Snapshot, e *schema.Event, at schema.StreamSequence) (bool, error) {
	v, err := w.routing.reader.Advance(ctx, r, at)
	switch {
	case err != nil || v.Event == nil || v.Event.ID != e.ID || v.Kind != schema.Applied && v.Kind != schema.Rejected:
		return false, err
	case v.Kind == schema.Applied:
		return true, nil
	case v.Reason == schema.ReasonUnsigned, v.Reason == schema.ReasonMisplaced:
		return false, fmt.Errorf("%w: run %s refused event %s as %s: %s", keyring.ErrSigner, r.Run, e.ID, v.Reason, v.Detail)
	default:
		return false, errFoldRefuses(r.Run, e, &v)
	}
}

// recover answers a takeover.
func (s *Service) recover(ctx context.Context, t *task) error {
	var req schema.RecoverRequest
	if err := t.decode(&req); err != nil {
		return err
	}
	to, err := rewindPoint(&req)
	if err != nil {
		return err
	}
	v, err := s.openView(t, req.View, req.After)
	if err != nil {
		return err
	}
	defer v.close()
	r, err := s.writer.takeover(ctx, t.run, &req, to, v.want(), func(r *reader.Snapshot) error {
		if v.view == schema.ViewEvents {
			// The executor of a fork reads its base's events next, and cannot use the fork without them.
			if err := s.reader.CheckBases(ctx, r.Run, r.Head.Base); err != nil {
				return err
			}
		}
		return v.prepare(ctx, r)
	})
	if err == nil && req.After == "" {
		err = s.stillPaused(ctx, &r.Head, req.Reason)
	}
	if err != nil {
		return err
	}
	if err := v.finish(ctx, r); err != nil {
		return err
	}
	inDoubt := r.Head.InDoubt()
	if inDoubt == nil {
		inDoubt = []schema.OpenCall{}
	}
	if req.After == "" {
		s.log.Info().Str(logkey.Run, r.Run).Uint32("epoch", uint32(r.Head.Epoch)).Str("executor", req.Executor).Str(logkey.Reason, req.Reason).Msg("run taken over")
	}
	err = s.answer(ctx, v, r, func(state *schema.State, next string) any {
		return &schema.RecoverReply{
			Head: r.Head, State: state, Next: next, Epoch: r.Head.Epoch, NextSequence: r.Head.Sequence + 1, LastStream: r.LogLast,
			InDoubt: inDoubt, Complete: r.Complete(), Gaps: r.Gaps(), Segments: r.Segments,
			Shard: r.Source.Store.Names.Shard, Damage: r.Damage,
		}
	})
	if err == nil && req.After == "" {
		s.stats.Recovery.Observe(max(s.now().Sub(t.arrived), 0).Seconds())
	}
	return err
}

// rewindPoint is the earlier record after which a rewind continues; nil for a request that continues after the last.
func rewindPoint(req *schema.RecoverRequest) (*schema.Point, error) {
	switch {
	case req.Reason != schema.TakeoverRewind && req.At != "":
		return nil, badField("/at", errors.New("goes with reason rewind; waymark.get shows a run at a point"))
	case req.Reason != schema.TakeoverRewind:
		return nil, nil //nolint:nilnil // nil means no point
	}
	p, err := schema.ParsePoint(req.At)
	switch {
	case err != nil:
		return nil, badField("/at", err)
	case p.Kind == schema.PointEnd:
		return nil, badField("/at", errors.New("nothing is after the end of the run: take it over with reason request, or reopen if it has ended"))
	}
	return &p, nil
}
