package publisher

import (
	"fmt"
	"time"

	"github.com/waymarkio/waymark/schema"
)

// meet folds the next message after the last known one, from any writer. items are the events that this handle is
// delivering.
func (l *ledger) meet(keys *schema.Keys, rec *schema.Record, items []*item) error {
	control, err := l.meetLocked(keys, rec, items)
	if control != nil && l.onControl != nil {
		l.onControl(control.Event, control.Data)
	}
	return err
}

// meetLocked returns the verdict of a control event.
func (l *ledger) meetLocked(keys *schema.Keys, rec *schema.Record, items []*item) (control *schema.Verdict, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if rec.Stream <= l.last {
		return nil, nil
	}
	e, err := schema.Decode(rec.Header, rec.Body)
	if err != nil {
		e = nil
	}
	if err := l.fencedAt(e, items); err != nil {
		return nil, err
	}
	for _, it := range items {
		if e != nil && it.stream == 0 && e.ID == it.event.ID && e.Sequence == l.writer.Last+1 {
			l.durableLocked(it, rec.Stream, time.Time{})
			return nil, nil
		}
	}
	if err := l.fencedBy(keys, rec, e); err != nil {
		return nil, err
	}
	v := l.fold.state.Apply(keys, rec)
	l.last, l.lastID = rec.Stream, schema.RecordID(rec, e)
	if v.Kind == schema.Rejected && v.Reason == schema.ReasonForked && e.Epoch == l.writer.Epoch {
		return nil, l.dieLocked(fmt.Errorf("run %s: %w: %s at stream sequence %d: %s", l.run, ErrForked, e.ID, rec.Stream, v.Detail))
	}
	if outdates(v, items) {
		return nil, fmt.Errorf("run %s: %w: a late result of call %s of turn %d was recorded first", l.run, errOutdated, v.Call.ToolCallID, v.Call.Turn)
	}
	if v.Kind != schema.Applied {
		return nil, nil
	}
	l.calls.note(v, true)
	l.wake()
	return &v, l.observe(&v, items)
}

// fencedAt returns the error of a message that ends a handle wherever it stands: the run's tombstone, and any message in
// place of the first event of a start.
func (l *ledger) fencedAt(e *schema.Event, items []*item) error {
	starting := l.stage == handleStarting
	switch erased := schema.ErasedMark(e); {
	case erased && starting:
		return l.dieLocked(fmt.Errorf("start of run %s: %w: %w: choose another id", l.run, ErrRunExists, ErrRunErased))
	case erased:
		return l.dieLocked(fmt.Errorf("run %s: %w: stop working on it", l.run, ErrRunErased))
	// An identical start, by an executor of the same name at the same time, is another process's unless this handle
	// sent it before.
	case starting && (e == nil || len(items) == 0 || e.ID != items[0].event.ID || !items[0].sent):
		return l.dieLocked(fmt.Errorf("start of run %s: %w: resume it, or choose another id", l.run, ErrRunExists))
	}
	return nil
}

// fencedBy returns the error of an event of another writer that shows that the run is not this handle's any more.
func (l *ledger) fencedBy(keys *schema.Keys, rec *schema.Record, e *schema.Event) error {
	switch {
	case e == nil:
	case e.Epoch > l.writer.Epoch && !l.fold.forged(keys, rec):
		return l.dieLocked(fmt.Errorf("run %s: %w: %s holds epoch %d, this handle has %d: stop working on the run", l.run, ErrFenced, holder(e), e.Epoch, l.writer.Epoch))
	case e.Epoch == l.writer.Epoch && e.Sequence > l.writer.Last:
		return l.dieLocked(fmt.Errorf("run %s: %w: %s at stream sequence %d is not from this handle", l.run, ErrForked, e.ID, rec.Stream))
	}
	return nil
}

// observe notes a request to cancel and a signal. It returns an error if one of them prevents the publication of items.
func (l *ledger) observe(v *schema.Verdict, items []*item) error {
	switch v.Data.(type) {
	case *schema.RunCancelRequestedData:
		if !l.fold.head.CancelRequested {
			return nil
		}
		l.haltWith(l.cancelError())
		l.cancelUnseen = true
		return l.cancelled(items)
	case *schema.SignalSentData:
		l.signalUnseen = true
		if l.guarded(items) {
			return l.signalledError()
		}
	}
	return nil
}

// cancelled returns, once, that the run is to be cancelled, if one of items begins new work: that must not begin after
// a request that the executor does not know of. Its next try may: then the executor knows. Under mu.
func (l *ledger) cancelled(items []*item) error {
	if !l.cancelUnseen || !l.fold.head.CancelRequested || len(items) == 0 || !beginsWork(items) {
		return nil
	}
	l.cancelUnseen = false
	return fmt.Errorf("%w: %s was not published", l.cancelError(), items[0].event.Name())
}
