package transcript

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/waymarkio/waymark/internal/form"
	"github.com/waymarkio/waymark/schema"
)

// thread collects the lines of one thread (main or sub-agent) into a run.
type thread struct {
	*builder
	s *session
	// compaction waits for its summary.
	compacted *Compaction
	// common are the members of the first line that other lines share; nil before it.
	common map[string]jsontext.Value
	// lines counts the messages.
	lines int
}

// session reads a file of JSON lines and its sub-agents' files.
type session struct {
	rep  *Report
	opts Options
	path string
	// main is the main thread; nil if the file is a sub-agent's own.
	main *thread
	// children are threads inside the file (sidechain lines and agent_progress copies), by agent id.
	children map[string]*thread
	copies   map[string]*thread
	order    []string
	// callOf names the main thread's call that started an agent.
	callOf map[string]string
	// roots finds the sidechain of lines without agent id, by uuid.
	roots map[string]string
	// owned are the agents with a file of their own.
	owned map[string]string
	// turns and kinds are the main thread's calls: their turn, and the kind of agent that they request.
	turns map[string]int32
	kinds map[string]string
}

// claudeRuns yields the main thread, then the sub-agents.
func claudeRuns(path string, rep *Report, opts Options, yield func(*Run) bool) error {
	s := &session{
		rep: rep, opts: opts, path: path,
		children: make(map[string]*thread), copies: make(map[string]*thread), callOf: make(map[string]string),
		roots: make(map[string]string), turns: make(map[string]int32), kinds: make(map[string]string),
	}
	if agent, session, ok := sidechainFile(path); ok {
		return s.loneAgent(agent, session, yield)
	}
	s.owned = subagentFiles(path, rep)
	id := opts.runID(opts.name(path), rep)
	s.main = s.newThread(&Run{ID: id, Agent: opts.agent(ClaudeCode), Format: ClaudeCode, File: path})
	if err := s.read(path, s.mainLine); err != nil {
		return err
	}
	s.main.settle()
	run := s.main.finish()
	for c := range run.Calls {
		s.turns[c.Key.ToolCallID] = c.Key.Turn
		s.kinds[c.Key.ToolCallID] = agentKind(c)
	}
	if len(run.Steps) > 0 {
		rep.count(run)
		if !yield(run) {
			return nil
		}
	}
	s.main, run = nil, nil
	for _, agent := range s.order {
		t, copied := s.children[agent], s.copies[agent]
		switch {
		case t == nil:
			t = copied
		case copied != nil:
			rep.skipped("progress/agent_progress (the sub-agent's lines are in the file)", copied.lines)
		}
		if !s.yieldChild(id, agent, t, yield) {
			return nil
		}
		delete(s.children, agent)
		delete(s.copies, agent)
	}
	for _, agent := range form.SortedKeys(s.owned) {
		t := s.newThread(&Run{Format: ClaudeCode, File: s.owned[agent]})
		if err := s.read(s.owned[agent], t.line); err != nil {
			rep.problemIn(s.owned[agent], 0, "", err)
			continue
		}
		if !s.yieldChild(id, agent, t, yield) {
			return nil
		}
	}
	return nil
}

// agentUnknown is the agent of a sub-agent's run while its kind is unknown.
const agentUnknown = "subagent"

// yieldChild completes a sub-agent's run: id, agent, parent.
func (s *session) yieldChild(parent, agent string, t *thread, yield func(*Run) bool) bool {
	t.settle()
	run := t.finish()
	if len(run.Steps) == 0 {
		return true
	}
	run.ID = s.opts.safe(parent+"-agent-"+agent, s.rep)
	call := s.callOf[agent]
	run.Parent = &schema.Parent{Run: parent, ToolCallID: call, Turn: s.turns[call]}
	run.Agent = agentUnknown
	switch kind := s.kinds[call]; {
	case strings.HasPrefix(agent, "acompact"):
		run.Agent = "compaction"
	case schema.ValidName(kind):
		run.Agent = kind
	}
	s.rep.count(run)
	return yield(run)
}

// loneAgent reads a sub-agent's file that was named directly.
func (s *session) loneAgent(agent, parent string, yield func(*Run) bool) error {
	t := s.newThread(&Run{Format: ClaudeCode, File: s.path})
	if err := s.read(s.path, t.line); err != nil {
		return err
	}
	if parent == "" {
		parent = t.run.ThreadID
	}
	if !schema.ValidName(parent) {
		parent = s.opts.safe(parent+"-session", s.rep)
	}
	if s.opts.RunID == "" {
		s.yieldChild(parent, agent, t, yield)
	} else {
		s.yieldChild(parent, agent, t, func(run *Run) bool {
			run.ID = s.opts.RunID
			return yield(run)
		})
	}
	return nil
}

func (s *session) newThread(run *Run) *thread {
	return &thread{builder: newBuilder(run, ClaudeCode, s.rep), s: s}
}

// read passes each line that is a JSON object to f.
func (s *session) read(path string, f func(line *form.Object, typ string, n int) error) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }()
	lines := newLineReader(&input{file, &s.opts}, s.opts.maxLine())
	for {
		b, err := lines.next()
		n := lines.line
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case errors.Is(err, errLongLine):
			s.rep.problemIn(path, n, "", err)
			continue
		case err != nil:
			return err
		}
		s.rep.Lines++
		if isBlank(b) {
			s.rep.skip("blank")
			continue
		}
		b, err = s.rep.text(b, n)
		if err != nil {
			p, cause := jsonProblem(err)
			s.rep.problemIn(path, n, p, cause)
			continue
		}
		o, ok := form.ParseObject(b)
		if !ok {
			s.rep.problemIn(path, n, "", errors.New("the line is not a JSON object"))
			continue
		}
		typ, _ := o.Str("type")
		if err := f(o, typ, n); err != nil {
			s.rep.problemIn(path, n, pathOf(err), err)
		}
	}
}

func pathOf(err error) string {
	if p, ok := errors.AsType[*pathError](err); ok {
		return p.path
	}
	return ""
}

// mainLine assigns a line of the session's file to its thread.
func (s *session) mainLine(o *form.Object, typ string, n int) error {
	switch {
	case isMessage(typ) && isTrue(o, "isSidechain"):
		agent := s.sidechain(o)
		if s.owned[agent] != "" {
			s.rep.skip(typ + "/sidechain copy")
			return nil
		}
		return s.child(s.children, agent).line(o, typ, n)
	case typ == "progress":
		return s.progress(o, n)
	}
	if typ == schema.RoleUser {
		s.linkAgent(o)
	}
	return s.main.line(o, typ, n)
}

func isMessage(typ string) bool { return typ == schema.RoleUser || typ == schema.RoleAssistant }

// child returns the thread of an agent inside the file.
func (s *session) child(threads map[string]*thread, agent string) *thread {
	t := threads[agent]
	if t == nil {
		t = s.newThread(&Run{Format: ClaudeCode, File: s.path})
		threads[agent] = t
		if !slices.Contains(s.order, agent) {
			s.order = append(s.order, agent)
		}
	}
	return t
}

// copiedLineFields are members that a copied sub-agent line takes from its enclosing line.
var copiedLineFields = []string{"sessionId", "cwd", "version", "gitBranch"}

// progress takes the copy of a sub-agent's message, unless the sub-agent has its own file.
func (s *session) progress(o *form.Object, n int) error {
	raw, _ := o.Get("data")
	data, ok := form.ParseObject(raw)
	kind := ""
	if ok {
		kind, _ = data.Str("type")
	}
	agent, _ := dataStr(data, "agentId")
	if kind != "agent_progress" || agent == "" {
		s.rep.skip(joinType("progress", kind))
		return nil
	}
	if call, ok := o.Str("parentToolUseID"); ok && call != "" {
		s.callOf[agent] = call
	}
	if s.owned[agent] != "" {
		s.rep.skip("progress/agent_progress (the sub-agent's file exists)")
		return nil
	}
	inner, _ := data.Get("message")
	line, ok := form.ParseObject(inner)
	if !ok {
		return at("/data/message", errNoMessage)
	}
	typ, _ := line.Str("type")
	if !isMessage(typ) {
		s.rep.skip(joinType("progress/agent_progress", typ))
		return nil
	}
	// The rest of the line around the copy is not kept.
	for i, name := range o.Names {
		if _, has := line.Get(name); !has && slices.Contains(copiedLineFields, name) {
			line.Put(name, o.Values[i])
		} else if name != "type" && name != "data" {
			s.rep.drop("agent_progress."+name, len(o.Values[i]))
		}
	}
	for i, name := range data.Names {
		if name != "type" && name != "message" && name != "agentId" {
			s.rep.drop("agent_progress.data."+name, len(data.Values[i]))
		}
	}
	return s.child(s.copies, agent).line(line, typ, n)
}

func dataStr(o *form.Object, name string) (string, bool) {
	if o == nil {
		return "", false
	}
	return o.Str(name)
}

// linkAgent learns from a call's result which agent the call started.
func (s *session) linkAgent(o *form.Object) {
	raw, _ := o.Get("toolUseResult")
	result, ok := form.ParseObject(raw)
	if !ok {
		return
	}
	agent, ok := result.Str("agentId")
	if !ok || agent == "" || s.callOf[agent] != "" {
		return
	}
	raw, _ = o.Get("message")
	message, ok := form.ParseObject(raw)
	if !ok {
		return
	}
	content, _ := message.Get("content")
	blocks, _ := form.ParseArray(content)
	for _, b := range blocks {
		if block, ok := form.ParseObject(b); ok {
			if id, ok := block.Str("tool_use_id"); ok {
				s.callOf[agent] = id
				return
			}
		}
	}
}

// sidechain names the agent of a sidechain line. Older files have no agent id: then a chain is named after its first
// line.
func (s *session) sidechain(o *form.Object) string {
	uuid, _ := o.Str("uuid")
	parent, _ := o.Str("parentUuid")
	if agent, ok := o.Str("agentId"); ok && agent != "" {
		return agent
	}
	root, ok := s.roots[parent]
	if !ok {
		root = uuid
		if len(root) > 8 {
			root = root[:8]
		}
		if root == "" {
			root = "sidechain"
		}
	}
	s.roots[uuid] = root
	return root
}

// line adds one line to the thread.
func (t *thread) line(o *form.Object, typ string, n int) error {
	switch {
	case isMessage(typ):
	case typ == "system":
		sub, _ := o.Str("subtype")
		if sub != "compact_boundary" {
			t.s.rep.skip(joinType(typ, sub))
			return nil
		}
		t.settle()
		t.start(o, n)
		t.compacted = claudeCompaction(o, t.common, t.s.rep)
		return nil
	default:
		kind := ""
		if raw, ok := o.Get("data"); ok {
			if data, ok := form.ParseObject(raw); ok {
				kind, _ = data.Str("type")
			}
		}
		t.s.rep.skip(joinType(typ, kind))
		return nil
	}
	m, message, err := claudeMessage(o, typ)
	if err != nil {
		return err
	}
	t.start(o, n)
	t.lines++
	m.d.around(o, t.common, "type", "message")
	if t.compacted != nil {
		if typ == schema.RoleUser {
			if text := textOf(&m.Message.Message); text != "" {
				t.compacted.Summary = text
			}
		}
		t.settle()
	}
	if typ == schema.RoleAssistant {
		key, a := claudeAnswer(message)
		t.assistant(m, key, a)
	} else {
		t.other(m, false)
	}
	return nil
}

// settle adds a compaction that waits for its summary.
func (t *thread) settle() {
	if t.compacted == nil {
		return
	}
	c := t.compacted
	t.compacted = nil
	t.compaction(c)
}

// start keeps the first line's data about the whole session.
func (t *thread) start(o *form.Object, n int) {
	if t.common != nil {
		return
	}
	run := t.run
	run.Line = n
	if id, ok := o.Str("sessionId"); ok && validIdentifier(id) {
		run.ThreadID = id
	}
	t.common = make(map[string]jsontext.Value)
	for _, name := range commonLineFields {
		if v, ok := o.Get(name); ok && len(v) <= maxMember {
			t.common[name] = form.Compact(v)
		}
	}
	run.Source = (&detail{Line: t.common}).source(ClaudeCode)
}

func joinType(typ, sub string) string {
	if typ == "" {
		typ = "without type"
	}
	if len(typ) > 80 {
		typ = typ[:80]
	}
	if sub == "" || len(sub) > 80 {
		return typ
	}
	return typ + "/" + sub
}

// agentKind reads the kind of agent that a call requests.
func agentKind(c *Call) string {
	o, ok := form.ParseObject(c.Arguments)
	if !ok {
		return ""
	}
	kind, _ := o.Str("subagent_type")
	return kind
}

// errNotItsOwn is the problem of a sub-agent's file that is a link, a pipe or a device.
var errNotItsOwn = errors.New("is a link or a special file, so it was not read: import it by its name if it belongs to the session")

// subagentFiles finds the files of a session's sub-agents, by agent id. It does not follow links: the user has not
// named these files, so a link in a foreign directory could import another session or another person's files.
func subagentFiles(path string, rep *Report) map[string]string {
	of := strings.TrimSuffix(path, filepath.Ext(path))
	folder := filepath.Join(of, "subagents")
	for _, dir := range []string{of, folder} {
		info, err := os.Lstat(dir)
		if err != nil {
			return nil
		}
		if !info.IsDir() {
			rep.problemIn(dir, 0, "", errNotItsOwn)
			return nil
		}
	}
	entries, err := os.ReadDir(folder)
	if err != nil {
		rep.problemIn(folder, 0, "", err)
		return nil
	}
	files := make(map[string]string)
	for _, e := range entries {
		agent, ok := agentOfFile(e.Name())
		switch file := filepath.Join(folder, e.Name()); {
		case !ok:
		case e.Type().IsRegular():
			files[agent] = file
		case !e.IsDir():
			rep.problemIn(file, 0, "", errNotItsOwn)
		}
	}
	return files
}

func agentOfFile(name string) (string, bool) {
	base, ok := strings.CutSuffix(name, ".jsonl")
	if !ok {
		return "", false
	}
	agent, ok := strings.CutPrefix(base, "agent-")
	return agent, ok && agent != ""
}

// sidechainFile recognises the path of a sub-agent's own file: <session>/subagents/agent-<id>.jsonl.
func sidechainFile(path string) (agent, session string, ok bool) {
	agent, ok = agentOfFile(filepath.Base(path))
	if !ok {
		return "", "", false
	}
	if full, err := filepath.Abs(path); err == nil {
		path = full // a path relative to the session's folder does not contain its name
	}
	folder := filepath.Dir(path)
	if filepath.Base(folder) == "subagents" {
		session = filepath.Base(filepath.Dir(folder))
	}
	return agent, session, true
}
