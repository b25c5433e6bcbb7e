package transcript

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/waymarkio/waymark/internal/form"
)

// detectLines is how many lines are checked; a broken first line must not hide the format.
const detectLines = 64

// Detect recognises a file's format. It returns [ErrUnknownFormat] for a file that is not a transcript, and the error
// of opts.Stop.
func Detect(path string, opts Options) (Format, error) {
	format, _, err := detect(path, opts)
	return format, err
}

// IsSubagent reports whether a file is read together with the session that it belongs to.
func IsSubagent(path string) bool {
	_, session, ok := sidechainFile(path)
	if !ok || session == "" {
		return false
	}
	info, err := os.Lstat(SessionOf(path))
	return err == nil && info.Mode().IsRegular()
}

// SessionOf is the file of the session that a sub-agent's file belongs to.
func SessionOf(path string) string {
	if full, err := filepath.Abs(path); err == nil {
		path = full
	}
	return filepath.Dir(filepath.Dir(path)) + ".jsonl"
}

// detect recognises a file's format, and whether it has one value per line.
func detect(path string, opts Options) (Format, bool, error) {
	file, err := os.Open(path)
	if err != nil {
		return "", false, err
	}
	defer func() { _ = file.Close() }()
	info, err := file.Stat()
	if err != nil {
		return "", false, err
	}
	if info.IsDir() {
		return "", false, errors.New("is a folder; name the files in it")
	}
	if info.Size() == 0 {
		return "", false, fmt.Errorf("the file is empty: %w", ErrUnknownFormat)
	}
	opts.OnRead = nil // it is read again
	lines := newLineReader(&input{file, &opts}, opts.maxLine())
	values := 0
	var found Format
	for range detectLines {
		b, err := lines.next()
		if errors.Is(err, io.EOF) {
			break
		}
		if errors.Is(err, errLongLine) {
			continue
		}
		if err != nil {
			return "", false, err
		}
		if isBlank(b) {
			continue
		}
		v := jsontext.Value(b)
		if !v.IsValid(jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true)) {
			continue
		}
		values++
		f := formatOf(v)
		if f == "" {
			continue
		}
		if found == "" {
			found = f
		}
		if values > 1 || found == ClaudeCode {
			return found, true, nil
		}
	}
	if found != "" {
		// One value on one line: a document, unless it is one of several lines.
		return found, found == OpenAIChat && lines.line > 1, nil
	}
	f, err := detectDocument(path, opts)
	return f, false, err
}

// detectDocument checks the top-level members of a document, or those of its first element.
func detectDocument(path string, opts Options) (Format, error) {
	file, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer func() { _ = file.Close() }()
	r := bufio.NewReader(&input{file, &opts})
	if _, err := skipBOM(r); err != nil {
		return "", err
	}
	d := jsontext.NewDecoder(r, jsontext.AllowInvalidUTF8(true), jsontext.AllowDuplicateNames(true))
	kind := d.PeekKind()
	if kind == '[' {
		if _, err := d.ReadToken(); err != nil {
			return "", unknown(err)
		}
		kind = d.PeekKind()
		if kind == '{' || kind == '[' {
			v, err := d.ReadValue()
			if err != nil {
				return "", unknown(err)
			}
			if o, ok := looseObject(v); ok && (o["messages"] || o["role"]) || v.Kind() == '[' {
				return OpenAIChat, nil
			}
		}
		return "", ErrUnknownFormat
	}
	if kind != '{' {
		_, err := d.ReadToken()
		return "", unknown(err)
	}
	if _, err := d.ReadToken(); err != nil {
		return "", unknown(err)
	}
	for d.PeekKind() != '}' {
		name, err := d.ReadToken()
		if err != nil {
			return "", unknown(err)
		}
		switch name.String() {
		case "messages":
			return OpenAIChat, nil
		case "history":
			return SWEAgent, nil
		}
		if err := d.SkipValue(); err != nil {
			return "", unknown(err)
		}
	}
	return "", ErrUnknownFormat
}

func unknown(err error) error {
	if err == nil || errors.Is(err, io.EOF) {
		return ErrUnknownFormat
	}
	return fmt.Errorf("%w (%w)", ErrUnknownFormat, clipped{err})
}

// formatOf returns the format of one complete value, "" if it has none.
func formatOf(v jsontext.Value) Format {
	if v.Kind() == '[' {
		return ""
	}
	o, ok := looseObject(v)
	switch {
	case !ok:
		return ""
	case o["messages"]:
		return OpenAIChat
	case o["history"]:
		return SWEAgent
	case o["type"] && (o["sessionId"] || o["uuid"] || o["messageId"] || o["leafUuid"] || o["parentUuid"]):
		return ClaudeCode
	}
	return ""
}

// looseObject returns the names of an object's members, of unchecked JSON.
func looseObject(v jsontext.Value) (map[string]bool, bool) {
	o, ok := form.ParseObjectWith(v, jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
	if !ok {
		return nil, false
	}
	names := make(map[string]bool, len(o.Names))
	for _, n := range o.Names {
		names[n] = true
	}
	return names, true
}

// messageList reports whether the document is an array of one run's messages.
func (f *File) messageList() bool {
	file, err := os.Open(f.path)
	if err != nil {
		return false
	}
	defer func() { _ = file.Close() }()
	r := bufio.NewReader(file)
	if _, err := skipBOM(r); err != nil {
		return false
	}
	d := jsontext.NewDecoder(r, jsontext.AllowInvalidUTF8(true), jsontext.AllowDuplicateNames(true))
	if _, err := d.ReadToken(); err != nil || d.PeekKind() != '{' {
		return false
	}
	v, err := d.ReadValue()
	if err != nil {
		return false
	}
	o, _ := looseObject(v)
	return o["role"] && !o["messages"]
}
