package checker

import (
	"fmt"
	"io"
	"strings"
	"time"
)

// Timeline writes the operations and faults: a line for each operation in the order in which they began, with the
// time since the first. Operations for which marked returns true have an arrow.
func (h *History) Timeline(w io.Writer, marked func(*Op) bool) error {
	if len(h.Ops) == 0 {
		_, err := fmt.Fprintln(w, "nothing was done")
		return err
	}
	began := h.Ops[0].Start
	width := 0
	for i := range h.Ops {
		width = max(width, len(h.Ops[i].Actor))
	}
	for i := range h.Ops {
		op := &h.Ops[i]
		mark := "  "
		if marked != nil && marked(op) {
			mark = "> "
		}
		took := "did not return"
		if op.End != 0 {
			took = "took " + time.Duration(op.End-op.Start).Round(time.Microsecond).String()
		}
		if _, err := fmt.Fprintf(w, "%s%5d %12s  %-*s  %s (%s)\n", mark, op.ID, time.Duration(op.Start-began).Round(time.Microsecond),
			width, op.Actor, op.String(), took); err != nil {
			return err
		}
	}
	return nil
}

// String is the operation in one line, without its times.
func (o *Op) String() string {
	var b strings.Builder
	if o.Kind == Fault {
		b.WriteString("*** ")
	}
	b.WriteString(string(o.Kind))
	add := func(format string, value any, set bool) {
		if set {
			fmt.Fprintf(&b, format, value)
		}
	}
	add(" %s", o.Run, o.Run != "")
	add(" %s", o.Detail, o.Detail != "")
	add(" by %s", o.Executor, o.Executor != "")
	add(" request %s", o.Request, o.Request != "")
	add(" epoch %d", o.Epoch, o.Epoch != 0)
	add(" sequence %d", uint64(o.Sequence), o.Sequence != 0)
	add(" event %s", o.Event, o.Event != "")
	add(" token %s", o.Token, o.Token != "")
	outcome := o.Outcome
	if outcome == "" {
		outcome = Unknown
	}
	if o.Kind != Fault || o.Outcome != OK {
		fmt.Fprintf(&b, " -> %s", outcome)
	}
	add(" at %d", uint64(o.Stream), o.Stream != 0)
	if a := o.Answer; a != nil {
		fmt.Fprintf(&b, " {epoch %d sequence %d events %d digest %.8s complete %t %s}", a.Epoch, uint64(a.Sequence), a.Events, a.Digest, a.Complete, a.Status)
	}
	add(": %s", o.Error, o.Error != "")
	return b.String()
}
