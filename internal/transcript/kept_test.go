package transcript_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/harness/transcriptcheck"
	"github.com/waymarkio/waymark/internal/harness/transcriptgen"
	"github.com/waymarkio/waymark/internal/transcript"
	"github.com/waymarkio/waymark/publisher"
)

func TestOpen_LoneSurrogates_KeepTheLine(t *testing.T) {
	t.Parallel()
	const call = `{"id":"r","messages":[{"role":"assistant","content":null,"tool_calls":[{"id":"c","type":"function","function":{"name":"look","arguments":"{\"at\":\"%s\"}"}}]},{"role":"tool","tool_call_id":"c","content":"%s"}]}`
	for _, tt := range []struct {
		name, file, content string
		replaced            int
	}{
		{"a high one", "a.jsonl", fmt.Sprintf(call, "x", `cut \ud83d here`), 1},
		{"a low one", "a.jsonl", fmt.Sprintf(call, "x", `\uDC00`), 1},
		{"two high ones and a pair", "a.jsonl", fmt.Sprintf(call, "x", `\ud83d\ud83d\ude00`), 1},
		{"behind an escaped backslash", "a.jsonl", fmt.Sprintf(call, "x", `\\ud83d\ud83d`), 1},
		{"in the name of a member", "a.jsonl", strings.Replace(fmt.Sprintf(call, "x", "y"), `"role":"tool"`, `"\ud800":1,"role":"tool"`, 1), 1},
		{"in arguments", "a.jsonl", fmt.Sprintf(call, `\udfff`, "y"), 1},
		{"bytes that are no UTF-8", "a.jsonl", fmt.Sprintf(call, "x", "a\xff\xc3"), 2},
		{"in a document", "a.json", "{\n" + fmt.Sprintf(call, "x", `\ud83d`)[1:], 1},
		{"in an element of an array", "a.json", "[" + fmt.Sprintf(call, "x", `\ud83d`) + "]", 1},
		{"in a session", "s.jsonl", `{"type":"user","uuid":"u1","cwd":"/a/\udbff","message":{"role":"user","content":"cut \ud83d"}}`, 2},
		{"in a trajectory", "t.traj", `{"history":[{"role":"user","content":"\ud83d"}],"trajectory":[{"action":"\udc00"}],"info":{"\udddd":1}}`, 3},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			path := writeFile(t, tt.file, tt.content)
			rep, _ := prove(t, path)
			require.Empty(t, rep.Problems)
			require.Equal(t, 1, rep.Runs)
			require.Equal(t, tt.replaced, rep.Replaced)
			require.Contains(t, strings.Join(rep.Notes, "\n"), fmt.Sprintf("lone surrogates or invalid UTF-8 became U+FFFD: %d, the first in line 1", tt.replaced))
		})
	}
}

func TestOpen_BadInput_MessagesAreBounded(t *testing.T) {
	t.Parallel()
	const most = 400
	deep := func(n int) string { return strings.Repeat(`{"member":[`, n) + strings.Repeat("]}", n) }
	long := strings.Repeat("x", 100<<10)
	for name, content := range map[string]string{
		"deep":                          `{"messages":[{"role":"user","content":` + deep(300) + `}]}` + "\n{}",
		"deeper than a JSON reader":     `{"messages":[{"role":"user","content":` + deep(6000) + `}]}` + "\n{}",
		"a deep document":               "{\n" + `"messages":[{"role":"user","content":` + deep(6000) + `}]}`,
		"a long name twice":             fmt.Sprintf(`{"messages":[],%q:1,%q:2}`, long, long) + "\n{}",
		"a broken value in a long name": fmt.Sprintf(`{"messages":[],%q:x}`, long) + "\n{}",
		"a long type":                   fmt.Sprintf(`{"type":%q,"uuid":"u"}`, long),
	} {
		for _, format := range transcript.Formats() {
			f, err := transcript.Open(writeFile(t, "x.jsonl", content), transcript.Options{Format: format})
			if err != nil {
				require.Less(t, len(err.Error()), most, name)
				continue
			}
			for range f.Runs() {
			}
			for _, p := range f.Report().Problems {
				require.Less(t, len(p.Error()), most, name)
			}
			for kind := range f.Report().Skipped {
				require.Less(t, len(kind), most, name)
			}
		}
		_, err := transcript.Open(writeFile(t, "x.jsonl", content), transcript.Options{})
		if err != nil {
			require.Less(t, len(err.Error()), most, name)
		}
	}
}

func TestExport_SessionLines_EachHasItsOwnMembers(t *testing.T) {
	t.Parallel()
	path := writeFile(t, "s.jsonl", strings.Join([]string{
		`{"type":"system","subtype":"compact_boundary","uuid":"b0","sessionId":"s","cwd":"/a","content":"Earlier"}`,
		`{"type":"user","uuid":"u1","sessionId":"s","cwd":"/a","version":"1","gitBranch":"main","todos":[],"thinkingMetadata":{"maxThinkingTokens":3},"permissionMode":"default","message":{"role":"user","content":"hi"}}`,
		`{"type":"assistant","uuid":"a1","sessionId":"s","cwd":"/a","version":"2","message":{"id":"m1","role":"assistant","content":[{"type":"tool_use","id":"c1","name":"Bash","input":{}}]}}`,
		`{"type":"user","uuid":"u2","sessionId":"s2","cwd":"/b","version":"2","gitBranch":"side","slug":"a-b","toolUseResult":{"stdout":"out","interrupted":false,"n":1e400},"message":{"role":"user","content":[{"type":"tool_result","tool_use_id":"c1","content":"out"}]}}`,
		`{"type":"system","subtype":"compact_boundary","uuid":"b1","level":"info","isMeta":false,"compactMetadata":{"trigger":"auto","preTokens":7}}`,
		`{"type":"user","message":{"content":"bare"}}`,
		`{"type":"user","uuid":"u3","cwd":null,"toolUseResult":"Error: ` + strings.Repeat("long ", 20<<10) + `","message":{"role":"user","content":"go on"}}`,
	}, "\n"))
	rep, _ := prove(t, path)
	require.Empty(t, rep.Problems)
	require.Empty(t, rep.Notes)
}

func TestExport_OddMembersOfMessages_ComeBack(t *testing.T) {
	t.Parallel()
	big := strings.Repeat("x", 40<<10)
	for name, tt := range map[string]struct{ file, content string }{
		"a function_call without arguments":  {"a.jsonl", `{"messages":[{"role":"assistant","content":null,"function_call":{"name":"f","x":1}},{"role":"function","name":"f","content":""}]}`},
		"a large member without a name":      {"a.jsonl", `{"messages":[{"role":"user","content":"hi","":"` + big + `"}]}`},
		"a large member of an observation":   {"t.traj", `{"history":[{"role":"assistant","content":"a","action":"b"},{"role":"user","content":"c","big":"` + big + `"},{"role":"assistant","content":"a","action":"b"},{"role":"tool","content":"c","refusal":"no","reasoning_content":"d"}]}`},
		"a large member of a claude message": {"s.jsonl", `{"type":"user","uuid":"u","message":{"role":"user","content":"hi","big":"` + big + `"}}`},
		"a document without an id":           {"a.jsonl", `{"messages":[{"role":"user","content":"hi"}]}`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rep, _ := prove(t, writeFile(t, tt.file, tt.content))
			require.Empty(t, rep.Problems)
			require.Empty(t, rep.Notes)
		})
	}
}

func TestExport_Trajectory_StepsComeBack(t *testing.T) {
	t.Parallel()
	entry := func(n int) string {
		return fmt.Sprintf(`{"role":"assistant","content":"say %d","thought":"think %d","action":"do %d"},{"role":"user","content":"OBSERVATION: saw %d"}`, n, n, n, n)
	}
	step := func(n int) string {
		return fmt.Sprintf(`{"action":"do %d","observation":"saw %d","response":"say %d","thought":"think %d","state":{"open_file":"n/a"},"execution_time":0.%d}`, n, n, n, n, n)
	}
	history := func(n int) string {
		list := []string{`{"role":"system","content":"s"}`}
		for i := range n {
			list = append(list, entry(i+1))
		}
		return `"history":[` + strings.Join(list, ",") + "]"
	}
	for name, members := range map[string]string{
		"no trajectory and no info":        history(5),
		"an empty trajectory":              history(2) + `,"trajectory":[],"info":{}`,
		"a trajectory that is null":        history(2) + `,"trajectory":null,"info":null`,
		"a step more at the end":           history(2) + `,"trajectory":[` + step(1) + "," + step(2) + "," + step(3) + "]",
		"a step more at the beginning":     history(2) + `,"trajectory":[` + step(7) + "," + step(1) + "," + step(2) + "]",
		"a step more in the middle":        history(3) + `,"trajectory":[` + step(1) + "," + step(9) + "," + step(2) + "," + step(3) + "]",
		"a step less":                      history(3) + `,"trajectory":[` + step(1) + "," + step(3) + "]",
		"the same action again and again":  history(1)[:len(history(1))-1] + "," + entry(1) + "," + entry(1) + `],"trajectory":[` + step(1) + "," + step(1) + "]",
		"steps without history":            `"history":[],"trajectory":[` + step(1) + "," + step(2) + "]",
		"steps that are no objects":        history(1) + `,"trajectory":[5,null,[],"x",{},` + step(1) + "]",
		"other members, of any type":       history(1) + `,"trajectory":[{"action":5,"observation":null,"response":{},"query":[{"role":"system","content":"s"},{"role":"user","content":"elided"}],"messages":[],"extra_info":{"a":[1]}}]`,
		"what the model was asked with":    history(2) + `,"trajectory":[{"action":"do 1","messages":[{"content":"s","role":"system"},` + entry(1) + `]},{"action":"do 2","messages":[{"role":"system","content":"s"},` + entry(1) + `,5,[1],` + entry(2) + `]}]`,
		"an observation that no entry has": `"history":[{"role":"assistant","content":"say","action":"submit"}],"trajectory":[{"action":"submit","observation":"done","response":"say"}],"info":{"exit_status":"submitted"}`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rep, _ := prove(t, writeFile(t, "t.traj", "{"+members+"}"))
			require.Empty(t, rep.Problems)
			require.Empty(t, rep.Notes)
		})
	}
}

func TestReport_MembersThatAreNotKept_AreCountedByName(t *testing.T) {
	t.Parallel()
	big := strings.Repeat("x", 65<<10)
	for name, tt := range map[string]struct {
		file, content string
		dropped       map[string]int
	}{
		"a large member of a conversation": {"a.jsonl", fmt.Sprintf(`{"messages":[{"role":"user"}],"big":%q,"small":1}`, big), map[string]int{"big": 1}},
		"a large member of info":           {"t.traj", fmt.Sprintf(`{"history":[{"role":"user","content":"go"}],"info":{"big":%q,"small":1}}`, big), map[string]int{"info.big": 1}},
		"large steps without history":      {"t.traj", fmt.Sprintf(`{"history":[],"trajectory":[%q]}`, big), map[string]int{"trajectory": 1}},
		"a large member of a boundary":     {"s.jsonl", fmt.Sprintf(`{"type":"system","subtype":"compact_boundary","uuid":"b","big":%q}`, big), map[string]int{"compact_boundary.big": 1}},
		"the line around a copy": {
			"s.jsonl",
			`{"type":"progress","uuid":"p","cwd":"/","toolUseID":"x","data":{"type":"agent_progress","agentId":"a","prompt":"do","message":{"type":"user","uuid":"u","message":{"role":"user","content":"hi"}}}}`,
			map[string]int{"agent_progress.uuid": 1, "agent_progress.toolUseID": 1, "agent_progress.data.prompt": 1},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, rep := open(t, writeFile(t, tt.file, tt.content), transcript.Options{})
			require.Empty(t, rep.Problems)
			require.Equal(t, tt.dropped, rep.Dropped)
			require.Len(t, rep.Notes, 1)
			for name, n := range tt.dropped {
				require.Contains(t, rep.Notes[0], fmt.Sprintf("%s (%d)", name, n))
			}
		})
	}
}

// What a tool gave to its own program is as large as a result, and goes through the blob store as one.
func TestReplay_LargeToolUseResult_ComesBackThroughTheBlobStore(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	big := strings.Repeat("0123456789abcdef", 96<<10)
	path := writeFile(t, "s.jsonl", `{"type":"assistant","uuid":"a","message":{"id":"m","role":"assistant","content":[{"type":"tool_use","id":"c","name":"Read","input":{}}]}}
{"type":"user","uuid":"u","toolUseResult":{"file":{"content":"`+big+`"}},"message":{"role":"user","content":[{"type":"tool_result","tool_use_id":"c","content":"`+big+`"}]}}
`)
	runs, _ := open(t, path, transcript.Options{})
	f := w.fleet("importer")
	_, err := transcript.Replay(t.Context(), f, runs[0], transcript.ReplayOptions{})
	require.NoError(t, err)
	want, err := transcriptcheck.Read(path, transcriptcheck.ClaudeCode)
	require.NoError(t, err)
	requireEqual(t, want.Conversations[0], w.recovered(f, runs[0].ID), transcript.ClaudeCode)
	require.ErrorIs(t, exportUnresolved(t, f, runs[0].ID), transcript.ErrUnresolvedBlob)
}

func exportUnresolved(t *testing.T, f *publisher.Fleet, run string) error {
	t.Helper()
	s, err := f.Get(t.Context(), run)
	require.NoError(t, err)
	return transcript.Export(&bytes.Buffer{}, s, transcript.ClaudeCode)
}

// badInputs is how many random bad inputs are read.
const badInputs = 200

func TestOpen_RandomBadInputs_LoseOnlyWhatTheReportNames(t *testing.T) {
	t.Parallel()
	inputs := badInputs
	if testing.Short() {
		inputs /= 5
		t.Logf("short: %d of %d inputs", inputs, badInputs)
	}
	own := transcripts(t, "testdata")
	var refused, exported int
	for seed := range uint64(inputs) {
		r := rand.New(rand.NewPCG(seed, 6))
		format := transcript.Formats()[r.IntN(3)]
		var content []byte
		if r.IntN(2) == 0 {
			path := own[r.IntN(len(own))]
			b, err := os.ReadFile(path)
			require.NoError(t, err)
			f, err := transcript.Open(path, transcript.Options{})
			require.NoError(t, err)
			content, format = b, f.Report().Format
		} else {
			var b bytes.Buffer
			require.NoError(t, transcriptgen.Write(&b, format, transcriptgen.Spec{Seed: seed, Turns: 1 + r.IntN(4), Runs: 1 + r.IntN(4)}))
			content = b.Bytes()
		}
		for range 1 + r.IntN(3) {
			content = spoil(r, content)
		}
		path := writeFile(t, "bad"+map[bool]string{true: ".traj", false: ".jsonl"}[format == transcript.SWEAgent], string(content))
		whole, rest := lost(t, path, format, content)
		require.Empty(t, rest, "seed %d, %s: lost without a word", seed, format)
		exported += whole
		if whole == 0 {
			refused++
		}
	}
	require.Greater(t, exported, inputs, "most of what was read came back")
	require.Less(t, refused, inputs*3/4)
}

// lost imports bytes and returns how many values came back equal, and those that did not though the report does not name them.
func lost(t *testing.T, path string, format transcript.Format, content []byte) (whole int, rest []string) {
	t.Helper()
	f, err := transcript.Open(path, transcript.Options{Format: format})
	if err != nil {
		return 0, nil
	}
	back := make(map[string]int)
	var last []byte
	for run := range f.Runs() {
		s := fold(t, run.ID, events(t, run))
		out := [][]byte{export(t, s, format)}
		if format == transcript.ClaudeCode {
			out = bytes.Split(out[0], []byte("\n"))
		}
		for _, b := range out {
			last = b
			if v, ok := decode(b); ok {
				back[shape(v)]++
			}
		}
	}
	require.NoError(t, f.Err())
	rep := f.Report()
	named := make(map[int]bool)
	for _, p := range rep.Problems {
		named[p.Line] = true
	}
	document := false
	values := bytes.Split(bytes.TrimPrefix(content, []byte("\ufeff")), []byte("\n"))
	if _, ok := decode(content); rep.Lines == 0 {
		values = [][]byte{bytes.TrimPrefix(content, []byte("\ufeff"))}
		if !ok && len(rep.Problems) > 0 {
			return rep.Runs, nil // it is no document, and the report says where
		}
		document = true
	}
	skipped := 0
	for i, b := range values {
		if !document && named[i+1] || len(b) == 0 && i == len(values)-1 {
			continue
		}
		v, ok := decode(b)
		o, _ := v.(map[string]any)
		switch {
		case len(bytes.TrimSpace(b)) == 0: // counted
			skipped++
			continue
		case !ok:
			rest = append(rest, fmt.Sprintf("%d: %.200s", i+1, b))
			continue
		case format == transcript.ClaudeCode && o["type"] != "user" && o["type"] != "assistant" && (o["type"] != "system" || o["subtype"] != "compact_boundary"):
			// Lines of other types are counted, but for a copy of a sub-agent's line, which is a run's own.
			if data, _ := o["data"].(map[string]any); o["type"] != "progress" || data["type"] != "agent_progress" || data["agentId"] == nil {
				skipped++
			}
			continue
		}
		var each []any
		if list, isList := v.([]any); isList && !isMessages(list) && format == transcript.OpenAIChat {
			each = list
		} else {
			each = []any{v}
		}
		for _, v := range each {
			without(v, rep.Dropped)
			if s := shape(v); back[s] > 0 {
				back[s]--
				whole++
			} else {
				c := transcriptcheck.Conversation{Format: transcriptcheck.OpenAIChat, Whole: v}
				rest = append(rest, fmt.Sprintf("%d: %.100s: %v", i+1, s, c.Export(last)))
			}
		}
	}
	if document && len(rest) == len(rep.Problems) {
		rest = nil // each element that is not there is a problem
	}
	counted := 0
	for kind, n := range rep.Skipped {
		if !strings.HasPrefix(kind, "progress/agent_progress") && !strings.HasSuffix(kind, "/sidechain copy") {
			counted += n
		}
	}
	// A copy of a session comes without the files of its sub-agents.
	require.Equal(t, skipped, counted, "%v", rep.Skipped)
	return whole, rest
}

func isMessages(list []any) bool {
	if len(list) == 0 {
		return false
	}
	first, _ := list[0].(map[string]any)
	_, role := first["role"]
	_, messages := first["messages"]
	return role && !messages
}

// without takes out the members that the report names.
func without(v any, dropped map[string]int) {
	o, _ := v.(map[string]any)
	for name := range dropped {
		name = strings.TrimPrefix(name, "compact_boundary.")
		delete(o, name)
		if cut, ok := strings.CutSuffix(name, "…"); ok {
			maps.DeleteFunc(o, func(name string, _ any) bool { return strings.HasPrefix(name, cut) })
		}
		if inner, ok := strings.CutPrefix(name, "info."); ok {
			if info, ok := o["info"].(map[string]any); ok {
				delete(info, inner)
			}
		}
	}
}

func decode(b []byte) (v any, ok bool) {
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	return v, d.Decode(&v) == nil && !d.More()
}

// shape is the same for equal values; numbers are compared by their text.
func shape(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		return err.Error()
	}
	return string(b)
}

var (
	texts    = regexp.MustCompile(`"[^"\\\n]*"`)
	openings = regexp.MustCompile(`\{`)
)

// spoil makes one mistake of those that files have.
func spoil(r *rand.Rand, b []byte) []byte {
	odd := []string{
		`"\ud83d"`, `"\udc00\ud83d x"`, "\"a\xff\xc0\"", `"\u0000\u2028\uffff"`, "\"\U0001F6A2\u0301\"", `"\ud83d\ude00"`, `""`, "null", "true",
		"1e400", "-1E+999", "-0", "123456789012345678901234567890.125", "0.1000", "[]", "{}", `[{"type":"text","text":1}]`,
		strings.Repeat("[", 100) + strings.Repeat("]", 100), strings.Repeat(`{"a":`, 450) + "1" + strings.Repeat("}", 450),
		strings.Repeat("[", 600) + strings.Repeat("]", 600), strings.Repeat("[", 12000) + strings.Repeat("]", 12000),
		`"` + strings.Repeat("0123456789", 20<<10) + `"`,
	}
	value := odd[r.IntN(len(odd))]
	put := func(at, end int, s string) []byte {
		return append(append(append([]byte{}, b[:at]...), s...), b[end:]...)
	}
	if len(b) == 0 {
		return b
	}
	at := r.IntN(len(b) + 1)
	switch r.IntN(8) {
	case 0:
		return b[:max(at, 1)]
	case 1:
		garbage := make([]byte, 1+r.IntN(20))
		for i := range garbage {
			garbage[i] = byte(r.IntN(256))
		}
		return put(at, min(at+len(garbage), len(b)), string(garbage))
	case 2:
		lines := strings.SplitAfter(string(b), "\n")
		i := r.IntN(len(lines))
		lines[i] += []string{"\n", "garbage\n", "{}\n", "\r\n", "[1]\n", `{"type":"odd"}` + "\n", lines[i]}[r.IntN(7)]
		return []byte(strings.Join(lines, ""))
	case 3, 4:
		if all := openings.FindAllIndex(b, -1); len(all) > 0 {
			in := all[r.IntN(len(all))]
			name := []string{`"x"`, `""`, `"\ud800"`, `"timestamp"`, `"usage"`, `"content"`, `"id"`, `"type"`, `"isSidechain"`, `"agentId"`}[r.IntN(10)]
			return put(in[1], in[1], name+":"+value+map[bool]string{true: "", false: ","}[bytes.HasPrefix(b[in[1]:], []byte("}"))])
		}
	case 5, 6:
		if all := texts.FindAllIndex(b, -1); len(all) > 0 {
			in := all[r.IntN(len(all))]
			return put(in[0], in[1], value)
		}
	default:
		if at < len(b) {
			return put(at, at+1, "")
		}
	}
	return b
}
