package story

import (
	"context"

	"github.com/waymarkio/waymark/schema"
)

// Pages has pages of runs' records.
type Pages interface {
	// Ask asks the service of the fleet.
	Ask(ctx context.Context, verb, run string, request, reply any) error
	// Decrypt decrypts the content of an event as far as there are keys.
	Decrypt(ctx context.Context, e *schema.Event, data schema.Data) error
}

// Window is the story of a part of a run.
type Window struct {
	// From and Through are the numbers of the first and the last record of the window, Total that of the run's last record.
	From, Through, Total int64
	// Before is the head before the first record.
	Before schema.Head
	// Beats that began in the window.
	Beats []*Beat
	// Incomplete: events of the run are missing.
	Incomplete bool
}

// Lookahead is the number of records read after a window, to find the ends of its beats.
const Lookahead = 128

// ReadWindow reads about limit records of a run: from a record on, through a record, or the latest if both are 0. head is
// the present head. Beats that began before the window are left out.
func ReadWindow(ctx context.Context, pages Pages, head *schema.Head, from, through int64, limit int) (*Window, error) {
	request := schema.RecordsRequest{Limit: limit, Brief: true}
	last := int64(1<<63 - 1)
	from, through = min(from, 1<<62), min(through, 1<<62) // of an address, and what is added fits
	switch {
	case from > 0:
		request.From, request.Limit, last = from, limit+Lookahead, from+int64(limit)-1
	case through > 0:
		request.Through, request.Limit, last = through+Lookahead, limit+Lookahead, through
	}
	reply := new(schema.RecordsReply)
	if err := pages.Ask(ctx, schema.VerbRecords, head.Run, &request, reply); err != nil {
		return nil, err
	}
	s := continued(&reply.Before, head)
	w := &Window{From: max(from, 1), Total: reply.Total, Before: reply.Before, Incomplete: !reply.Complete}
	for i := range reply.Records {
		r := &reply.Records[i]
		if i == 0 {
			w.From = r.Record
		}
		if r.Record <= last {
			w.Through = r.Record
		}
		if err := s.see(ctx, pages, r); err != nil {
			return nil, err
		}
	}
	for _, b := range s.beats {
		if b.Record <= w.Through {
			w.Beats = append(w.Beats, b)
		}
	}
	return w, nil
}

// continued returns the story of a run that begins at an earlier head.
func continued(before, now *schema.Head) *Story {
	s := New(before.Fleet, before.Run)
	s.signals, s.takeovers = len(now.Signals), int(before.Counts.Resumes)
	s.submitted = before.Epoch == 1 && before.Status == schema.StatusInterrupted && before.Turn == 0
	s.latest = schema.ParseTime(before.UpdatedAt)
	for i := range before.OpenCalls {
		c := &before.OpenCalls[i]
		b := &Beat{Kind: KindCall, Turn: c.Turn, What: c.Name, At: c.Since, Open: true, Detail: callRunning}
		switch {
		case c.State.InDoubt():
			b.Open, b.lost = false, true
		case c.State.Requested():
			b.Detail = CallRequested
			s.asked = append(s.asked, c.CallKey)
		}
		s.calls[c.CallKey] = b
	}
	for i := range before.Interrupts {
		w := &before.Interrupts[i]
		b := &Beat{Kind: KindWait, Turn: w.Turn, What: "waits", At: w.Since, Open: true}
		if w.Reason == schema.WaitToolInDoubt {
			b.call = w.CallKey()
		}
		s.waits[w.InterruptID] = b
	}
	if before.TurnOpen && !before.TurnAnswered {
		s.turn = &Beat{Kind: KindModel, Turn: before.Turn, What: "model", At: before.UpdatedAt, Open: true}
	}
	return s
}

// see adds a record of a page.
func (s *Story) see(ctx context.Context, from Pages, r *schema.RecordView) error {
	if r.Verdict != schema.Applied.String() {
		return nil
	}
	e, err := r.Decode()
	if err != nil || e == nil {
		return err
	}
	v := schema.Verdict{Kind: schema.Applied, Event: e}
	if r.Call != nil {
		v.Call = *r.Call
	}
	if v.Data, err = schema.ParseData(e); err != nil {
		v.Data = nil // left out, as the page says
	}
	if v.Data != nil {
		_ = from.Decrypt(ctx, e, v.Data) // what stays encrypted is shown as that
	}
	s.at = moment{r.Record, r.Epoch, r.Turn}
	s.tell(v)
	return nil
}
