package publisher

import (
	"bytes"
	"fmt"
	"regexp"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/waymarkio/waymark/schema"
)

// Redaction removes secrets before they leave the executor. It is applied to every event of the process before the
// event is published, stored as a blob, hashed or folded. So the removed text is in no log, no checkpoint and no answer
// of a recovery. A tool still gets its real arguments, and its caller the real result. An executor that takes the run
// over gets the redacted record.
type Redaction struct {
	// Fields are names of JSON members, such as "password". Case, underscores and hyphens are ignored: "apiKey" also
	// matches api_key and API-KEY. The value of such a member, of any type, becomes "[redacted]". They apply within the
	// content of tools, models and applications: arguments, results, outputs, payloads, sources, labels. Waymark's own
	// members are not affected.
	Fields []string
	// Detectors find secrets within texts; each match becomes "[redacted:NAME]". See [SecretDetectors].
	Detectors []Detector
}

// Detector finds one kind of secret in a text.
type Detector struct {
	// Name replaces the match in the text: letters, digits, - and _.
	Name string
	// Pattern of the secret. With a group named secret only that group is replaced.
	Pattern *regexp.Regexp
}

// redactedText replaces the value of a redacted field.
const redactedText = "[redacted]"

// SecretDetectors find secrets that commonly leak: private keys, tokens of well-known services, JSON web tokens,
// credentials in addresses and in Authorization headers. They recognise secrets by their format, and miss secrets
// without one.
func SecretDetectors() []Detector {
	return []Detector{
		{"private-key", regexp.MustCompile(`-----BEGIN [A-Z ]*PRIVATE KEY-----[\s\S]*?(?:-----END [A-Z ]*PRIVATE KEY-----|$)`)},
		{"aws-key", regexp.MustCompile(`\b(?:AKIA|ASIA)[A-Z0-9]{16}\b`)},
		{"github-token", regexp.MustCompile(`\b(?:gh[pousr]_[A-Za-z0-9]{36,}|github_pat_[A-Za-z0-9_]{40,})`)},
		{"gitlab-token", regexp.MustCompile(`\bglpat-[A-Za-z0-9_-]{20,}`)},
		{"slack-token", regexp.MustCompile(`\bxox[abeoprs]-[A-Za-z0-9-]{10,}`)},
		{"api-key", regexp.MustCompile(`\bsk-[A-Za-z0-9_-]{20,}`)},
		{"google-key", regexp.MustCompile(`\bAIza[A-Za-z0-9_-]{35}`)},
		{"nkey-seed", regexp.MustCompile(`\bS[ACNOUX][A-Z2-7]{56}\b`)},
		{"jwt", regexp.MustCompile(`\beyJ[A-Za-z0-9_-]{10,}\.eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}`)},
		{"authorization", regexp.MustCompile(`(?i)\b(?:bearer|basic)\s+(?P<secret>[A-Za-z0-9._~+/=-]{16,})`)},
		{"password-in-url", regexp.MustCompile(`\b[a-z][a-z0-9+.-]*://[^\s/:@]+:(?P<secret>[^\s/@\[]+)@`)},
	}
}

// validate returns an error that names an invalid detector or field.
func (r *Redaction) validate() error {
	for i, d := range r.Detectors {
		switch {
		case !schema.ValidName(d.Name):
			return configError("Redaction.Detectors", fmt.Sprintf("%.40q at %d", d.Name, i), "use a name of letters, digits, - and _")
		case d.Pattern == nil:
			return configError("Redaction.Detectors", d.Name, "set its Pattern")
		case d.Pattern.MatchString(""):
			return configError("Redaction.Detectors", d.Name, "its pattern matches the empty text: use one that matches only a secret")
		}
	}
	for _, f := range r.Fields {
		if fieldKey(f) == "" {
			return configError("Redaction.Fields", fmt.Sprintf("%.40q", f), "use the name of a member")
		}
	}
	return nil
}

// fieldKey is a member's name without case, underscores and hyphens.
func fieldKey(name string) string {
	return strings.ToLower(strings.NewReplacer("_", "", "-", "").Replace(name))
}

// redactor applies a Redaction.
type redactor struct {
	fields    map[string]bool
	detectors []Detector
}

func newRedactor(r *Redaction) *redactor {
	if r == nil || len(r.Fields) == 0 && len(r.Detectors) == 0 {
		return nil
	}
	made := &redactor{fields: make(map[string]bool, len(r.Fields)), detectors: r.Detectors}
	for _, f := range r.Fields {
		made.fields[fieldKey(f)] = true
	}
	return made
}

// foreign are the members of events whose content is not defined by Waymark.
var foreign = map[string]bool{
	"arguments": true, "result": true, "response": true, "response_schema": true, "output": true, "payload": true, "source": true, "labels": true,
	"content": true, "value": true, "maximum": true, "details": true,
}

// ours are the members of events with ids, names or enumerations: a detector must not change them.
func ours(member string) bool {
	switch member {
	case "id", "name", "type", "role", "status", "kind", "how", "replay", "agent", "executor", "instance", "run", "dataref", "digest", "path",
		"model", "model_tier", "provider", "phase", "idempotency_key", "verify_subject", "media_type", "mime_type", "modality", "by",
		"completed_by", "resumed_from", "scope", "limit", "decision", "code":
		return true
	}
	return strings.HasSuffix(member, "_id")
}

// body redacts the data of an event. changed is false if nothing was found.
func (r *redactor) body(in []byte) (out []byte, changed bool, err error) { return r.redact(in, false) }

// redact removes secrets from an event.
func (f *Fleet) redact(data schema.Data, body []byte) (schema.Data, []byte, error) {
	out, changed, err := f.redactor.body(body)
	if err == nil && changed {
		data, err = schema.ParseData(&schema.Event{Type: schema.TypeOf(data.EventName()), DataContentType: schema.ContentTypeJSON, Data: out})
		body = out
	}
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", data.EventName(), err)
	}
	return data, body, nil
}

// start redacts a run's spec, in the same way as run.started.
func (r *redactor) start(spec *RunSpec) error {
	if r == nil {
		return nil
	}
	given := schema.RunStartedData{Task: spec.Task, Labels: spec.Labels, State: spec.state}
	body, err := json.Marshal(&given)
	if err != nil {
		return err
	}
	if body, _, err = r.redact(body, false); err != nil {
		return err
	}
	var recorded schema.RunStartedData
	if err := json.Unmarshal(body, &recorded); err != nil {
		return err
	}
	spec.Task, spec.Labels, spec.state = recorded.Task, recorded.Labels, recorded.State
	return nil
}

// value redacts a value that Waymark does not define, such as the arguments of a call.
func (r *redactor) value(in []byte) ([]byte, error) {
	if r == nil || len(in) == 0 {
		return in, nil
	}
	out, changed, err := r.redact(in, true)
	if err != nil || !changed {
		return in, err
	}
	return out, nil
}

func (r *redactor) redact(in []byte, free bool) (out []byte, changed bool, err error) {
	var buf bytes.Buffer
	lenient := []jsontext.Options{jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true)}
	w := &redacting{
		redactor: r, from: jsontext.NewDecoder(bytes.NewReader(in), lenient...),
		to: jsontext.NewEncoder(&buf, append(lenient, jsontext.Multiline(false))...),
	}
	if err := w.copy("", free); err != nil {
		return nil, false, fmt.Errorf("redaction: %w", err)
	}
	return bytes.TrimRight(buf.Bytes(), "\n"), w.changed, nil
}

// redacting is one pass over a value.
type redacting struct {
	*redactor
	from    *jsontext.Decoder
	to      *jsontext.Encoder
	changed bool
}

// copy copies the next value, that of the member. free: it is within content that Waymark does not define.
func (w *redacting) copy(member string, free bool) error {
	switch kind := w.from.PeekKind(); kind {
	case jsontext.KindBeginObject:
		if err := w.token(); err != nil {
			return err
		}
		for w.from.PeekKind() != jsontext.KindEndObject {
			name, err := w.from.ReadToken()
			if err != nil {
				return err
			}
			inner := name.String()
			if err := w.to.WriteToken(jsontext.String(inner)); err != nil {
				return err
			}
			if free && w.fields[fieldKey(inner)] {
				if err := w.replace(); err != nil {
					return err
				}
				continue
			}
			if err := w.copy(inner, free || foreign[inner]); err != nil {
				return err
			}
		}
		return w.token()
	case jsontext.KindBeginArray:
		if err := w.token(); err != nil {
			return err
		}
		for w.from.PeekKind() != jsontext.KindEndArray {
			if err := w.copy(member, free); err != nil {
				return err
			}
		}
		return w.token()
	case jsontext.KindString:
		if !free && ours(member) {
			break
		}
		token, err := w.from.ReadToken()
		if err != nil {
			return err
		}
		return w.to.WriteToken(jsontext.String(w.text(token.String())))
	default:
	}
	value, err := w.from.ReadValue()
	if err != nil {
		return err
	}
	return w.to.WriteValue(value)
}

func (w *redacting) token() error {
	t, err := w.from.ReadToken()
	if err != nil {
		return err
	}
	return w.to.WriteToken(t)
}

// replace writes redactedText in place of the next value.
func (w *redacting) replace() error {
	value, err := w.from.ReadValue()
	if err != nil {
		return err
	}
	w.changed = w.changed || string(value) != `"`+redactedText+`"`
	return w.to.WriteToken(jsontext.String(redactedText))
}

// text replaces the detectors' matches in a text.
func (w *redacting) text(s string) string {
	for _, d := range w.detectors {
		next := d.clean(s)
		w.changed = w.changed || next != s
		s = next
	}
	return s
}

func (d *Detector) clean(s string) string {
	found := d.Pattern.FindAllStringSubmatchIndex(s, -1)
	if found == nil {
		return s
	}
	group := 2 * max(d.Pattern.SubexpIndex("secret"), 0)
	var b strings.Builder
	at := 0
	for _, m := range found {
		from, to := m[group], m[group+1]
		if from < at {
			continue // the group did not match
		}
		b.WriteString(s[at:from])
		b.WriteString("[redacted:" + d.Name + "]")
		at = to
	}
	b.WriteString(s[at:])
	return b.String()
}
