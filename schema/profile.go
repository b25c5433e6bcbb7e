package schema

import (
	"maps"
	"slices"
	"time"
)

// profileCells is how many cells a profile has at most; two become one when there would be more.
const profileCells = 2 * MaxBuckets

// Profile sums up the records of a run in cells of equal numbers of records. Its size is bounded, and it grows with the
// run: apply each record in order, from the first.
type Profile struct {
	Model, Provider string
	cells           []ProfileBucket
	// each is the number of records of a cell.
	each int64
	// begun are the times at which the open calls began, waits those of open waits, and turn that of the open turn.
	begun map[CallKey]time.Time
	waits map[string]time.Time
	turn  time.Time
	// submitted: a client submitted the run for an executor to claim, so its first claim is no takeover.
	submitted bool
}

// Apply adds a record: the fold's verdict on it, and the head after it.
func (p *Profile) Apply(h *Head, v *Verdict) {
	if v.Kind == Replayed || v.Kind == Skipped || v.Kind == Regressed || h.Records < 1 {
		return
	}
	c := p.cell(h.Records)
	c.Through = h.Records
	c.Turn = h.Turn
	if v.Kind != Applied {
		return
	}
	if c.Begun == "" {
		c.Begun = v.Event.Time
	}
	c.Ended = v.Event.Time
	at, err := time.Parse(time.RFC3339Nano, v.Event.Time)
	if err != nil {
		at = time.Time{}
	}
	p.data(c, h, v, at)
}

// waiting takes over the open waits of a resumed run: a rewind abandons some waits, and opens others again.
func (p *Profile) waiting(h *Head) {
	was := p.waits
	p.waits = make(map[string]time.Time, len(h.Interrupts))
	for i := range h.Interrupts {
		w := &h.Interrupts[i]
		begun, known := was[w.InterruptID]
		if !known {
			begun, _ = time.Parse(time.RFC3339Nano, w.Since) // without a time it counts nothing
		}
		p.waits[w.InterruptID] = begun
	}
}

// cell returns that of a record.
func (p *Profile) cell(record int64) *ProfileBucket {
	if p.each == 0 {
		p.each, p.begun, p.waits = 1, make(map[CallKey]time.Time), make(map[string]time.Time)
	}
	i := int((record - 1) / p.each)
	for i >= profileCells {
		p.cells = pairs(p.cells)
		p.each *= 2
		i = int((record - 1) / p.each)
	}
	for len(p.cells) <= i {
		p.cells = append(p.cells, ProfileBucket{From: int64(len(p.cells))*p.each + 1, Through: int64(len(p.cells)) * p.each})
	}
	return &p.cells[i]
}

// pairs makes one cell of each two.
func pairs(list []ProfileBucket) []ProfileBucket {
	out := make([]ProfileBucket, 0, (len(list)+1)/2)
	for i := range list {
		if i%2 == 0 {
			out = append(out, list[i])
		} else {
			out[len(out)-1].join(&list[i])
		}
	}
	return out
}

// join adds the bucket that follows.
func (b *ProfileBucket) join(o *ProfileBucket) {
	b.Through = max(b.Through, o.Through)
	b.Turn = o.Turn
	if b.Begun == "" {
		b.Begun = o.Begun
	}
	if o.Ended != "" {
		b.Ended = o.Ended
	}
	b.ModelMS = addClamped(b.ModelMS, o.ModelMS)
	b.CallMS = addClamped(b.CallMS, o.CallMS)
	b.WaitedMS = addClamped(b.WaitedMS, o.WaitedMS)
	b.Calls += o.Calls
	b.Failures += o.Failures
	b.Waits += o.Waits
	b.Takeovers += o.Takeovers
}

// since is the recorded duration of a step, or the time from its begin if none is recorded.
func since(said int64, begun, at time.Time) int64 {
	if said > 0 || begun.IsZero() || at.Before(begun) {
		return said
	}
	return at.Sub(begun).Milliseconds()
}

// data adds an accepted event.
func (p *Profile) data(c *ProfileBucket, h *Head, v *Verdict, at time.Time) {
	if v.Begun {
		p.begun[v.Call] = at
	}
	for _, key := range v.Abandoned {
		delete(p.begun, key)
	}
	closed := func(said int64) {
		c.CallMS = addClamped(c.CallMS, since(said, p.begun[v.Call], at))
		delete(p.begun, v.Call)
	}
	switch d := v.Data.(type) {
	case *RunStartedData:
		p.Model, p.Provider = d.Model, d.Provider
	case *RunInterruptedData:
		p.submitted = p.submitted || h.Epoch == 1 && h.Turn == 0
	case *RunResumedData:
		if !p.submitted || h.Epoch != 2 {
			c.Takeovers++
		}
		p.turn = time.Time{}
		clear(p.begun)
		p.waiting(h)
	case *RunEndedData:
		if d.Status == string(StatusFailed) {
			c.Failures++
		}
		for _, begun := range p.waits {
			c.WaitedMS = addClamped(c.WaitedMS, since(0, begun, at))
		}
		clear(p.waits)
		clear(p.begun)
	case *TurnStartedData:
		p.turn = at
	case *TurnAnsweredData:
		c.ModelMS = addClamped(c.ModelMS, since(d.DurationMS, p.turn, at))
		c.Calls += int64(len(d.Calls))
		p.turn = time.Time{}
		for i, key := range v.Calls {
			if i < len(d.Calls) && d.Calls[i].Error == nil {
				p.begun[key] = at
			}
		}
	case *TurnEndedData:
		if !p.turn.IsZero() {
			c.ModelMS = addClamped(c.ModelMS, since(0, p.turn, at))
		}
		p.turn = time.Time{}
		if d.Error != nil {
			c.Failures++
		}
	case *ToolCalledData:
		if !v.Begun {
			c.Calls++
			p.begun[v.Call] = at
		}
	case *ToolReturnedData:
		closed(d.DurationMS)
	case *ToolFailedData:
		if d.Error.Type == DeniedType {
			delete(p.begun, v.Call)
			return
		}
		c.Failures++
		closed(d.DurationMS)
	case *ToolSettledData:
		delete(p.begun, v.Call)
	case *RunWaitingData:
		c.Waits++
		p.waits[d.InterruptID] = at
	case *RunInputData:
		if begun, open := p.waits[d.InterruptID]; open {
			c.WaitedMS = addClamped(c.WaitedMS, since(0, begun, at))
			delete(p.waits, d.InterruptID)
		}
	case *LimitReachedData, *ErrorRaisedData:
		c.Failures++
	}
}

// Clone returns an independent copy.
func (p *Profile) Clone() Profile {
	c := *p
	c.cells, c.begun, c.waits = slices.Clone(p.cells), maps.Clone(p.begun), maps.Clone(p.waits)
	return c
}

// Buckets returns the profile in at most so many buckets.
func (p *Profile) Buckets(most int) []ProfileBucket {
	list := append([]ProfileBucket{}, p.cells...)
	for len(list) > most {
		list = pairs(list)
	}
	return list
}

// Total is the run as one bucket.
func (p *Profile) Total() ProfileBucket {
	if len(p.cells) == 0 {
		return ProfileBucket{}
	}
	return p.Buckets(1)[0]
}
