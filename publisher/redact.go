package publisher

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/waymarkio/waymark/schema"
)

// Redaction removes secrets before they leave the executor. It is applied to the content of every event of the process,
// which is what [Encryption] encrypts and the values of all labels, before the event is published, stored as a blob,
// hashed or folded. So the removed text is in no log, no checkpoint and no answer of a recovery. A tool still gets its
// real arguments, and its caller the real result. An executor that takes the run over gets the redacted record.
type Redaction struct {
	// Fields are names of JSON members, such as "password". Case, underscores and hyphens are ignored: "apiKey" also
	// matches api_key and API-KEY. The value of such a member, of any type, becomes "[redacted]". They apply within
	// JSON of tools, models and applications, such as arguments, results and values of the state, and to labels.
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

// redact removes secrets from the content of an event; body is the JSON of data.
func (f *Fleet) redact(data schema.Data, body []byte) (schema.Data, []byte, error) {
	clean, err := schema.ParseData(&schema.Event{Type: schema.TypeOf(data.EventName()), DataContentType: schema.ContentTypeJSON, Data: body})
	switch {
	case err != nil:
	case clean == nil: // of an unknown type: all of it is content
		body, err = f.redactor.value(body)
		clean = data
	default:
		if err = f.redactor.contents(clean); err == nil {
			body, err = schema.MarshalData(clean)
		}
	}
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", data.EventName(), err)
	}
	return clean, body, nil
}

// contents redacts the content of an event's data, in place.
func (r *redactor) contents(data schema.Data) error {
	for _, c := range schema.Contents(data) {
		value, err := c.JSON()
		if err != nil {
			return err
		}
		if c.Name || len(value) == 0 {
			continue
		}
		clean, err := r.value(value)
		if label, ok := strings.CutPrefix(c.Path, "/labels/"); ok && r.fields[fieldKey(label)] {
			clean, err = json.Marshal(redactedText)
		}
		if err == nil {
			err = c.Set(clean)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// value redacts a JSON value, such as the arguments of a call. A value without secrets stays as it is.
func (r *redactor) value(in []byte) ([]byte, error) {
	if r == nil || len(in) == 0 {
		return in, nil
	}
	var out bytes.Buffer
	lenient := []jsontext.Options{jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true)}
	from, to := jsontext.NewDecoder(bytes.NewReader(in), lenient...), jsontext.NewEncoder(&out, lenient...)
	changed := false
	for {
		kind, before := from.StackIndex(from.StackDepth())
		token, err := from.ReadToken()
		if errors.Is(err, io.EOF) {
			break
		}
		if err == nil && token.Kind() == jsontext.KindString {
			text := token.String()
			switch isName := kind == jsontext.KindBeginObject && before%2 == 0; {
			case !isName:
				clean := r.text(text)
				changed = changed || clean != text
				token = jsontext.String(clean)
			case r.fields[fieldKey(text)]:
				if err = to.WriteToken(jsontext.String(text)); err == nil {
					err = from.SkipValue()
				}
				changed, token = true, jsontext.String(redactedText)
			}
		}
		if err == nil {
			err = to.WriteToken(token)
		}
		if err != nil {
			return nil, fmt.Errorf("redaction: %w", err)
		}
	}
	if !changed {
		return in, nil
	}
	return bytes.TrimRight(out.Bytes(), "\n"), nil
}

// text replaces the detectors' matches in a text.
func (r *redactor) text(s string) string {
	for _, d := range r.detectors {
		s = d.clean(s)
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
