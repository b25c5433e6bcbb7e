package checker

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/go-json-experiment/json"
)

// Recorder records the operations of one process. Many goroutines may use it.
type Recorder struct {
	began time.Time
	base  int64

	mu   sync.Mutex
	ops  []*Op
	next int64
	w    io.Writer
	err  error
	// written: operations are kept in w alone.
	written bool
}

// NewRecorder returns a recorder that writes JSON lines to w as operations begin and end; nil keeps them in memory alone.
// first is the id of its first operation: recorders whose histories are put together count from numbers far apart.
func NewRecorder(w io.Writer, first int64) *Recorder {
	now := time.Now()
	return &Recorder{began: now, base: now.UnixNano(), next: first, w: w}
}

// NewWriter returns a recorder like NewRecorder, but keeps nothing in memory: its History is empty, and its size does
// not grow.
func NewWriter(w io.Writer, first int64) *Recorder {
	r := NewRecorder(w, first)
	r.written = true
	return r
}

// Now is the time of the history.
func (r *Recorder) Now() int64 { return r.base + int64(time.Since(r.began)) }

// Begin records that an operation begins. It is written before Begin returns, so call it before anything is sent.
func (r *Recorder) Begin(op Op) *Op {
	r.mu.Lock()
	defer r.mu.Unlock()
	op.ID, op.Start, op.End, op.Outcome = r.next, r.Now(), 0, ""
	r.next++
	kept := op
	if !r.written {
		r.ops = append(r.ops, &kept)
	}
	r.write(&kept)
	return &kept
}

// End records how an operation ended. change sets the outcome and the answer.
func (r *Recorder) End(op *Op, change func(*Op)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	change(op)
	if op.Outcome == "" {
		op.Outcome = Unknown
	}
	op.End = r.Now()
	r.write(op)
}

func (r *Recorder) write(op *Op) {
	if r.w == nil || r.err != nil {
		return
	}
	line, err := json.Marshal(op)
	if err == nil {
		_, err = r.w.Write(append(line, '\n'))
	}
	r.err = err
}

// Err is the first error of writing.
func (r *Recorder) Err() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.err
}

// History is the recorded history so far.
func (r *Recorder) History() *History {
	r.mu.Lock()
	defer r.mu.Unlock()
	h := &History{Ops: make([]Op, 0, len(r.ops))}
	for _, op := range r.ops {
		h.Ops = append(h.Ops, *op)
	}
	h.sort()
	return h
}

// History is the operations, in the order in which they began.
type History struct {
	Ops []Op
}

func (h *History) sort() {
	slices.SortStableFunc(h.Ops, func(a, b Op) int {
		switch {
		case a.Start != b.Start:
			return compare(a.Start, b.Start)
		default:
			return compare(a.ID, b.ID)
		}
	})
}

func compare(a, b int64) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

// Write writes a history as JSON lines.
func (h *History) Write(w io.Writer) error {
	for i := range h.Ops {
		line, err := json.Marshal(&h.Ops[i])
		if err != nil {
			return fmt.Errorf("operation %d: %w", h.Ops[i].ID, err)
		}
		if _, err := w.Write(append(line, '\n')); err != nil {
			return err
		}
	}
	return nil
}

// ReadHistory puts histories together. Of an operation that has two lines the second counts; one that has only its beginning did not
// return. A last line that is cut short, as a kill leaves it, is left out.
func ReadHistory(from ...io.Reader) (*History, error) {
	h := new(History)
	at := make(map[int64]int)
	for n, r := range from {
		lines := bufio.NewReader(r)
		for number := 1; ; number++ {
			line, err := lines.ReadBytes('\n')
			if errors.Is(err, io.EOF) {
				break // with the rest after the last line feed
			}
			if err != nil {
				return nil, fmt.Errorf("history %d: %w", n+1, err)
			}
			var op Op
			if err := json.Unmarshal(line, &op); err != nil {
				return nil, fmt.Errorf("history %d, line %d: %w", n+1, number, err)
			}
			i, begun := at[op.ID]
			switch {
			case !begun:
				at[op.ID] = len(h.Ops)
				h.Ops = append(h.Ops, op)
			case h.Ops[i].Actor != op.Actor || h.Ops[i].Start != op.Start:
				return nil, fmt.Errorf("history %d, line %d: operation %d of %s is one of %s already", n+1, number, op.ID, op.Actor, h.Ops[i].Actor)
			default:
				h.Ops[i] = op
			}
		}
	}
	h.sort()
	return h, nil
}
