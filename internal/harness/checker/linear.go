package checker

import (
	"fmt"
	"slices"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/waymarkio/waymark/schema"
)

// linearTime bounds the search for an order of one run's operations. It grows with the operations that overlap, which in a
// test are few.
const linearTime = 30 * time.Second

// runState is a run's state for publishers, takeovers and readers.
type runState struct {
	epoch    schema.Epoch
	sequence schema.Sequence
	request  string
}

// linear: there is an order of the run's operations in which each takes effect at one moment between its start and
// its end.
//
// A run that never began is in epoch 0. An executor's event of epoch e and sequence s is accepted in state (e, s-1)
// and makes it (e, s); the first event begins epoch 1. A takeover is answered with the next epoch, or with the
// current one if the same request opened it; one that only the log shows happened at any time since its request. A
// read is answered with the state. An operation that failed as fenced did so in a later epoch. An operation of
// unknown outcome takes effect once, at any time since its start, or never.
func (c *runCheck) linear() {
	var ops []porcupine.Operation
	clients := map[string]int{}
	forever := int64(0)
	for _, op := range c.ops {
		forever = max(forever, op.Start, op.End)
	}
	add := func(op *Op, end int64) {
		client, known := clients[op.Actor]
		if !known {
			client = len(clients)
			clients[op.Actor] = client
		}
		ops = append(ops, porcupine.Operation{ClientId: client, Input: op, Output: op, Call: op.Start, Return: end})
	}
	for _, op := range c.ops {
		if !linearizable(op) || c.told(op) {
			continue
		}
		end := op.End
		if op.Outcome != OK && op.Outcome != Failed || end == 0 {
			end = forever + 1
		}
		add(op, end)
	}
	for _, op := range c.unanswered() {
		add(op, max(op.End, forever+1))
	}
	if len(ops) == 0 || c.damaged() || c.opts.Unlogged {
		return
	}
	result := porcupine.CheckOperationsTimeout(linearModel.ToModel(), ops, linearTime)
	switch result {
	case porcupine.Ok:
	case porcupine.Illegal:
		c.add(RuleLinear, idsOf(ops), "there is no order of the run's operations that explains what they were answered")
	case porcupine.Unknown:
		c.add(RuleLinear, nil, "no order of %d operations was found or excluded within %s: fewer of them should overlap", len(ops), linearTime)
	}
}

// unanswered are the epochs in the log without an answer: a takeover with an unknown outcome had opened one, or its
// first try had, before its second one opened another.
func (c *runCheck) unanswered() []*Op {
	answered := map[schema.Epoch]bool{}
	by := map[string]*Op{}
	for _, op := range c.ops {
		if op.Kind != Takeover {
			continue
		}
		if op.done() && op.Answer != nil {
			answered[op.Answer.Epoch] = true
		}
		if first := by[op.Request]; first == nil || op.Start < first.Start {
			by[op.Request] = op
		}
	}
	var ops []*Op
	for i := range c.log {
		x := &c.log[i]
		if x.counts == 0 || x.request == "" || answered[x.event.Epoch] || by[x.request] == nil {
			continue
		}
		op := *by[x.request]
		op.Outcome, op.End, op.Answer = OK, 0, &Answer{Epoch: x.event.Epoch}
		ops = append(ops, &op)
	}
	return ops
}

func idsOf(ops []porcupine.Operation) []int64 {
	ids := make([]int64, 0, len(ops))
	for _, o := range ops {
		if op, ok := o.Input.(*Op); ok {
			ids = append(ids, op.ID)
		}
	}
	slices.Sort(ids)
	return ids
}

// linearizable reports whether an operation concerns the run's epoch and sequence.
func linearizable(op *Op) bool {
	switch op.Kind {
	case Publish:
		return !op.Evidence && op.Epoch != 0 && op.Sequence != 0 && (op.Outcome != Failed || op.Fenced)
	case Takeover, Read:
		return op.answered()
	default:
		return false
	}
}

var linearModel = porcupine.NondeterministicModel{
	Init: func() []any { return []any{runState{}} },
	Step: func(state, input, _ any) []any {
		s, sok := state.(runState)
		op, ok := input.(*Op)
		if !sok || !ok {
			return nil
		}
		return s.step(op)
	},
	Equal: func(a, b any) bool { return a == b },
	DescribeOperation: func(input, _ any) string {
		return fmt.Sprint(input)
	},
}

// step returns the possible states after an operation.
func (s runState) step(op *Op) []any {
	var next []any
	kind := op.Kind
	if kind == Takeover && op.Outcome == Failed {
		kind = Read // it got the current state
	}
	switch kind {
	case Publish:
		if op.Fenced {
			if s.epoch > op.Epoch {
				next = append(next, s)
			}
			return next
		}
		now := s
		if now.epoch == 0 {
			now.epoch = 1
		}
		if op.Epoch == now.epoch && op.Sequence == now.sequence+1 {
			now.sequence++
			next = append(next, now)
		}
	case Takeover:
		switch a := op.Answer; {
		case s.epoch != 0 && a.Epoch == s.epoch+1 && a.Sequence == 0:
			return append(next, runState{epoch: a.Epoch, request: op.Request})
		case a.Epoch == s.epoch && a.Sequence == s.sequence && s.request == op.Request:
			return append(next, s)
		}
		return nil
	case Read:
		if a := op.Answer; a.Epoch == s.epoch && a.Sequence == s.sequence {
			next = append(next, s)
		}
		return next
	default:
	}
	if !op.done() {
		next = append(next, s) // it never happened
	}
	return next
}
