package service

import (
	"context"
	"errors"
	"slices"

	"github.com/waymarkio/waymark/consumer/reader"
	"github.com/waymarkio/waymark/schema"
)

// signal sends a message to a run that has not ended. The sender's id names it: a repeat finds its first try, from
// whichever executor of the sender's run it comes.
func (s *Service) signal(t *task, req *schema.SignalRequest) (c change, err error) {
	if err := onlyEncrypted(req.Refs, "/payload"); err != nil {
		return c, err
	}
	if c.who, err = t.sender(req.By); err != nil {
		return c, err
	}
	data := &schema.SignalSentData{SignalID: req.SignalID, Name: req.Name, Payload: req.Payload, Refs: req.Refs, By: c.who.by, Claimed: c.who.claimed}
	if _, err := schema.MarshalData(data); err != nil {
		if wrong, ok := errors.AsType[*schema.DataError](err); ok {
			return c, badField(wrong.Path, err)
		}
		return c, badField("/", err)
	}
	most := schema.MaxSignalPayload
	if len(req.Refs) > 0 {
		most = schema.MaxEncryptedSignal
	}
	if n := len(req.Payload); n > most {
		return c, schema.Fail(schema.CodeTooLarge, "Put it where the run's executor finds it, such as an artifact of the sender's run, and send its name.",
			"the payload of signal %.80q has %d bytes, at most %d are taken", req.SignalID, n, most)
	}
	same := func(first *schema.Event) error { return sameSignal(t.run, first, req) }
	c.once = onceID{id: signalOnce(req.SignalID), fact: true, same: same} // a rewind opens the signal again
	c.decide = func(ctx context.Context, r *reader.Snapshot) (decision, error) {
		if open := slices.IndexFunc(r.Head.Signals, func(o schema.OpenSignal) bool { return o.SignalID == req.SignalID }); open >= 0 {
			return s.signalOpen(ctx, r, &r.Head.Signals[open], same)
		}
		return decision{data: data}, signallable(r)
	}
	return c, nil
}

// signalOnce ends the id of the event that sends the signal.
func signalOnce(id string) string { return onceOf("signal", id) }

// signalOpen answers for an open signal that is too far back in the log to be found by its event's id; same refuses a
// different one.
func (s *Service) signalOpen(ctx context.Context, r *reader.Snapshot, o *schema.OpenSignal, same func(*schema.Event) error) (decision, error) {
	e, found, err := s.reader.EventAt(ctx, r, o.Position)
	there := &schema.ControlReply{EventID: o.Position.ID, Stream: o.Position.Stream}
	if found && err == nil {
		if data, err := schema.ParseData(e); err == nil {
			there.By, _ = schema.DecidedBy(data)
		}
		err = same(e)
	}
	return decision{there: there}, err
}

// signallable refuses a run that cannot receive a signal now. The read is proven.
func signallable(r *reader.Snapshot) error {
	switch {
	case r.Head.Status.Terminal():
		return errEnded(r)
	case len(r.Head.Signals) >= schema.MaxSignals:
		return schema.Fail(schema.CodeTooManySignals, "Send it again, with the same signal_id, when the run has consumed some: "+hintRun,
			"run %s has %d signals that are not consumed, the most that a run can have", r.Run, schema.MaxSignals)
	}
	return nil
}

// sameSignal refuses a request with the signal_id of a different signal of the run.
func sameSignal(run string, e *schema.Event, req *schema.SignalRequest) error {
	data, _ := schema.ParseData(e) // an unreadable event is no signal
	first, ok := data.(*schema.SignalSentData)
	if !ok || first.Name == req.Name && schema.SameJSON(first.Payload, req.Payload) {
		return nil
	}
	return schema.Fail(schema.CodeConflict, "Give each signal a signal_id of its own.",
		"signal_id %.80q of run %s names another signal already: %.80q by %s", req.SignalID, run, first.Name, nameOf(first.By, first.Claimed))
}
