package checker_test

import (
	"bytes"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/harness/checker"
	"github.com/waymarkio/waymark/schema"
)

// Histories that must not be reported as faulty.
func TestHistory_Valid_Accepted(t *testing.T) {
	tests := map[string]func(*world){
		"two executors and reads": (*world).good,
		"an unknown publish that is there": func(w *world) {
			w.good()
			op := w.ops[len(w.ops)-2]
			w.ops[len(w.ops)-2].Outcome, w.ops[len(w.ops)-2].End = checker.Unknown, 0
			require.Equal(w.t, checker.Publish, op.Kind)
		},
		"an unknown publish that is not there": func(w *world) {
			w.good()
			w.published("ex-2", w.event("ex-2", said("lost")), 0).Outcome = checker.Unknown
		},
		"an unknown publish that comes much later, before a takeover": func(w *world) {
			w.start("ex-1")
			e := w.event("ex-1", said("slow"))
			op := w.published("ex-1", e, 0)
			op.Outcome, op.End = checker.Unknown, 0
			w.read("op")
			w.store(e)
			w.read("op")
			w.takeover("ex-2", "q1")
		},
		"a fenced executor": func(w *world) {
			w.good()
			op := w.published("ex-1", w.event("ex-1", said("late")), 0)
			op.Outcome, op.Fenced = checker.Failed, true
		},
		"the same event twice in the log": func(w *world) {
			w.good()
			again := w.log[1]
			again.Stream = schema.StreamSequence(len(w.log) + 1)
			w.log = append(w.log, again)
			w.head.Apply(schema.NoKeys, &again)
		},
		"a repeated takeover that continues its epoch": func(w *world) {
			w.start("ex-1")
			w.takeover("ex-2", "q1")
			w.publish("ex-2", said("two"))
			w.op(checker.Op{Actor: "ex-2", Kind: checker.Takeover, Executor: "ex-2", Request: "q1", Answer: w.answer()})
		},
		"a takeover that was not answered": func(w *world) {
			w.start("ex-1")
			op := w.takeover("ex-2", "q1")
			op.Outcome, op.End, op.Answer = checker.Unknown, 0, nil
			w.takeover("ex-3", "q2")
			w.publish("ex-3", said("three"))
		},
		"reads while others publish": func(w *world) {
			w.start("ex-1")
			before := w.answer()
			w.publish("ex-1", said("one"))
			op := w.op(checker.Op{Actor: "op", Kind: checker.Read, Answer: before})
			op.Start = w.ops[len(w.ops)-2].Start
		},
		"the result of a call that was in doubt, from an executor that was told that it is fenced": func(w *world) {
			w.start("ex-1")
			w.publish("ex-1", &schema.ToolCalledData{ToolCallID: "c1", Name: "read"})
			w.takeover("ex-2", "q1")
			e := w.event("ex-1", &schema.ToolReturnedData{ToolCallID: "c1", Result: []byte("1")})
			w.store(e)
			op := w.published("ex-1", e, 0)
			op.Outcome, op.Fenced = checker.Failed, true
		},
		"what was refused for a takeover that damage took, as is told": func(w *world) {
			w.start("ex-1")
			e := w.event("ex-1", said("late"))
			w.store(e)
			op := w.published("ex-1", e, 0)
			op.Outcome, op.Fenced = checker.Failed, true
			w.complete = false
			w.opts.Damaged = map[string]bool{"r1": true}
		},
		"damage that is told": func(w *world) {
			w.good()
			w.log = w.log[:1]
			w.complete = false
			w.opts.Damaged = map[string]bool{"r1": true}
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

// Each rule is broken alone, and must be named.
func TestHistory_Invalid_Refused(t *testing.T) {
	refold := func(w *world) {
		w.head = schema.NewHead("f", "r1")
		for i := range w.log {
			w.head.Apply(schema.NoKeys, &w.log[i])
		}
	}
	tests := []struct {
		name    string
		rules   []checker.Rule
		happens func(*world)
	}{
		{"an acknowledged event is gone", []checker.Rule{checker.RuleAcknowledged}, func(w *world) {
			w.start("ex-1")
			e := w.event("ex-1", said("gone"))
			w.published("ex-1", e, 2)
		}},
		{"an acknowledged event is in the log and does not count", []checker.Rule{checker.RuleAcknowledged, checker.RuleFenced}, func(w *world) {
			w.start("ex-1")
			late := w.event("ex-1", said("late"))
			w.takeover("ex-2", "q1")
			w.published("ex-1", late, w.store(late)).Start = 1
		}},
		{"an event is at another place than acknowledged", []checker.Rule{checker.RuleAcknowledged}, func(w *world) {
			w.good()
			w.ops[1].Stream++
		}},
		{"the large field of an event cannot be read", []checker.Rule{checker.RuleAcknowledged}, func(w *world) {
			w.start("ex-1")
			e := w.event("ex-1", said("large"))
			e.DataRef = schema.DataRef("r1", strings.Repeat("0", 64))
			require.NoError(w.t, w.writer("ex-1").Commit(e))
			w.published("ex-1", e, w.store(e))
			w.unread = map[string]string{e.DataRef: "chunks are missing"}
		}},
		{"a takeover of a damaged log is void once the missing events are found, though it was told", []checker.Rule{checker.RuleAcknowledged}, func(w *world) {
			w.start("ex-1")
			told := w.answer()
			told.Epoch, told.Sequence, told.Complete = 2, 0, false
			w.op(checker.Op{Actor: "ex-2", Kind: checker.Takeover, Executor: "ex-2", Request: "q1", Answer: told})
			w.takeover("ex-3", "q2")
			w.opts.Damaged = map[string]bool{"r1": true}
		}},
		{"nothing is found of a run", []checker.Rule{checker.RuleAcknowledged}, func(w *world) {
			w.good()
			w.ops = append(w.ops, checker.Op{ID: 99, Actor: "ex-9", Kind: checker.Publish, Run: "r9", Start: 1, End: 2, Outcome: checker.OK, Event: "r9.1.1.x"})
		}},
		{"what failed is there", []checker.Rule{checker.RuleRefused}, func(w *world) {
			w.start("ex-1")
			w.publish("ex-1", said("one"))
			w.ops[1].Outcome = checker.Failed
		}},
		{"an event without a publisher", []checker.Rule{checker.RuleStranger}, func(w *world) {
			w.start("ex-1")
			w.store(w.event("ex-1", said("forged")))
		}},
		{"a takeover without a request", []checker.Rule{checker.RuleStranger}, func(w *world) {
			w.start("ex-1")
			w.store(w.resumed("ex-2", "forged"))
		}},
		{"one operation counts as two events", []checker.Rule{checker.RuleTwice}, func(w *world) {
			w.start("ex-1")
			token := checker.Token("ex-1", 1)
			w.publish("ex-1", said(token))
			again := w.event("ex-1", said(token))
			require.NoError(w.t, w.writer("ex-1").Commit(again))
			w.store(again)
			op := &w.ops[1]
			op.Token, op.Event, op.Stream = token, again.ID, 3
			op.Sequence = 0
		}},
		{"one operation is in the log as two events", []checker.Rule{checker.RuleTwice, checker.RuleAcknowledged}, func(w *world) {
			w.start("ex-1")
			token := checker.Token("ex-1", 1)
			e := w.event("ex-1", said(token))
			w.clock += 10 // another time makes another event
			fork := w.event("ex-1", said(token))
			require.NotEqual(w.t, e.ID, fork.ID)
			w.store(e)
			w.store(fork)
			op := w.published("ex-1", fork, 2)
			op.Token = token
		}},
		{"a sequence is missing", []checker.Rule{checker.RuleAcknowledged, checker.RuleModel}, func(w *world) {
			w.start("ex-1")
			w.publish("ex-1", said("one"))
			w.publish("ex-1", said("two"))
			w.ops[1].Outcome = checker.Unknown
			w.log = append(w.log[:1], w.log[2:]...)
		}},
		{"the hole is folded over", []checker.Rule{checker.RuleModel}, func(w *world) {
			w.good()
			w.head.Counts.Events--
			w.head.Digest = "0000000000000000000000000000000000000000000000000000000000000000"
			w.places = map[string]checker.Answer{"checkpoint": *w.answer()}
		}},
		{"a whole run is called incomplete", []checker.Rule{checker.RuleModel}, func(w *world) {
			w.good()
			w.complete = false
		}},
		{"an older epoch is stored behind the takeover", []checker.Rule{checker.RuleFenced}, func(w *world) {
			w.start("ex-1")
			w.takeover("ex-2", "q1")
			e := w.event("ex-1", said("late"))
			w.published("ex-1", e, w.store(e)).Outcome = checker.Unknown
		}},
		{"an older epoch is acknowledged behind the takeover", []checker.Rule{checker.RuleFenced, checker.RuleAcknowledged}, func(w *world) {
			w.start("ex-1")
			w.takeover("ex-2", "q1")
			e := w.event("ex-1", said("late"))
			w.published("ex-1", e, w.store(e))
		}},
		{"a place says something else", []checker.Rule{checker.RuleConverged}, func(w *world) {
			w.good()
			stale := checker.AnswerOf(&w.head, true)
			stale.Events--
			w.places = map[string]checker.Answer{"checkpoint": stale, "service": *w.answer()}
		}},
		{"an answer was never true", []checker.Rule{checker.RulePast}, func(w *world) {
			w.good()
			w.ops[2].Answer.Digest = w.answer().Digest
		}},
		{"an answer has more than there is", []checker.Rule{checker.RulePast}, func(w *world) {
			w.good()
			w.ops[len(w.ops)-1].Answer.Events++
		}},
		{"an answer calls a whole run incomplete", []checker.Rule{checker.RulePast}, func(w *world) {
			w.good()
			w.ops[2].Answer.Complete = false
		}},
		{"an answer misses what was acknowledged before", []checker.Rule{checker.RuleWhole}, func(w *world) {
			w.start("ex-1")
			stale := w.answer()
			w.publish("ex-1", said("one"))
			w.op(checker.Op{Actor: "op", Kind: checker.Read, Answer: stale})
		}},
		{"an answer goes back in time", []checker.Rule{checker.RuleBackwards}, func(w *world) {
			w.start("ex-1")
			stale := w.answer()
			w.publish("ex-1", said("one")).Name()
			w.ops[1].Outcome, w.ops[1].End = checker.Unknown, 0 // only the answers show it
			w.read("op")
			w.op(checker.Op{Actor: "op", Kind: checker.Read, Answer: stale})
		}},
		{"two takeovers open one epoch", []checker.Rule{checker.RuleAcknowledged}, func(w *world) {
			w.start("ex-1")
			w.takeover("ex-2", "q1")
			w.op(checker.Op{Actor: "ex-3", Kind: checker.Takeover, Executor: "ex-3", Request: "q2", Answer: w.answer()})
		}},
		{"an event precedes what was read before it began", []checker.Rule{checker.RuleOrder}, func(w *world) {
			w.start("ex-1")
			w.publish("ex-1", said("one"))
			w.read("op")
			w.ops[1].Start, w.ops[1].End = w.tick(), w.tick()
		}},
		{"an event of an older epoch began after the takeover, and precedes it", []checker.Rule{checker.RuleOrder}, func(w *world) {
			w.start("ex-1")
			w.publish("ex-1", said("one"))
			w.takeover("ex-2", "q1")
			w.ops[1].Start, w.ops[1].End = w.tick(), w.tick()
		}},
		{"fenced before any takeover", []checker.Rule{checker.RuleOrder}, func(w *world) {
			w.start("ex-1")
			op := w.published("ex-1", w.event("ex-1", said("refused")), 0)
			op.Outcome, op.Fenced = checker.Failed, true
			w.takeover("ex-2", "q1")
		}},
		{"too little succeeded", []checker.Rule{checker.RuleEnough}, func(w *world) {
			w.good()
			w.opts.Least = map[checker.Kind]int{checker.Publish: 4, checker.Takeover: 2}
		}},
		{"damage that is not told", []checker.Rule{checker.RuleAcknowledged, checker.RulePast}, func(w *world) {
			w.good()
			w.log = w.log[:2]
			refold(w)
			w.opts.Damaged = map[string]bool{"r1": true}
		}},
	}
	broken := map[checker.Rule]bool{}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			w := newWorld(t)
			test.happens(w)
			r := w.check()
			require.ElementsMatch(t, test.rules, r.Rules(), "%v", r.Error())
			for _, rule := range test.rules {
				broken[rule] = true
			}
		})
	}
	for _, rule := range []checker.Rule{
		checker.RuleAcknowledged, checker.RuleRefused, checker.RuleStranger, checker.RuleTwice, checker.RuleModel,
		checker.RuleFenced, checker.RuleConverged, checker.RulePast, checker.RuleWhole, checker.RuleBackwards, checker.RuleOrder, checker.RuleEnough,
	} {
		require.True(t, broken[rule], "no history here breaks the rule %s", rule)
	}
}

func TestHistory_FilesAndKill_Survives(t *testing.T) {
	var a, b bytes.Buffer
	first, second := checker.NewRecorder(&a, 1), checker.NewWriter(&b, 1_000_000)
	op := first.Begin(checker.Op{Actor: "ex-1", Kind: checker.Publish, Run: "r1", Event: "r1.1.1.aa"})
	killed := second.Begin(checker.Op{Actor: "ex-2", Kind: checker.Takeover, Run: "r1", Request: "q1"})
	first.End(op, func(op *checker.Op) { op.Outcome, op.Stream = checker.OK, 7 })
	require.NoError(t, first.Err())
	b.WriteString(`{"id":1000001,"actor":"ex-2","ki`) // the line that it was at
	h, err := checker.ReadHistory(&a, &b)
	require.NoError(t, err)
	require.Len(t, h.Ops, 2)
	require.Equal(t, first.History().Ops[0], h.Ops[0])
	require.Equal(t, *killed, h.Ops[1])
	require.Empty(t, h.Ops[1].Outcome)
	require.Empty(t, second.History().Ops, "it keeps nothing in memory")

	var again bytes.Buffer
	require.NoError(t, h.Write(&again))
	read, err := checker.ReadHistory(&again)
	require.NoError(t, err)
	require.Equal(t, h, read)

	var text strings.Builder
	require.NoError(t, h.Timeline(&text, func(op *checker.Op) bool { return op.ID == 1 }))
	require.Contains(t, text.String(), "publish r1 event r1.1.1.aa -> ok at 7")
	require.Contains(t, text.String(), "takeover r1 request q1 -> unknown (did not return)")
	require.True(t, strings.HasPrefix(text.String(), ">     1"), text.String())
}

func TestHistory_Contradiction_Refused(t *testing.T) {
	_, err := checker.ReadHistory(strings.NewReader(`{"id":1,"actor":"a","kind":"read","start":1}`+"\n"), strings.NewReader(`{"id":1,"actor":"b","kind":"read","start":1}`+"\n"))
	require.ErrorContains(t, err, "operation 1 of b is one of a already")
	_, err = checker.ReadHistory(strings.NewReader("no json\n"))
	require.ErrorContains(t, err, "history 1, line 1")
}

func TestReport_Violation_Marked(t *testing.T) {
	w := newWorld(t)
	w.good()
	w.ops[2].Answer.Complete = false
	var text strings.Builder
	require.NoError(t, w.check().Write(&text, w.history()))
	require.Contains(t, text.String(), "past, run r1: an answer calls events missing")
	require.Contains(t, text.String(), "\n>     3 ")
}
