package schema

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"math"
	"mime"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// ContentTypeStructured is the content type of the structured mode.
const ContentTypeStructured = "application/cloudevents+json"

// Limits of the decoder. They bound memory, not the vocabulary.
const (
	// MaxAttribute is the longest attribute value, in bytes.
	MaxAttribute = 4096
	// MaxExtensions is the largest number of attributes this version does not know.
	MaxExtensions = 64
	// MaxJSONDepth is the deepest nesting of an event's data.
	MaxJSONDepth = 512
)

const headerPrefix = "ce-"

// jsonSpace is the white space of JSON.
const jsonSpace = " \t\r\n"

// Encode returns the event in binary mode: attributes in ce-* headers, data in the body. The map has the
// type of nats.Header.
func (e *Event) Encode() (header map[string][]string, body []byte) {
	var scratch [16]string
	names := e.attributeNames(scratch[:0])
	header = make(map[string][]string, len(names)+3)
	values := make([]string, len(names))
	var room [512]byte
	b, ends := room[:0], make([]int, 0, 16)
	for _, name := range names {
		b = e.appendAttribute(b, name)
		ends = append(ends, len(b))
	}
	text, begin := string(b), 0 // one allocation for all values
	for i, name := range names {
		values[i] = percentEncode(text[begin:ends[i]])
		header[headerName(name)], begin = values[i:i+1:i+1], ends[i]
	}
	return header, e.Data
}

// roundTrips reports whether [Decode] certainly reads the event as it is, so that nothing needs to encode and decode it.
func (e *Event) roundTrips() bool {
	return e.DataRef == "" && e.TraceParent == "" && e.DataContentType == ContentTypeJSON && e.DataSchema == "" && len(e.Extensions) == 0 &&
		e.Turn >= 0 && e.Epoch <= math.MaxInt32 && e.Sequence <= math.MaxInt64 && (e.Sequence == 0 || e.Epoch != 0) && validTime(e.Time) &&
		plain(e.ID, MaxIdentifier) && plain(e.Source, MaxAttribute) && plain(e.Type, MaxAttribute) && plain(e.Subject, MaxAttribute)
}

// plain reports whether a text is a valid value of an attribute, for certain.
func plain(text string, most int) bool { return text != "" && len(text) <= most && printable(text) }

// headerNames are the names of the headers that every event has, made once.
var headerNames = func() map[string]string {
	m := make(map[string]string)
	full := Event{
		DataContentType: "x", DataRef: "x", DataSchema: "x", Epoch: 1, Sequence: 1, Subject: "x", Time: "x",
		TraceParent: "x", Turn: 1,
	}
	for _, name := range full.attributeNames(nil) {
		m[name] = headerPrefix + name
	}
	return m
}()

func headerName(attribute string) string {
	if name, ok := headerNames[attribute]; ok {
		return name
	}
	return headerPrefix + attribute
}

// EncodeStructured returns the event as one JSON object on one line, for Content-Type application/cloudevents+json.
// JSON data is embedded byte for byte. It is written as data_base64 if it cannot be embedded: data that is not valid
// JSON, is nested deeper than [MaxJSONDepth], has a line break, or has white space around it (which readers cannot
// tell from the envelope's own).
func (e *Event) EncodeStructured() ([]byte, error) {
	var buf bytes.Buffer
	enc := jsontext.NewEncoder(&buf, jsontext.PreserveRawStrings(true))
	var errs []error
	write := func(t jsontext.Token) { errs = append(errs, enc.WriteToken(t)) }
	write(jsontext.BeginObject)
	for _, name := range e.attributeNames(nil) {
		write(jsontext.String(name))
		switch name {
		case "epoch", "turn":
			n, err := strconv.ParseInt(string(e.appendAttribute(nil, name)), 10, 64)
			errs = append(errs, err)
			write(jsontext.Int(n))
		default:
			write(jsontext.String(string(e.appendAttribute(nil, name))))
		}
	}
	tail := ""
	if len(e.Data) > 0 {
		if e.isJSON() && e.Embeddable() && !bytes.ContainsAny(e.Data, "\r\n") && len(bytes.Trim(e.Data, jsonSpace)) == len(e.Data) {
			// Written by hand: the encoder would re-format the value, and the content hash covers raw bytes.
			tail = `,"data":` + string(e.Data)
		} else {
			write(jsontext.String("data_base64"))
			write(jsontext.String(base64.StdEncoding.EncodeToString(e.Data)))
		}
	}
	write(jsontext.EndObject)
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("encode event %s: %w", e.ID, err)
	}
	out := bytes.TrimSuffix(bytes.TrimSpace(buf.Bytes()), []byte("}"))
	return append(append(out, tail...), '}'), nil
}

// Embeddable reports whether the data can be part of a JSON document: it is valid JSON, and not nested deeper than
// [MaxJSONDepth].
func (e *Event) Embeddable() bool {
	return !tooDeep(e.Data) && jsontext.Value(e.Data).IsValid()
}

func (e *Event) isJSON() bool {
	if e.DataContentType == "" || e.DataContentType == ContentTypeJSON {
		return true
	}
	t, _, err := mime.ParseMediaType(e.DataContentType)
	return err == nil && (t == ContentTypeJSON || strings.HasSuffix(t, "+json"))
}

// Decode reads an event in binary or structured mode. The content type decides first, then ce-specversion, then a
// JSON body with specversion (a plain nats pub). Header names are matched without regard to case. It returns
// [ErrNotCloudEvent] or an [*AttributeError]. The event shares memory with body.
func Decode(header map[string][]string, body []byte) (*Event, error) {
	var scratch [24]attribute
	attrs := scratch[:0]
	contentType := ""
	twice := "" // the smallest name given twice: the reported problem must not depend on map order
	for name, values := range header {
		if len(values) == 0 {
			continue
		}
		if len(name) == len(headerContentType) && strings.EqualFold(name, headerContentType) {
			if contentType != "" || len(values) > 1 {
				twice = smaller(twice, headerContentType)
			}
			contentType = values[0]
			continue
		}
		if len(name) <= len(headerPrefix) || !strings.EqualFold(name[:len(headerPrefix)], headerPrefix) {
			continue
		}
		attr := lowerASCII(name[len(headerPrefix):])
		if len(values) > 1 {
			twice = smaller(twice, attr)
		}
		attrs = append(attrs, attribute{attr, values[0]})
	}
	// Sorted, so that the first problem found is always the same.
	slices.SortFunc(attrs, func(a, b attribute) int { return strings.Compare(a.name, b.name) })
	spec := ""
	for i, a := range attrs {
		if i > 0 && attrs[i-1].name == a.name {
			twice = smaller(twice, a.name)
		}
		if a.name == "specversion" {
			spec = a.value
		}
	}
	if twice != "" {
		return nil, &AttributeError{twice, "given twice"}
	}
	media := contentType
	if i := strings.IndexByte(media, ';'); i >= 0 {
		media = media[:i]
	}
	media = strings.ToLower(strings.TrimSpace(media))
	switch {
	case media == ContentTypeStructured:
		return decodeStructured(body)
	case spec != "":
		return decodeBinary(attrs, spec, contentType, body)
	case strings.HasPrefix(media, "application/cloudevents"):
		return nil, fmt.Errorf("%w: content type %.80q is not accepted, use %s", ErrNotCloudEvent, contentType, ContentTypeStructured)
	case looksStructured(body):
		return decodeStructured(body)
	}
	return nil, ErrNotCloudEvent
}

// attribute is an event attribute of a header.
type attribute struct{ name, value string }

const headerContentType = "content-type"

// smaller returns the smaller of two names; an empty name counts as absent.
func smaller(a, b string) string {
	if a == "" {
		return b
	}
	return min(a, b)
}

// lowerASCII is the lower case of a header name. Letters beyond ASCII stay: some of them fold to ASCII.
func lowerASCII(s string) string {
	for i := range len(s) {
		if s[i] >= 'A' && s[i] <= 'Z' {
			b := []byte(s)
			for ; i < len(b); i++ {
				if b[i] >= 'A' && b[i] <= 'Z' {
					b[i] += 'a' - 'A'
				}
			}
			return string(b)
		}
	}
	return s
}

// looksStructured reports whether body is a JSON object with a member specversion at its top.
func looksStructured(body []byte) bool {
	trimmed := bytes.TrimLeft(body, jsonSpace)
	if len(trimmed) == 0 || trimmed[0] != '{' || !bytes.Contains(trimmed, []byte(`"specversion"`)) {
		return false
	}
	dec := jsontext.NewDecoder(bytes.NewReader(trimmed))
	if _, err := dec.ReadToken(); err != nil {
		return false
	}
	for dec.PeekKind() == '"' {
		name, err := dec.ReadToken()
		if err != nil {
			return false
		}
		if name.String() == "specversion" {
			return true
		}
		if dec.SkipValue() != nil {
			return false
		}
	}
	return false
}

// decodeBinary reads an event whose attributes are sorted by name.
func decodeBinary(attrs []attribute, spec, contentType string, body []byte) (*Event, error) {
	e := &Event{Data: body}
	for _, a := range attrs {
		if err := e.setAttribute(a.name, percentDecode(a.value)); err != nil {
			return nil, err
		}
	}
	if e.DataContentType == "" && contentType != "" {
		if err := e.setAttribute("datacontenttype", contentType); err != nil {
			return nil, err
		}
	}
	return e.checked(spec)
}

func decodeStructured(body []byte) (*Event, error) {
	e := &Event{}
	spec := ""
	dec := jsontext.NewDecoder(bytes.NewBuffer(body))
	fail := func(err error) (*Event, error) {
		return nil, fmt.Errorf("%w: JSON envelope: %w", ErrNotCloudEvent, err)
	}
	if tok, err := dec.ReadToken(); err != nil {
		return fail(err)
	} else if tok.Kind() != '{' {
		return fail(errors.New("not a JSON object"))
	}
	base64Seen, dataSeen := false, false
	for dec.PeekKind() == '"' {
		tok, err := dec.ReadToken()
		if err != nil {
			return fail(err)
		}
		name := tok.String()
		value, err := dec.ReadValue()
		if err != nil {
			return fail(err)
		}
		switch name {
		case "data":
			dataSeen = true
			e.Data = bytes.Clone(value)
			continue
		case "data_base64":
			base64Seen = true
			var text string
			if err := json.Unmarshal(value, &text); err != nil {
				return nil, &AttributeError{name, "must be a string"}
			}
			if e.Data, err = base64.StdEncoding.DecodeString(text); err != nil {
				return nil, &AttributeError{name, "is not base64"}
			}
			continue
		}
		var text string
		switch value.Kind() {
		case 'n':
			continue // null means absent
		case '"':
			if err := json.Unmarshal(value, &text); err != nil {
				return fail(err)
			}
		case '0', 't', 'f':
			text = string(value)
		default:
			return nil, &AttributeError{name, "must be a string, an integer or a boolean"}
		}
		if name == "specversion" {
			spec = text
		}
		if err := e.setAttribute(name, text); err != nil {
			return nil, err
		}
	}
	if _, err := dec.ReadToken(); err != nil {
		return fail(err)
	}
	if _, err := dec.ReadToken(); !errors.Is(err, io.EOF) {
		return fail(errors.New("text after the JSON object"))
	}
	if base64Seen && dataSeen {
		return nil, &AttributeError{"data_base64", "given together with data"}
	}
	// Data given as a JSON string under a content type that is not JSON is that string's text.
	if dataSeen && !e.isJSON() && len(e.Data) > 0 && e.Data[0] == '"' {
		var text string
		if err := json.Unmarshal(e.Data, &text); err != nil {
			return fail(err)
		}
		e.Data = []byte(text)
	}
	return e.checked(spec)
}

func validAttributeName(name string) bool {
	for i := range len(name) {
		if c := name[i]; (c < 'a' || c > 'z') && (c < '0' || c > '9') {
			return false
		}
	}
	return len(name) > 0 && len(name) <= 20
}

// setAttribute stores one attribute from its text form.
func (e *Event) setAttribute(name, text string) error {
	if !validAttributeName(name) {
		return &AttributeError{fmt.Sprintf("%.40q", name), "attribute names are 1 to 20 of a-z and 0-9"}
	}
	if len(text) > MaxAttribute {
		return &AttributeError{name, fmt.Sprintf("is longer than %d bytes", MaxAttribute)}
	}
	if !printable(text) {
		if !utf8.ValidString(text) {
			return &AttributeError{name, "is not valid UTF-8"}
		}
		if strings.ContainsFunc(text, isForbidden) {
			return &AttributeError{name, "has a control character"}
		}
	}
	switch name {
	case "specversion":
	case "id":
		if len(text) > MaxIdentifier {
			return &AttributeError{name, fmt.Sprintf("is longer than %d bytes", MaxIdentifier)}
		}
		e.ID = text
	case "source":
		e.Source = text
	case "type":
		e.Type = text
	case "subject":
		e.Subject = text
	case "time":
		if text != "" {
			if !validTime(text) {
				return &AttributeError{name, fmt.Sprintf("%.60q is not an RFC 3339 time", text)}
			}
		}
		e.Time = text
	case "epoch":
		n, err := parseInteger(name, text, 1)
		e.Epoch = Epoch(n) //nolint:gosec // 1..2^31-1
		return err
	case "turn":
		n, err := parseInteger(name, text, 0)
		e.Turn = n
		return err
	case "sequence":
		n, err := strconv.ParseUint(text, 10, 63)
		if err != nil || n == 0 || len(text) > 20 || text[0] == '+' {
			return &AttributeError{name, fmt.Sprintf("%.40q is not a counter from 1 in up to 20 digits", text)}
		}
		e.Sequence = Sequence(n)
	case "traceparent":
		e.TraceParent = text
	case "dataref":
		if _, _, err := ParseDataRef(text); err != nil {
			return &AttributeError{name, err.Error()}
		}
		e.DataRef = text
	case "datacontenttype":
		e.DataContentType = text
	case "dataschema":
		e.DataSchema = text
	case "data", "database64":
		return &AttributeError{name, "is not an attribute name"}
	default:
		if e.Extensions == nil {
			e.Extensions = make(map[string]string)
		}
		if len(e.Extensions) >= MaxExtensions {
			return &AttributeError{name, fmt.Sprintf("more than %d extension attributes", MaxExtensions)}
		}
		e.Extensions[name] = text
	}
	return nil
}

// maxTime bounds the text of a time. It leaves room for more digits of the second than any clock measures.
const maxTime = 48

func validTime(text string) bool {
	if len(text) > maxTime {
		return false
	}
	_, err := time.Parse(time.RFC3339Nano, text)
	return err == nil
}

// printable reports whether a text is printable ASCII only, which is the fast path.
func printable(text string) bool {
	for i := range len(text) {
		if text[i] < ' ' || text[i] >= 0x7f {
			return false
		}
	}
	return true
}

// isForbidden reports the characters that CloudEvents forbids in strings (C0, C1, DEL).
func isForbidden(r rune) bool { return r < 0x20 || r >= 0x7f && r <= 0x9f }

// parseInteger reads a CloudEvents Integer (signed 32 bits) of at least lowest.
func parseInteger(name, text string, lowest int64) (int32, error) {
	n, err := strconv.ParseInt(text, 10, 32)
	if err != nil || n < lowest || text[0] == '+' {
		return 0, &AttributeError{name, fmt.Sprintf("%.40q is not an integer from %d to 2147483647", text, lowest)}
	}
	return int32(n), nil
}

// checked returns the event, or nil and the error in its attributes.
func (e *Event) checked(spec string) (*Event, error) {
	if err := e.checkAttributes(spec); err != nil {
		return nil, err
	}
	return e, nil
}

func (e *Event) checkAttributes(spec string) error {
	switch {
	case spec != SpecVersion:
		return &AttributeError{"specversion", fmt.Sprintf("%.20q, want %q", spec, SpecVersion)}
	case e.ID == "":
		return &AttributeError{"id", "is missing"}
	case e.Source == "":
		return &AttributeError{"source", "is missing"}
	case e.Type == "":
		return &AttributeError{"type", "is missing"}
	case e.Sequence != 0 && e.Epoch == 0:
		return &AttributeError{"epoch", "is missing although sequence is given"}
	}
	return nil
}
