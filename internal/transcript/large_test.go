package transcript_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/harness/transcriptcheck"
	"github.com/waymarkio/waymark/internal/transcript"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// replayed imports the only run of a file through a server and proves it against the source.
func replayed(t *testing.T, path string) (*schema.State, *transcript.Report) {
	t.Helper()
	runs, rep := open(t, path, transcript.Options{})
	require.Len(t, runs, 1)
	want, err := transcriptcheck.Read(path, string(rep.Format))
	require.NoError(t, err)
	w := newWorld(t)
	f := w.fleet("importer")
	_, err = transcript.Replay(t.Context(), f, runs[0], transcript.ReplayOptions{})
	require.NoError(t, err)
	out, err := transcript.Compare(t.Context(), f, runs[0], transcript.ReplayOptions{})
	require.NoError(t, err)
	require.Equal(t, out.Steps, out.Done)
	s := w.recovered(f, runs[0].ID)
	require.NoError(t, want.Conversations[0].Export(export(t, s, rep.Format)))
	return s, rep
}

// calling is a session whose answer is n lines, each with a call.
func calling(n int, arguments string) string {
	var b strings.Builder
	b.WriteString(`{"type":"user","uuid":"u","sessionId":"s","message":{"role":"user","content":"go"}}` + "\n")
	for i := range n {
		fmt.Fprintf(&b, `{"type":"assistant","uuid":"a%d","sessionId":"s","message":{"id":"m","role":"assistant","content":[{"type":"tool_use","id":"toolu_%d","name":"Read","input":{"path":%q}}],"usage":{"input_tokens":7,"output_tokens":%d}}}`+"\n", i, i, arguments, i+1)
	}
	for i := range n {
		fmt.Fprintf(&b, `{"type":"user","uuid":"r%d","sessionId":"s","message":{"role":"user","content":[{"type":"tool_result","tool_use_id":"toolu_%d","content":"r%d"}]}}`+"\n", i, i, i)
	}
	return b.String()
}

func TestReplay_AnswerOfMoreCallsThanATurnTakes_IsSeveralTurns(t *testing.T) {
	t.Parallel()
	s, rep := replayed(t, writeFile(t, "s.jsonl", calling(1500, "/a")))
	require.Empty(t, rep.Notes)
	require.Equal(t, 1, rep.Turns)
	require.Len(t, s.Turns, 2)
	require.Len(t, s.Calls, 1500)
	for i := range s.Calls {
		require.Equal(t, schema.OutcomeReturned, s.Calls[i].Outcome)
	}
	require.EqualValues(t, 7, s.Head.Usage.InputTokens, "the tokens of one model call count once")
	require.EqualValues(t, 1500, s.Head.Usage.OutputTokens)
}

func TestReplay_AnswerLargerThanAnEvent_GoesThroughTheBlobStore(t *testing.T) {
	t.Parallel()
	s, _ := replayed(t, writeFile(t, "s.jsonl", calling(5, strings.Repeat("0123456789", 15<<10))))
	require.Len(t, s.Turns, 1)
	require.Len(t, s.Calls, 5)
}

func TestReplay_MessageOfMoreCallsThanAnEventTakes_IsKeptAsItIs(t *testing.T) {
	t.Parallel()
	var calls, results []string
	for i := range 1500 {
		calls = append(calls, fmt.Sprintf(`{"id":"call_%d","type":"function","function":{"name":"look","arguments":"{}"}}`, i))
		results = append(results, fmt.Sprintf(`{"role":"tool","tool_call_id":"call_%d","content":"r%d"}`, i, i))
	}
	s, rep := replayed(t, writeFile(t, "c.json", fmt.Sprintf(`{"messages":[{"role":"user","content":"go"},{"role":"assistant","content":null,"tool_calls":[%s]},%s]}`,
		strings.Join(calls, ","), strings.Join(results, ","))))
	require.Len(t, rep.Notes, 1)
	require.Contains(t, rep.Notes[0], "1500")
	require.Empty(t, s.Calls)

	var blocks []string
	for i := range 1500 {
		blocks = append(blocks, fmt.Sprintf(`{"type":"text","text":"%d"}`, i))
	}
	s, rep = replayed(t, writeFile(t, "s.jsonl", `{"type":"assistant","uuid":"a","message":{"id":"m","role":"assistant","content":[`+strings.Join(blocks, ",")+`]}}`+"\n"))
	require.Len(t, rep.Notes, 1)
	require.Len(t, s.Messages[0].Parts, 1)
}

// 700 calls of one message are one answer, with small arguments.
func TestReplay_MessageOfManyCalls_IsOneAnswer(t *testing.T) {
	t.Parallel()
	var calls []string
	for i := range 700 {
		calls = append(calls, fmt.Sprintf(`{"id":"call_%022d","type":"function","function":{"name":"look_up_something","arguments":"{\"place\":\"%0100d\"}"}}`, i, i))
	}
	s, rep := replayed(t, writeFile(t, "c.json", fmt.Sprintf(`{"messages":[{"role":"user","content":"go"},{"role":"assistant","content":null,"tool_calls":[%s]}]}`,
		strings.Join(calls, ","))))
	require.Empty(t, rep.Notes)
	require.Len(t, s.Calls, 700)
	require.Equal(t, schema.StatusCancelled, s.Head.Status)
	require.Len(t, s.Head.OpenCalls, 256, "of calls without a result so many stay open")
}

// The run is looked at once more when it changed between the comparison and the takeover: with what is in the blob store.
func TestReplay_RunChangedMeanwhile_LargeAnswerIsCompared(t *testing.T) {
	t.Parallel()
	line := func(n int) string {
		return fmt.Sprintf(`{"type":"assistant","uuid":"a%d","sessionId":"s","big":%q,"message":{"id":"m","role":"assistant","content":[{"type":"text","text":"t%d"}]}}`,
			n, strings.Repeat("0123456789", 20<<10), n)
	}
	runs, _ := open(t, writeFile(t, "s.jsonl", line(1)+"\n"+line(2)+"\n"), transcript.Options{})
	w := newWorld(t)
	f := w.fleet("importer")
	_, err := transcript.Replay(t.Context(), f, runs[0], transcript.ReplayOptions{})
	require.NoError(t, err)
	handle, err := f.Resume(t.Context(), runs[0].ID, publisher.ResumeSpec{Reason: schema.TakeoverReopen})
	require.NoError(t, err)
	n, err := transcript.StillLeft(t.Context(), f, handle, runs[0])
	require.NoError(t, err)
	require.Equal(t, 1, n, "the end alone")
}
