package e2e_test

import (
	"bytes"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/harness/transcriptcheck"
	"github.com/waymarkio/waymark/internal/transcript"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// source is a transcript file as the program reads it and as separate code does: run i is conversation i.
type source struct {
	file   string
	format transcript.Format
	runs   []*transcript.Run
	report *transcript.Report
	want   *transcriptcheck.Source
}

func readSource(tb testing.TB, file string) source {
	tb.Helper()
	f, err := transcript.Open(file, transcript.Options{})
	require.NoError(tb, err)
	s := source{file: file}
	for run := range f.Runs() {
		s.runs = append(s.runs, run)
	}
	require.NoError(tb, f.Err())
	s.report = f.Report()
	s.format = s.report.Format
	s.want, err = transcriptcheck.Read(file, string(s.format))
	require.NoError(tb, err)
	require.Len(tb, s.runs, len(s.want.Conversations), "%s: %v", file, s.report.Problems)
	return s
}

// prove recovers a run and compares messages, calls, results and token counts with the source.
func (s source) prove(tb testing.TB, fleet *publisher.Fleet, i int, run string) *schema.State {
	tb.Helper()
	state, err := fleet.Get(tb.Context(), run)
	require.NoError(tb, err, run)
	require.NoError(tb, fleet.Hydrate(tb.Context(), state), run)
	require.NoError(tb, s.want.Conversations[i].State(state))
	var export bytes.Buffer
	require.NoError(tb, transcript.Export(&export, state, s.format), run)
	require.NoError(tb, s.want.Conversations[i].Export(export.Bytes()))
	return state
}

// essence is what two runs of the same transcript must have in common, however often they were killed: everything
// except run id, events, epochs, settlements and times.
func essence(tb testing.TB, s *schema.State) string {
	tb.Helper()
	type call struct {
		Key       schema.CallKey
		Name      string
		Arguments jsontext.Value
		Outcome   schema.Outcome
		Result    jsontext.Value
		IsError   *bool
		Source    jsontext.Value
	}
	type turn struct {
		Turn   int32
		Answer *schema.StateAnswer
		Ended  *schema.TurnEndedData
	}
	var e struct {
		Status   schema.Status
		Messages []schema.Message
		Calls    []call
		Turns    []turn
		Usage    schema.Usage
		Compact  []schema.ContextCompactedData
	}
	e.Status, e.Usage = s.Head.Status, s.Head.Usage
	for _, m := range s.Joined() {
		e.Messages = append(e.Messages, m.Message)
	}
	for _, c := range s.Calls {
		e.Calls = append(e.Calls, call{c.CallKey, c.Name, c.Arguments, c.Outcome, c.Result, c.IsError, c.ResultSource})
	}
	for _, t := range s.Turns {
		require.NotEmpty(tb, t.EndedAt, "turn %d is open", t.Turn)
		e.Turns = append(e.Turns, turn{t.Turn, t.Answer, t.Ended})
	}
	for _, c := range s.Compactions {
		e.Compact = append(e.Compact, c.ContextCompactedData)
	}
	b, err := json.Marshal(e, json.Deterministic(true))
	require.NoError(tb, err)
	return string(b)
}
