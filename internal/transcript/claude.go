package transcript

import (
	"bytes"
	"errors"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/waymarkio/waymark/schema"
)

var errNoMessage = errors.New("the line has no message object")

// commonLineFields are the members that most lines of a session share. The run keeps those of its first line; each
// message keeps what its own line has beyond them or otherwise.
var commonLineFields = []string{"sessionId", "agentId", "isSidechain", "userType", "cwd", "version", "gitBranch", "slug"}

// around keeps the members of the line, without the given ones.
func (d *detail) around(line *object, common map[string]jsontext.Value, without ...string) {
	d.Line = make(map[string]jsontext.Value)
	for i, name := range line.names {
		v := compact(line.values[i])
		if same, ok := common[name]; slices.Contains(without, name) || ok && bytes.Equal(same, v) {
			continue
		}
		d.Line[name] = v
	}
	for _, name := range sortedKeys(common) {
		if _, has := line.get(name); !has {
			d.LineAbsent = append(d.LineAbsent, name)
		}
	}
}

// claudeMessage decodes the message object of a user or assistant line.
func claudeMessage(line *object, typ string) (*decoded, *object, error) {
	raw, _ := line.get("message")
	o, ok := parseObject(raw)
	if !ok {
		return nil, nil, errNoMessage
	}
	whole, _ := parseObject(raw)
	m := new(decoded)
	if role, ok := o.takeStr("role"); ok {
		if role == "" {
			return nil, nil, errNoRole
		}
		m.Role = role
		if role != typ {
			m.d.Role, m.Role = role, typ
		}
	} else {
		m.Role = typ
		m.d.absent("role")
	}
	shape := m.content(o, ClaudeCode, func(v jsontext.Value) { m.claudeBlock(v, typ) })
	if shape != naturalClaudeShape(m.Role, m.Parts) {
		m.d.Content = shape
	}
	m.members(o)
	if v, ok := line.get("timestamp"); ok {
		m.At = timeOf(v)
	}
	return m, whole, nil
}

// naturalClaudeShape is the shape of a content that needs no note: a person's words are a string.
func naturalClaudeShape(role string, content []schema.Part) string {
	if role == schema.RoleUser && len(content) == 1 && content[0].Type == schema.PartText && len(content[0].Source) == 0 {
		return shapeString
	}
	return shapeList
}

// claudeBlock turns one block of a content list into a part, a call or a response.
func (m *decoded) claudeBlock(v jsontext.Value, typ string) {
	foreign := func() { m.Parts = append(m.Parts, jsonPart(v, ClaudeCode)) }
	o, ok := parseObject(v)
	if !ok {
		foreign()
		return
	}
	kind, _ := o.takeStr("type")
	var d detail
	var part schema.Part
	switch {
	case kind == "text":
		part = schema.Part{Type: schema.PartText}
		if !takeContent(o, &part, "text") {
			foreign()
			return
		}
	case kind == "thinking":
		part = schema.Part{Type: schema.PartReasoning}
		if !takeContent(o, &part, "thinking") {
			foreign()
			return
		}
	case kind == "redacted_thinking":
		part = schema.Part{Type: schema.PartReasoning}
		d.Type = kind
	case kind == "tool_use" && typ == schema.RoleAssistant:
		p := pendingCall{part: len(m.Parts)}
		p.rawID, _ = o.take("id")
		p.name, _ = o.take("name")
		if input, has := o.take("input"); has {
			p.args = compact(input)
			switch input.Kind() {
			case '{':
			case 'n':
				p.d.Content = shapeNull
			default:
				p.d.Content = shapeValue
			}
		} else {
			p.d.absent("input")
		}
		p.d.Members = o.rest()
		m.Parts = append(m.Parts, schema.Part{})
		m.calls = append(m.calls, p)
		return
	case kind == "tool_result" && typ == schema.RoleUser:
		p := pendingResponse{part: len(m.Parts)}
		p.rawID, _ = o.take("tool_use_id")
		if content, has := o.take("content"); has {
			p.setContent(content)
		} else {
			p.d.absent("content")
		}
		if e, has := o.take("is_error"); has {
			if b, ok := boolean(e); ok {
				p.isError = &b
			} else {
				p.d.IsError = e
			}
		}
		p.d.Members = o.rest()
		m.Parts = append(m.Parts, schema.Part{})
		m.responses = append(m.responses, p)
		return
	case kind == "image" || kind == "document":
		modality := "image"
		if kind == "document" {
			modality = kind
		}
		inner, ok := takeObject(o, "source")
		from, _ := inner.takeStr("type")
		data, ok2 := inner.takeStr("data")
		mime, ok3 := inner.takeStr("media_type")
		url, ok4 := inner.takeStr("url")
		switch {
		case ok && from == "base64" && ok2 && ok3 && !ok4:
			part = schema.Part{Type: schema.PartBlob, Modality: modality, MimeType: mime, Content: &data}
		case ok && from == "url" && ok4 && !ok2 && !ok3:
			part = schema.Part{Type: schema.PartURI, Modality: modality, URI: url}
		default:
			foreign()
			return
		}
		d.Inner = inner.rest()
	default:
		foreign()
		return
	}
	d.Members = o.rest()
	part.Source = d.source(ClaudeCode)
	if len(part.Source) > maxMember {
		foreign()
		return
	}
	m.Parts = append(m.Parts, part)
}

// takeContent moves a string member into the part's content; absent stays nil. false: another value.
func takeContent(o *object, part *schema.Part, name string) bool {
	if _, has := o.get(name); !has {
		return true
	}
	s, ok := o.takeStr(name)
	part.Content = &s
	return ok
}

// claudeAnswer reads the model's part of an assistant line.
func claudeAnswer(message *object) (key string, a answer) {
	key, _ = message.str("id")
	if len(key) <= schema.MaxIdentifier {
		a.responseID = key
	}
	a.model, _ = message.str("model")
	if s, ok := message.str("stop_reason"); ok {
		a.finishReasons = []string{s}
	}
	if v, ok := message.get("usage"); ok {
		a.usage = claudeUsage(v)
	}
	return key, a
}

func claudeUsage(v jsontext.Value) *schema.Usage {
	o, ok := parseObject(v)
	if !ok {
		return nil
	}
	count := func(name string) int64 {
		v, _ := o.get(name)
		if n, ok := integer(v); ok && n > 0 {
			return n
		}
		return 0
	}
	return &schema.Usage{
		InputTokens:              count("input_tokens"),
		OutputTokens:             count("output_tokens"),
		CacheReadInputTokens:     count("cache_read_input_tokens"),
		CacheCreationInputTokens: count("cache_creation_input_tokens"),
	}
}

// claudeCompaction reads a compact_boundary. Its summary is the text of the user message that follows; until
// one comes, it is what the boundary itself says.
func claudeCompaction(line *object, common map[string]jsontext.Value, rep *Report) *Compaction {
	c := new(Compaction)
	c.Summary, _ = line.str("content")
	if v, ok := line.get("timestamp"); ok {
		c.At = timeOf(v)
	}
	var d detail
	d.around(line, common, "type")
	rep.within(d.Line, "compact_boundary.")
	if v, ok := line.get("compactMetadata"); ok {
		if meta, ok := parseObject(v); ok {
			v, _ := meta.get("preTokens")
			if n, ok := integer(v); ok && n > 0 {
				c.TokensBefore = n
			}
			v, _ = meta.get("postTokens")
			if n, ok := integer(v); ok && n > 0 {
				c.TokensAfter = n
			}
		}
	}
	c.Source = d.source(ClaudeCode)
	return c
}

// textOf joins a message's texts.
func textOf(m *schema.Message) string {
	var texts []string
	for _, p := range m.Parts {
		if p.Type == schema.PartText && p.Content != nil {
			texts = append(texts, *p.Content)
		}
	}
	return strings.Join(texts, "\n")
}
