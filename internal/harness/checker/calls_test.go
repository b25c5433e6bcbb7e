package checker_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/harness/checker"
	"github.com/waymarkio/waymark/schema"
)

const toolCall = "c1"

func called(replay schema.Replay) schema.Data {
	return &schema.ToolCalledData{ToolCallID: toolCall, Name: "change", Replay: replay, VerifySubject: "ask"}
}

func returned(result string) schema.Data {
	return &schema.ToolReturnedData{ToolCallID: toolCall, Result: []byte(`"` + result + `"`)}
}

// answered is an answer that asks for the call.
func answered(replay schema.Replay) schema.Data {
	return &schema.TurnAnsweredData{
		Turn:    1,
		Message: schema.Message{Role: schema.RoleAssistant, Parts: []schema.Part{schema.Text("I change it")}},
		Calls:   []schema.RequestedCall{{ToolCallID: toolCall, Name: "change", Replay: replay, VerifySubject: "ask"}},
	}
}

func settled(how schema.Settlement, result string) schema.Data {
	d := &schema.ToolSettledData{ToolCallID: toolCall, How: how}
	if result != "" {
		d.Result = []byte(`"` + result + `"`)
	}
	return d
}

// asks is a tool call that publishes some events, of which so many are acknowledged.
func (w *world) asks(actor string, acknowledged int, events ...schema.Data) *checker.Op {
	w.t.Helper()
	x := w.writer(actor)
	op := checker.Op{Actor: actor, Kind: checker.Call, Epoch: x.Epoch, Sequence: x.Last + 1, Tool: toolCall}
	for i, data := range events {
		e := w.event(actor, data)
		require.NoError(w.t, x.Commit(e))
		w.store(e)
		if i < acknowledged {
			op.Last = e.Sequence
		}
	}
	o := w.op(op)
	if acknowledged < len(events) {
		o.Outcome, o.End = checker.Unknown, 0
	}
	return o
}

// runs is one run of the tool, result empty when it had no effect.
func (w *world) runs(actor, result string) *checker.Op {
	w.t.Helper()
	op := checker.Op{Actor: actor, Kind: checker.Execute, Epoch: w.writer(actor).Epoch, Tool: toolCall, Result: `"` + result + `"`}
	if result == "" {
		op.Outcome, op.Result = checker.Failed, ""
	}
	return w.op(op)
}

// person settles the call as an operator.
func (w *world) person(how schema.Settlement, result string) {
	w.t.Helper()
	e, err := schema.NewControl("f", "daemon", "r1", w.head.Epoch, "p1", settled(how, result), time.Unix(1_700_000_000+w.clock, 0))
	require.NoError(w.t, err)
	w.op(checker.Op{Actor: "ann", Kind: checker.Control, Event: e.ID, Stream: w.store(e)})
}

// crashed is a call whose executor is gone, and whose run was taken over by another.
func (w *world) crashed(replay schema.Replay, result string) {
	w.t.Helper()
	w.start("ex-1")
	w.asks("ex-1", 0, called(replay))
	if result != "none" {
		w.runs("ex-1", result)
	}
	w.takeover("ex-2", "q1")
}

func TestCalls_Valid_Accepted(t *testing.T) {
	for name, happens := range map[string]func(*world){
		"one that returns": func(w *world) {
			w.start("ex-1")
			w.runs("ex-1", "1")
			w.asks("ex-1", 2, called(schema.ReplayHold), returned("1"))
			w.read("op")
		},
		"an end that was not answered": func(w *world) {
			w.start("ex-1")
			w.runs("ex-1", "1")
			w.asks("ex-1", 1, called(schema.ReplayHold), returned("1"))
			w.takeover("ex-2", "q1")
		},
		"a pure one that runs again": func(w *world) {
			w.crashed(schema.ReplayPure, "1")
			w.runs("ex-2", "2")
			w.asks("ex-2", 2, settled(schema.SettledRerun, ""), returned("2"))
		},
		"one that is verified": func(w *world) {
			w.crashed(schema.ReplayVerify, "1")
			w.asks("ex-2", 1, settled(schema.SettledVerified, "1"))
		},
		"one that had no effect": func(w *world) {
			w.crashed(schema.ReplayVerify, "")
			w.runs("ex-2", "2")
			w.asks("ex-2", 2, settled(schema.SettledRerun, ""), returned("2"))
		},
		"one that a person has run again": func(w *world) {
			w.crashed(schema.ReplayHold, "none")
			w.person(schema.SettledRerun, "")
			w.runs("ex-2", "2")
			w.asks("ex-2", 2, called(schema.ReplayHold), returned("2"))
		},
		"a pure one of an answer that runs again": func(w *world) {
			w.start("ex-1")
			w.turn = 1
			w.publish("ex-1", answered(schema.ReplayPure))
			w.runs("ex-1", "1")
			w.takeover("ex-2", "q1")
			w.runs("ex-2", "2")
			w.asks("ex-2", 1, returned("2"))
		},
		"a held one of an answer that the next executor begins": func(w *world) {
			w.start("ex-1")
			w.turn = 1
			w.publish("ex-1", answered(schema.ReplayHold))
			w.takeover("ex-2", "q1")
			w.runs("ex-2", "1")
			w.asks("ex-2", 2, called(schema.ReplayHold), returned("1"))
		},
		"one that begins by a proof from before the takeover": func(w *world) {
			w.crashed(schema.ReplayHold, "none")
			over := w.ops[len(w.ops)-1].End
			op := w.runs("ex-1", "1")
			op.Start = over + int64(2*time.Second)
			op.End = op.Start + 1
		},
		"a pure one of an epoch that is over": func(w *world) {
			w.crashed(schema.ReplayPure, "none")
			op := w.runs("ex-1", "1")
			op.Start += int64(time.Minute)
			op.End = op.Start + 1
		},
		"one that a person decides": func(w *world) {
			w.crashed(schema.ReplayHold, "1")
			w.person(schema.SettledDecided, "1")
		},
		"a late result that is adopted": func(w *world) {
			w.crashed(schema.ReplayPure, "1")
			e := w.event("ex-1", returned("1"))
			w.store(e)
			w.asks("ex-2", 1, settled(schema.SettledAdopted, ""))
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			happens(w)
			require.NoError(t, w.check().Error())
		})
	}
}

func TestCalls_Invalid_Refused(t *testing.T) {
	for name, test := range map[string]struct {
		says    string
		rule    checker.Rule
		happens func(*world)
	}{
		"a recovery without its calls in doubt": {"an answer has the open calls", checker.RuleCalls, func(w *world) {
			w.start("ex-1")
			w.asks("ex-1", 1, called(schema.ReplayHold))
			op := w.takeover("ex-2", "q1")
			op.Answer.Calls = ""
			w.read("op")
		}},
		"a recovery with a call in doubt that is not": {"an answer has the open calls", checker.RuleCalls, func(w *world) {
			w.start("ex-1")
			w.asks("ex-1", 1, called(schema.ReplayHold))
			before := w.answer().Calls
			op := w.takeover("ex-2", "q1")
			op.Answer.Calls = before
		}},
		"a tool without a call": {"is not in the log", checker.RuleCalls, func(w *world) {
			w.good()
			w.runs("ex-2", "1")
		}},
		"an acknowledged event of a call is gone": {"an acknowledged event is not in the log", checker.RuleAcknowledged, func(w *world) {
			w.start("ex-1")
			w.runs("ex-1", "1")
			op := w.asks("ex-1", 1, called(schema.ReplayHold))
			op.Last++
		}},
		"one that runs twice in an epoch": {"ran twice in epoch 1", checker.RuleCalls, func(w *world) {
			w.start("ex-1")
			w.runs("ex-1", "1")
			w.runs("ex-1", "1")
			w.asks("ex-1", 2, called(schema.ReplayPure), returned("1"))
		}},
		"one that runs again and was not settled": {"nothing settled it as rerun", checker.RuleCalls, func(w *world) {
			w.crashed(schema.ReplayPure, "1")
			w.runs("ex-2", "2")
		}},
		"one that runs again although it is settled otherwise": {"ran in epoch 2", checker.RuleCalls, func(w *world) {
			w.crashed(schema.ReplayVerify, "1")
			w.asks("ex-2", 1, settled(schema.SettledVerified, "1"))
			w.takeover("ex-3", "q2")
			w.runs("ex-2", "2")
		}},
		"a held one that no person has run again": {"no person said so", checker.RuleCalls, func(w *world) {
			w.crashed(schema.ReplayHold, "")
			w.runs("ex-2", "2")
			w.asks("ex-2", 2, settled(schema.SettledRerun, ""), returned("2"))
		}},
		"a verified one with two effects": {"had its effect 2 times", checker.RuleCalls, func(w *world) {
			w.crashed(schema.ReplayVerify, "1")
			w.runs("ex-2", "2")
			w.asks("ex-2", 2, settled(schema.SettledRerun, ""), returned("2"))
		}},
		"a held one that begins long after its epoch was over": {"after it was known that epoch 2 stands", checker.RuleCalls, func(w *world) {
			w.crashed(schema.ReplayHold, "none")
			over := w.ops[len(w.ops)-1].End
			op := w.runs("ex-1", "1")
			op.Start = over + int64(2501*time.Millisecond)
			op.End = op.Start + 1
		}},
		"a held one that begins behind a run of a later epoch": {"after it had begun in epoch 2", checker.RuleCalls, func(w *world) {
			w.crashed(schema.ReplayHold, "none")
			w.person(schema.SettledRerun, "")
			w.runs("ex-2", "2")
			w.runs("ex-1", "1")
			w.asks("ex-2", 2, called(schema.ReplayHold), returned("2"))
		}},
		"a held one of an answer that runs and was not begun": {"it was not begun there", checker.RuleCalls, func(w *world) {
			w.start("ex-1")
			w.turn = 1
			w.publish("ex-1", answered(schema.ReplayHold))
			w.runs("ex-1", "1")
		}},
		"a held one of an answer that runs again and was not settled": {"it was not begun there", checker.RuleCalls, func(w *world) {
			w.start("ex-1")
			w.turn = 1
			w.publish("ex-1", answered(schema.ReplayHold))
			w.asks("ex-1", 1, called(schema.ReplayHold))
			w.takeover("ex-2", "q1")
			w.runs("ex-2", "1")
		}},
		"a held one that a person cleared and that has not begun": {"it was not begun there", checker.RuleCalls, func(w *world) {
			w.crashed(schema.ReplayHold, "none")
			w.person(schema.SettledRerun, "")
			w.runs("ex-2", "2")
		}},
		"a pure one of an answer that runs once it is over": {"came to its end in epoch 1", checker.RuleCalls, func(w *world) {
			w.start("ex-1")
			w.turn = 1
			w.publish("ex-1", answered(schema.ReplayPure))
			w.runs("ex-1", "1")
			w.asks("ex-1", 1, returned("1"))
			w.takeover("ex-2", "q1")
			w.runs("ex-2", "1")
		}},
		"one that runs once it is over": {"came to its end in epoch 1", checker.RuleCalls, func(w *world) {
			w.start("ex-1")
			w.runs("ex-1", "1")
			w.asks("ex-1", 2, called(schema.ReplayPure), returned("1"))
			w.takeover("ex-2", "q1")
			w.runs("ex-2", "1")
		}},
		"a result that no tool gave": {"which no run of its tool returned", checker.RuleCalls, func(w *world) {
			w.start("ex-1")
			w.runs("ex-1", "1")
			w.asks("ex-1", 2, called(schema.ReplayPure), returned("2"))
		}},
		"one that runs again although its late result is there": {"its late result was there", checker.RuleCalls, func(w *world) {
			w.crashed(schema.ReplayPure, "1")
			e := w.event("ex-1", returned("1"))
			w.store(e)
			w.runs("ex-2", "2")
			w.asks("ex-2", 2, settled(schema.SettledRerun, ""), returned("2"))
		}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			test.happens(w)
			report := w.check()
			require.True(t, report.Broken(test.rule), "%v", report.Error())
			require.ErrorContains(t, report.Error(), test.says)
		})
	}
}
