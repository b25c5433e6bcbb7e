package schema_test

import (
	"bufio"
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/schema"
)

// Transcripts are files of testdata/fold: the first line is the story. Each further line is an event, and the
// indented lines below it are the fold's reaction: the verdict, then the changed members of the head. go test
// ./schema -update writes them.
//
//	write [turn=N] [as=EXECUTOR] TYPE [DATA]   by the executor that holds the run, or held it
//	hold …                  as write, but the message is lost on its way …
//	release                 … and comes now
//	fork …                  as write, at the sequence of the writer's last event
//	control [epoch=N] TYPE [DATA]
//	takeover EXECUTOR [instance=…] [reason=…] [epoch=+N] [from=stale]
//	takeover EXECUTOR reason=rewind to=N      it continues after the log's message N
//	plain id=ID [turn=N] [epoch=N] [subject=…] [source=…] TYPE [DATA]
//	raw [NAME:VALUE] … [BODY]                 a message unchanged, headers first
//	again N                 the log's message N comes once more, as another message
//	replay N                the log's message N is read once more
//	regress N               another message is found at the place of message N
//	repeat N COMMAND        with # for the number; shown is the last verdict and all that changed
//	keys N …                from now on the fleet has these keys; one with "-" before it is retired
//	control signer=N [place=any] …             the event is signed by key N, for its own place or for another one
//	takeover EXECUTOR signer=N
//	messages, calls, state MEMBER              what the state has
func TestFold_Transcripts_AsRecorded(t *testing.T) {
	files, err := filepath.Glob(filepath.Join("testdata", "fold", "*.txt"))
	require.NoError(t, err)
	require.NotEmpty(t, files)
	seen := map[schema.Reason]bool{}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			text, err := os.ReadFile(file)
			require.NoError(t, err)
			got := runTranscript(t, string(text), seen)
			if *update {
				require.NoError(t, os.WriteFile(file, []byte(got), 0o644))
			}
			require.Equal(t, string(text), got)
		})
	}
	seen[schema.ReasonErased] = true     // no event brings it about: TestFold_AfterRemoval_AcceptsNothing
	seen[schema.ReasonWrongShard] = true // the fold of a shard refuses it before the run: consumer/fold.TestFold_RunOfAnotherShard_IsRefusedWithItsSubject
	for _, reason := range schema.Reasons() {
		require.True(t, seen[reason], "no transcript has an event rejected for %s", reason)
	}
}

type transcript struct {
	*testRun
	writers map[string]*schema.Writer
	held    []*schema.Event
	out     strings.Builder
	seen    map[schema.Reason]bool
}

func runTranscript(t *testing.T, text string, seen map[schema.Reason]bool) string {
	t.Helper()
	tr := &transcript{testRun: newTestRun(t), writers: map[string]*schema.Writer{}, seen: seen}
	tr.writers["ex-1"] = &tr.w
	lines := bufio.NewScanner(strings.NewReader(text))
	first := true
	for lines.Scan() {
		line := lines.Text()
		switch {
		case strings.HasPrefix(line, "    "): // output of an earlier run
		case line == "" || strings.HasPrefix(line, "#"):
			fmt.Fprintln(&tr.out, line)
			require.False(t, first && !strings.HasPrefix(line, "# "), "the first line tells the story")
		default:
			fmt.Fprintln(&tr.out, line)
			for _, out := range tr.do(line) {
				fmt.Fprintln(&tr.out, "    "+out)
			}
		}
		first = false
	}
	return tr.out.String()
}

// do runs one command and returns its output.
func (tr *transcript) do(line string) []string {
	tr.tb.Helper()
	command, rest, _ := strings.Cut(line, " ")
	switch command {
	case "messages":
		return tr.messages()
	case "calls":
		return tr.calls()
	case "state":
		return tr.member(rest)
	case "keys":
		return tr.setKeys(rest)
	case "repeat":
		count, again, _ := strings.Cut(rest, " ")
		n, err := strconv.Atoi(count)
		require.NoError(tr.tb, err)
		return tr.apply(func() (v schema.Verdict) {
			for i := range n {
				command, rest, _ := strings.Cut(strings.ReplaceAll(again, "#", strconv.Itoa(i+1)), " ")
				v = tr.deliver(command, rest)
			}
			return v
		})
	case "hold":
		tr.held = append(tr.held, tr.executorsEvent(rest, false))
		return []string{"(lost)"}
	case "release":
		held := tr.held
		tr.held = nil
		var out []string
		for _, e := range held {
			out = append(out, tr.apply(func() schema.Verdict { return tr.event(e) })...)
		}
		return out
	}
	return tr.apply(func() schema.Verdict { return tr.deliver(command, rest) })
}

// deliver brings one message to the log.
func (tr *transcript) deliver(command, rest string) schema.Verdict {
	tr.tb.Helper()
	switch command {
	case "write", "fork":
		return tr.event(tr.executorsEvent(rest, command == "fork"))
	case "control":
		opt, d := tr.parse(rest)
		epoch := max(tr.head.Epoch, 1)
		if opt["epoch"] != "" {
			epoch = schema.Epoch(tr.number(opt["epoch"])) //nolint:gosec // a small number
		}
		e := tr.makeControl(d, epoch)
		e.Turn = int32(tr.number(opt["turn"])) //nolint:gosec // a small number
		if opt["source"] != "" {
			e.Source = opt["source"]
		}
		if opt["signer"] != "" {
			digest := tr.head.Digest
			if opt["place"] != "" {
				digest = schema.Hash{}.String()
			}
			tr.sign(e, opt["signer"], digest)
		}
		return tr.event(e)
	case "takeover":
		return tr.takeOver(rest)
	case "plain":
		opt, d := tr.parse(rest)
		e := &schema.Event{
			ID: opt["id"], Source: "/waymark/f/plain", Type: schema.TypeOf(d.EventName()), Subject: "r1",
			Epoch: schema.Epoch(tr.number(opt["epoch"])), Turn: int32(tr.number(opt["turn"])), //nolint:gosec // small numbers
			Time: schema.FormatTime(tr.now()), Data: mustJSON(tr.tb, d),
		}
		if s, ok := opt["subject"]; ok {
			e.Subject = s
		}
		if s, ok := opt["source"]; ok {
			e.Source = s
		}
		return tr.event(e)
	case "raw":
		header := map[string][]string{}
		for rest != "" {
			word, more, _ := strings.Cut(rest, " ")
			name, value, ok := strings.Cut(word, ":")
			if !ok || strings.HasPrefix(word, "{") {
				break
			}
			header[name] = append(header[name], value)
			rest = more
		}
		return tr.record(header, []byte(rest))
	case "again", "replay", "regress":
		rec := tr.log[tr.number(rest)-1]
		if command == "again" {
			return tr.record(rec.Header, rec.Body)
		}
		if command == "regress" {
			rec.Header = map[string][]string{"x": {"another"}}
		}
		tr.head.Apply(tr.keys, &rec)
		return tr.state.Apply(tr.keys, &rec)
	}
	require.FailNow(tr.tb, "unknown command "+command)
	return schema.Verdict{}
}

func (tr *transcript) takeOver(rest string) schema.Verdict {
	tr.tb.Helper()
	executor, options, _ := strings.Cut(rest, " ")
	d := &schema.RunResumedData{
		Executor: executor, Reason: "claim", RequestID: "q-" + executor,
		From: schema.From{Epoch: max(tr.head.Epoch, 1), Sequence: tr.head.Sequence, Digest: tr.head.Digest},
	}
	if d.From.Digest == "" {
		d.From.Digest = schema.Hash{}.String()
	}
	epoch, signer := tr.head.Epoch+1, ""
	for option := range strings.FieldsSeq(options) {
		name, value, _ := strings.Cut(option, "=")
		switch name {
		case "reason":
			d.Reason = value
		case "instance":
			d.Instance = value
		case "signer":
			signer = value
		case "from":
			d.From.Sequence++
		case "to":
			d.To = tr.rewindTo(tr.number(value))
		case "epoch":
			epoch = schema.Epoch(int(tr.head.Epoch) + tr.signed(value)) //nolint:gosec // small numbers
		}
	}
	e := tr.makeControl(d, epoch)
	if signer != "" {
		tr.sign(e, signer, tr.head.Digest)
	}
	v := tr.event(e)
	if v.Kind == schema.Applied {
		old := tr.w
		tr.writers[old.Executor] = &old
		tr.w = schema.Writer{Fleet: "f", Run: "r1", Executor: executor, Epoch: tr.head.Epoch}
		tr.writers[executor] = &tr.w
	}
	return v
}

// rewindTo is the base of a rewind to message n of its log, like the daemon's.
func (r *testRun) rewindTo(n int) (to *schema.Base) {
	r.tb.Helper()
	head := schema.NewHead("f", "r1")
	defer func() {
		if n > len(r.log) { // a record that is not there
			to.Records, to.Head.Records = int64(n), int64(n)
		}
	}()
	for i := range r.log[:min(n, len(r.log))] {
		head.Apply(r.keys, &r.log[i])
	}
	at := head.Clone()
	if n > len(r.log) {
		at.Digest, at.Position.ID = cmp.Or(at.Digest, schema.Hash{}.String()), cmp.Or(at.Position.ID, "none")
	}
	var later []schema.OpenSignal
	for i := min(n, len(r.log)); i < len(r.log); i++ {
		later = append(later, schema.SentSignal(&head, head.Apply(r.keys, &r.log[i]))...)
	}
	to, err := schema.RewindTo(schema.Point{Kind: schema.PointRecord, Number: uint64(n)}, &at, later) //nolint:gosec // a small number
	require.NoError(r.tb, err)
	return to
}

// setKeys gives the fleet the keys with these numbers.
func (tr *transcript) setKeys(rest string) []string {
	tr.tb.Helper()
	var keys []schema.Key
	for word := range strings.FieldsSeq(rest) {
		number, retired := strings.CutPrefix(word, "-")
		signer := signers[tr.number(number)-1]
		key, there := tr.keys.Key(signer.name)
		if !there {
			key = schema.Key{Name: signer.name, Public: signer.public, Since: tr.now().UnixNano()}
		}
		if retired && key.Until == 0 {
			key.Until = tr.now().UnixNano()
		}
		keys = append(keys, key)
	}
	tr.keys = keysOf(tr.tb, keys...)
	return nil
}

func (tr *transcript) sign(e *schema.Event, signer, digest string) {
	tr.tb.Helper()
	s := signers[tr.number(signer)-1]
	require.NoError(tr.tb, e.Sign(s.name, digest, s.sign))
}

func (tr *transcript) number(s string) int {
	if s == "" {
		return 0
	}
	return tr.signed(s)
}

func (tr *transcript) signed(s string) int {
	tr.tb.Helper()
	n, err := strconv.Atoi(s)
	require.NoError(tr.tb, err)
	return n
}

// parse reads options, the type and the data of an event. The data need not be valid.
func (tr *transcript) parse(rest string) (map[string]string, schema.Data) {
	tr.tb.Helper()
	opt := map[string]string{}
	for {
		word, more, _ := strings.Cut(rest, " ")
		name, value, ok := strings.Cut(word, "=")
		if !ok || strings.ContainsAny(name, `."{`) {
			break
		}
		opt[name], rest = value, more
	}
	name, body, _ := strings.Cut(rest, " ")
	if body == "" {
		body = "{}"
	}
	if schema.NewData(name) == nil {
		return opt, &anyData{name, jsontext.Value(body)}
	}
	d, err := schema.ParseData(&schema.Event{Type: schema.TypeOf(name), Data: []byte(body)})
	if err != nil {
		return opt, &anyData{name, jsontext.Value(body)}
	}
	return opt, d
}

// anyData is data of no type in the vocabulary.
type anyData struct {
	name string
	body jsontext.Value
}

func (a *anyData) EventName() string            { return a.name }
func (a *anyData) MarshalJSON() ([]byte, error) { return a.body, nil }

func (tr *transcript) executorsEvent(rest string, fork bool) *schema.Event {
	tr.tb.Helper()
	opt, d := tr.parse(rest)
	w := &tr.w
	if as := opt["as"]; as != "" {
		w = tr.writers[as]
		require.NotNil(tr.tb, w, as)
	}
	next := *w
	if fork {
		next.Last--
	}
	e := &schema.Event{
		Source: schema.Source("f", w.Executor), Type: schema.TypeOf(d.EventName()), Subject: "r1",
		Time: schema.FormatTime(tr.now()), Epoch: w.Epoch, Sequence: next.Last + 1,
		Turn: int32(tr.number(opt["turn"])), DataContentType: schema.ContentTypeJSON, Data: mustJSON(tr.tb, d), //nolint:gosec // small
	}
	e.Seal()
	if !fork {
		require.NoError(tr.tb, w.Commit(e))
	}
	return e
}

// apply runs one delivery and describes its effect.
func (tr *transcript) apply(deliver func() schema.Verdict) []string {
	tr.tb.Helper()
	before := tr.members()
	v := deliver()
	requireConsistent(tr.tb, tr.state)
	if v.Reason != "" {
		tr.seen[v.Reason] = true
	}
	line := v.Kind.String()
	if v.Reason != "" {
		line += " " + string(v.Reason) + ": " + v.Detail
	}
	if v.Call.ToolCallID != "" {
		line += fmt.Sprintf(" call %d/%s/%d", v.Call.Turn, v.Call.ToolCallID, v.Call.Occurrence)
	}
	if v.Boundary {
		line += " boundary"
	}
	if v.Superseded {
		line += " superseded"
	}
	if v.Opened {
		line += " opened"
	}
	out := []string{line}
	after := tr.members()
	names := make([]string, 0, len(after))
	for name := range after {
		names = append(names, name)
	}
	for name := range before {
		if _, ok := after[name]; !ok {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	for _, name := range names {
		switch now, ok := after[name]; {
		case !ok:
			out = append(out, name+" is gone")
		case now != before[name]:
			if len(now) > 400 {
				now = fmt.Sprintf("%s… (%d bytes)", now[:60], len(now))
			}
			out = append(out, name+" = "+now)
		}
	}
	return out
}

// members are the members of the head as text, except those that change with every event.
func (tr *transcript) members() map[string]string {
	tr.tb.Helper()
	var all map[string]jsontext.Value
	require.NoError(tr.tb, json.Unmarshal(mustJSON(tr.tb, tr.head), &all))
	for _, name := range []string{"position", "digest", "window", "updated_at", "run", "fleet", "records"} {
		delete(all, name)
	}
	out := map[string]string{}
	for name, value := range all {
		if name != "counts" {
			out[name] = string(value)
			continue
		}
		var counts map[string]jsontext.Value
		require.NoError(tr.tb, json.Unmarshal(value, &counts))
		for name, value := range counts {
			out["counts."+name] = string(value)
		}
	}
	return out
}

func (tr *transcript) member(name string) []string {
	tr.tb.Helper()
	var all map[string]jsontext.Value
	require.NoError(tr.tb, json.Unmarshal(mustJSON(tr.tb, tr.state), &all))
	return []string{string(all[name])}
}

func (tr *transcript) messages() []string {
	var out []string
	joined := tr.state.Joined()
	for _, m := range joined {
		line := fmt.Sprintf("turn %d %s:", m.Turn, m.Role)
		for _, p := range m.Parts {
			switch p.Type {
			case schema.PartToolCall:
				line += fmt.Sprintf(" call %s %s(%s)", p.ID, p.Name, string(p.Arguments))
			case schema.PartToolCallResponse:
				line += fmt.Sprintf(" response %s = %s", p.ID, string(p.Response))
			default:
				line += fmt.Sprintf(" %s %q", p.Type, *p.Content)
			}
		}
		out = append(out, line)
	}
	return out
}

func (tr *transcript) calls() []string {
	var out []string
	for _, c := range tr.state.Calls {
		line := fmt.Sprintf("%d/%s/%d %s(%s) epoch %d: %s", c.Turn, c.ToolCallID, c.Occurrence, c.Name, string(c.Arguments), c.Epoch, c.Outcome)
		if c.InDoubt {
			line += ", in doubt"
		}
		if len(c.Settlements) > 0 {
			line += fmt.Sprintf(", settled %v", c.Settlements)
		}
		if len(c.Result) > 0 {
			line += " = " + string(c.Result)
		}
		if c.Error != nil {
			line += " error " + c.Error.Type
		}
		if c.Late != nil {
			line += fmt.Sprintf(" late from epoch %d = %s", c.Late.Epoch, string(c.Late.Result))
		}
		out = append(out, line)
	}
	return out
}
