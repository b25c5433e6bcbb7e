package transcript

import (
	"bytes"
	"errors"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/waymarkio/waymark/internal/form"
	"github.com/waymarkio/waymark/schema"
)

var errNoMessage = errors.New("the line has no message object")

// commonLineFields are the members that most lines of a session share. The run keeps those of its first line; each
// message keeps only its differences.
var commonLineFields = []string{"sessionId", "agentId", "isSidechain", "userType", "cwd", "version", "gitBranch", "slug"}

// around keeps the members of the line, except the given ones.
func (d *detail) around(line *form.Object, common map[string]jsontext.Value, without ...string) {
	d.Line = make(map[string]jsontext.Value)
	for i, name := range line.Names {
		v := form.Compact(line.Values[i])
		if same, ok := common[name]; slices.Contains(without, name) || ok && bytes.Equal(same, v) {
			continue
		}
		d.Line[name] = v
	}
	for _, name := range form.SortedKeys(common) {
		if _, has := line.Get(name); !has {
			d.LineAbsent = append(d.LineAbsent, name)
		}
	}
}

// claudeMessage decodes the message object of a user or assistant line.
func claudeMessage(line *form.Object, typ string) (*decoded, *form.Object, error) {
	raw, _ := line.Get("message")
	o, ok := form.ParseObject(raw)
	if !ok {
		return nil, nil, errNoMessage
	}
	whole, _ := form.ParseObject(raw)
	fm, err := (&form.Decoder{Key: string(ClaudeCode)}).Anthropic(o, typ)
	if err != nil {
		return nil, nil, err
	}
	m := decodedOf(fm)
	if v, ok := line.Get("timestamp"); ok {
		m.At = form.TimeOf(v)
	}
	return m, whole, nil
}

// claudeAnswer reads the model call's data of an assistant line.
func claudeAnswer(message *form.Object) (key string, a answer) {
	key, _ = message.Str("id")
	if len(key) <= schema.MaxIdentifier {
		a.responseID = key
	}
	a.model, _ = message.Str("model")
	if s, ok := message.Str("stop_reason"); ok {
		a.finishReasons = []string{s}
	}
	if v, ok := message.Get("usage"); ok {
		a.usage = form.Usage(v)
	}
	return key, a
}

// claudeCompaction reads a compact_boundary. Its summary is the text of the following user message; until then, the
// boundary's own text.
func claudeCompaction(line *form.Object, common map[string]jsontext.Value, rep *Report) *Compaction {
	c := new(Compaction)
	c.Summary, _ = line.Str("content")
	if v, ok := line.Get("timestamp"); ok {
		c.At = form.TimeOf(v)
	}
	var d detail
	d.around(line, common, "type")
	rep.within(d.Line, "compact_boundary.")
	if v, ok := line.Get("compactMetadata"); ok {
		if meta, ok := form.ParseObject(v); ok {
			v, _ := meta.Get("preTokens")
			if n, ok := form.Integer(v); ok && n > 0 {
				c.TokensBefore = n
			}
			v, _ = meta.Get("postTokens")
			if n, ok := form.Integer(v); ok && n > 0 {
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
