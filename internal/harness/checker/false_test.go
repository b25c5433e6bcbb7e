package checker_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/harness/checker"
	"github.com/waymarkio/waymark/schema"
)

// Histories with an error that is easily overlooked: the records agree with each other in ids, digests and numbers.
func TestHistory_SubtleViolation_Refused(t *testing.T) {
	call := &schema.ToolCalledData{ToolCallID: "c1", Name: "charge", Replay: schema.ReplayHold}
	tests := []struct {
		name    string
		rules   []checker.Rule
		happens func(*world)
	}{
		{"nothing was done at all", []checker.Rule{checker.RuleEnough}, func(w *world) {
			w.opts.Least = nil
			w.places = map[string]checker.Answer{}
		}},
		{"nothing succeeded", []checker.Rule{checker.RuleEnough}, func(w *world) {
			w.start("ex-1")
			w.ops[0].Outcome = checker.Unknown
			w.opts.Least = nil
		}},
		{"a run that was begun is called unknown", []checker.Rule{checker.RuleWhole}, func(w *world) {
			w.start("ex-1")
			w.op(checker.Op{Actor: "op", Kind: checker.Read, Answer: checker.Absent()})
		}},
		{"a takeover is told that an existing run is unknown", []checker.Rule{checker.RuleWhole}, func(w *world) {
			w.start("ex-1")
			w.op(checker.Op{Actor: "ex-2", Kind: checker.Takeover, Request: "q1", Outcome: checker.Failed, Answer: checker.Absent()})
		}},
		{"a run that was read is called unknown", []checker.Rule{checker.RuleBackwards}, func(w *world) {
			w.start("ex-1")
			w.ops[0].Outcome, w.ops[0].End = checker.Unknown, 0
			w.opts.Least = map[checker.Kind]int{}
			w.read("op")
			w.op(checker.Op{Actor: "op", Kind: checker.Read, Answer: checker.Absent()})
		}},
		{"an epoch that one opened is handed to another", []checker.Rule{checker.RuleAcknowledged}, func(w *world) {
			w.start("ex-1")
			op := w.takeover("ex-2", "q1") // the daemon dies before it answers
			op.Outcome, op.End, op.Answer = checker.Unknown, 0, nil
			w.op(checker.Op{Actor: "ex-3", Kind: checker.Takeover, Executor: "ex-3", Request: "q2", Answer: w.answer()})
			w.publish("ex-2", said("two"))
		}},
		{"a takeover was refused and opened an epoch", []checker.Rule{checker.RuleRefused}, func(w *world) {
			w.start("ex-1")
			op := w.takeover("ex-2", "q1")
			op.Outcome, op.Answer = checker.Failed, nil
		}},
		{"an end without a request", []checker.Rule{checker.RuleStranger}, func(w *world) {
			w.start("ex-1")
			w.control(&schema.RunCancelRequestedData{By: "mallory"})
		}},
		{"what an operator was refused is there", []checker.Rule{checker.RuleRefused}, func(w *world) {
			w.start("ex-1")
			e := w.control(&schema.RunCancelRequestedData{By: "ann"})
			w.op(checker.Op{Actor: "ann", Kind: checker.Control, Event: e.ID, Outcome: checker.Failed})
		}},
		{"an answer misses what an operator added", []checker.Rule{checker.RuleWhole}, func(w *world) {
			w.start("ex-1")
			stale := w.answer()
			e := w.control(&schema.RunCancelRequestedData{By: "ann"})
			w.op(checker.Op{Actor: "ann", Kind: checker.Control, Event: e.ID})
			w.op(checker.Op{Actor: "op", Kind: checker.Read, Answer: stale})
		}},
		{"nothing is found of a run to which an operator added", []checker.Rule{checker.RuleAcknowledged}, func(w *world) {
			w.good()
			w.ops = append(w.ops, checker.Op{ID: 99, Actor: "ann", Kind: checker.Control, Run: "r9", Start: 1, End: 2, Outcome: checker.OK, Event: "r9.1.c.x"})
		}},
		{"an acknowledged event without a record", []checker.Rule{checker.RuleAcknowledged, checker.RuleStranger}, func(w *world) {
			w.good()
			w.ops[1].Event = ""
		}},
		{"another sequence was acknowledged than is stored", []checker.Rule{checker.RuleAcknowledged}, func(w *world) {
			w.start("ex-1")
			e := w.event("ex-1", said(checker.Token("ex-1", 1)))
			require.NoError(w.t, w.writer("ex-1").Commit(e))
			op := w.published("ex-1", e, w.store(e))
			op.Token, op.Event, op.Sequence = checker.Token("ex-1", 1), "", 0
			op.Epoch = 2
		}},
		{"an answer's status was never the run's", []checker.Rule{checker.RulePast}, func(w *world) {
			w.good()
			w.ops[2].Answer.Status = schema.StatusCompleted
		}},
		{"an answer's sequence is another one's", []checker.Rule{checker.RulePast}, func(w *world) {
			w.start("ex-1")
			w.publish("ex-1", said("one"))
			w.ops[1].Outcome, w.ops[1].End = checker.Unknown, 0 // so that any order is valid
			w.read("op").Answer.Sequence = 1
		}},
		{"the stored checkpoint has another policy for an open call", []checker.Rule{checker.RuleConverged, checker.RuleModel}, func(w *world) {
			w.start("ex-1")
			w.publish("ex-1", call)
			w.stored = w.copied()
			w.stored.OpenCalls[0].Replay = schema.ReplayPure
		}},
		{"the stored checkpoint has other labels", []checker.Rule{checker.RuleConverged}, func(w *world) {
			w.good()
			w.stored = w.copied()
			w.stored.Labels = map[string]string{"team": "red"}
		}},
		{"the stored checkpoint has another executor", []checker.Rule{checker.RuleConverged, checker.RuleModel}, func(w *world) {
			w.good()
			w.stored = w.copied()
			w.stored.Executor = "ex-1"
		}},
		{"the answer has another policy for an open call", []checker.Rule{checker.RuleModel}, func(w *world) {
			w.start("ex-1")
			w.publish("ex-1", call)
			w.places = map[string]checker.Answer{}
			w.head.OpenCalls[0].Replay = schema.ReplayPure
		}},
		{"the answered state lacks what was said", []checker.Rule{checker.RuleModel}, func(w *world) {
			w.good()
			w.state = w.folded()
			w.state.Messages = w.state.Messages[1:]
		}},
		{"the answered state has another result", []checker.Rule{checker.RuleModel}, func(w *world) {
			w.start("ex-1")
			w.publish("ex-1", call)
			w.publish("ex-1", &schema.ToolReturnedData{ToolCallID: "c1", Result: []byte("1")})
			w.state = w.folded()
			w.state.Calls[0].Result = []byte("2")
		}},
		{"a whole answer has a gap in its head", []checker.Rule{checker.RuleModel, checker.RuleConverged}, func(w *world) {
			w.good()
			w.places = map[string]checker.Answer{"service": *w.answer()}
			w.head.Counts.Gaps, w.head.Gaps = 1, []schema.Gap{{Epoch: 1, From: 1, To: 1}}
		}},
		{"a run that was damaged and is whole was answered wrongly before", []checker.Rule{checker.RuleWhole}, func(w *world) {
			w.start("ex-1")
			stale := w.answer()
			w.publish("ex-1", said("one"))
			w.op(checker.Op{Actor: "op", Kind: checker.Read, Answer: stale})
			w.opts.Damaged = map[string]bool{"r1": true}
		}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			w := newWorld(t)
			test.happens(w)
			r := w.check()
			require.ElementsMatch(t, test.rules, r.Rules(), "%v", r.Error())
		})
	}
}

// Histories that the rules about these must accept.
func TestHistory_MoreValid_Accepted(t *testing.T) {
	tests := map[string]func(*world){
		"a run is unknown before it is begun": func(w *world) {
			w.op(checker.Op{Actor: "op", Kind: checker.Read, Answer: checker.Absent()})
			w.op(checker.Op{Actor: "ex-2", Kind: checker.Takeover, Request: "q0", Outcome: checker.Failed, Answer: checker.Absent()})
			w.good()
		},
		"a run that may have begun is unknown": func(w *world) {
			w.good()
			w.ops = append(
				w.ops, checker.Op{ID: 98, Actor: "ex-9", Kind: checker.Publish, Run: "r9", Start: 1, Outcome: checker.Unknown, Event: "r9.1.1.x"},
				checker.Op{ID: 99, Actor: "op", Kind: checker.Read, Run: "r9", Start: 2, End: 3, Outcome: checker.OK, Answer: checker.Absent()},
			)
		},
		"an operator and the daemon add to a run": func(w *world) {
			w.start("ex-1")
			w.publish("ex-1", &schema.RunWaitingData{InterruptID: "i1", Reason: schema.WaitHumanInput})
			w.publish("ex-1", &schema.RunWaitingData{InterruptID: "i2", Reason: schema.WaitHumanInput})
			e := w.control(&schema.RunInputData{InterruptID: "i1", By: "ann"})
			w.op(checker.Op{Actor: "ann", Kind: checker.Control, Event: e.ID})
			w.control(&schema.RunInputData{InterruptID: "i2", Status: schema.InputExpired})
			w.control(&schema.RunOrphanedData{Executor: "ex-1"})
			w.read("op")
		},
		"an operator's request is stored and not answered": func(w *world) {
			w.start("ex-1")
			w.control(&schema.RunCancelRequestedData{By: "ann"})
			w.op(checker.Op{Actor: "ann", Kind: checker.Control, Outcome: checker.Unknown})
		},
		"damage that was told while it lasted": func(w *world) {
			w.good()
			w.ops[2].Answer.Complete, w.ops[2].Answer.Events = false, 1
			w.opts.Damaged = map[string]bool{"r1": true}
		},
		"all places are looked at": func(w *world) {
			w.start("ex-1")
			w.publish("ex-1", &schema.ToolCalledData{ToolCallID: "c1", Name: "charge", Replay: schema.ReplayHold})
			w.takeover("ex-2", "q1")
			w.stored, w.state = w.copied(), w.folded()
		},
	}
	for name, happens := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			happens(w)
			require.NoError(t, w.check().Error())
		})
	}
}

// TestFaults_NotInjected_NotCounted: how many faults were tried is published.
func TestFaults_NotInjected_NotCounted(t *testing.T) {
	w := newWorld(t)
	w.good()
	w.op(checker.Op{Actor: "nemesis", Kind: checker.Fault, Detail: "kill"})
	w.op(checker.Op{Actor: "nemesis", Kind: checker.Fault, Detail: "there was no process to kill", Outcome: checker.Unknown})
	require.Equal(t, 1, w.check().Faults)
}
