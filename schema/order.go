package schema

// Order follows the stream sequences of a run's records in the order in which they are read: from segments and log, or
// from an answer of the daemon. They rise, unless the log was damaged or created again after older events had been
// sealed. Then they start again, and the records that follow come after all earlier ones. The zero Order is before the
// first record.
type Order struct {
	// Last is the stream sequence of the last record.
	Last StreamSequence
}

// Next makes a head accept a record as the next one. Call it before each record is applied.
func (o *Order) Next(h *Head, rec *Record) {
	if rec.Stream != 0 && rec.Stream <= o.Last {
		h.Position = Position{}
	}
	o.Last = rec.Stream
}

// Step is a record of a walk through a run, the fold's verdict on it, and the head after it. The head is valid during
// the call that gets it.
type Step struct {
	Record
	Verdict
	Head *Head
}
