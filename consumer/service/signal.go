package service

import (
	"context"
	"fmt"
	"strings"

	"github.com/waymarkio/waymark/consumer/reader"
	"github.com/waymarkio/waymark/schema"
)

// signal sends a message to a run that has not ended. The sender's id names it: a repeat finds its first try, from
// whichever executor of the sender's run it comes.
func (*Service) signal(t *task, req *schema.SignalRequest) (c change, err error) {
	if err := onlyEncrypted(req.Refs, "/payload"); err != nil {
		return c, err
	}
	if strings.HasPrefix(req.SignalID, schema.ChildPrefix) {
		return c, badField("/signal_id", fmt.Errorf("begins with %s, as those of the daemon about a child's end do", schema.ChildPrefix))
	}
	if c.who, err = t.sender(req.By); err != nil {
		return c, err
	}
	data := &schema.SignalSentData{SignalID: req.SignalID, Name: req.Name, Payload: req.Payload, Refs: req.Refs, By: c.who.by, Claimed: c.who.claimed}
	if _, err := schema.MarshalData(data); err != nil {
		return c, wrongField(err)
	}
	most := schema.MaxSignalPayload
	if len(req.Refs) > 0 {
		most = schema.MaxEncryptedSignal
	}
	if n := len(req.Payload); n > most {
		return c, schema.Fail(schema.CodeTooLarge, "Put it where the run's executor finds it, such as an artifact of the sender's run, and send its name.",
			"the payload of signal %.80q has %d bytes, at most %d are taken", req.SignalID, n, most)
	}
	c.name, c.frequent = schema.RequestName("signal", req.SignalID), true
	c.same = repeatOf(t.run, func(first *schema.SignalSentData, _ *schema.Event, _ error) error {
		return sameSignal(t.run, first, req)
	})
	c.decide = func(_ context.Context, r *reader.Snapshot) (decision, error) {
		return decision{data: data}, signallable(r)
	}
	return c, nil
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
func sameSignal(run string, first *schema.SignalSentData, req *schema.SignalRequest) error {
	if first.Name == req.Name && schema.SameJSON(first.Payload, req.Payload) {
		return nil
	}
	return schema.Fail(schema.CodeConflict, "Give each signal a signal_id of its own.",
		"signal_id %.80q of run %s names another signal already: %.80q by %s", req.SignalID, run, first.Name, nameOf(first.By, first.Claimed))
}
