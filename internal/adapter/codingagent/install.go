package codingagent

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/waymarkio/waymark/internal/base/durable"
	"github.com/waymarkio/waymark/internal/look/failure"
)

// created is the text of a settings file that install creates, without its hooks.
const created = "{ }\n"

// own matches the groups of hooks that install has written: as all hooks, as the whole of an event, and alone. The agent
// may have indented them since. The space is the mark of an array or object that was empty, and stays.
var own = func() (patterns []*regexp.Regexp) {
	group := `\{\s*"hooks":\s*\[\s*\{\s*"type":\s*"command",\s*"command":\s*"exec (?:[^"\\]|\\.)* agent hook --of (?:claude|codex)"[^{}]*\}\s*\]\s*\}`
	event := `"[A-Za-z]+":\s*\[(?:\r?\n\s*)?` + group + `\s*\]`
	for _, p := range []string{`"hooks":\s*\{(?:\r?\n\s*)?` + event + `(?:\s*,\s*` + event + `)*\s*\}`, event, group} {
		patterns = append(patterns, regexp.MustCompile(`,\s*`+p+`| ?`+p+`(?:\s*,)?`))
	}
	return patterns
}()

// SettingsFile is where the agent looks for hooks: the user's, or those of the project in the working directory.
func (d *Dialect) SettingsFile(project bool) string {
	if project {
		return filepath.Join("."+d.Name, d.settings)
	}
	return filepath.Join(d.home(), d.settings)
}

// Installed returns the text of a settings file with hooks that call command, or without waymark's hooks if it is empty.
// The rest of the text stays as it is.
func (d *Dialect) Installed(text []byte, command string) ([]byte, error) {
	for _, pattern := range own {
		text = pattern.ReplaceAll(text, nil)
	}
	if v := jsontext.Value(text); v.Kind() != '{' || !v.IsValid() {
		return nil, errors.New("it is not a JSON object")
	}
	if bytes.Contains(text, []byte(" agent hook --of "+d.Name)) {
		return nil, errors.New("a hook of waymark was edited there, or stands in a group with others: remove it by hand")
	}
	if command == "" {
		return text, nil
	}
	put := func(add string, into jsontext.Pointer, end jsontext.Kind) bool { // as the last element or member
		d := jsontext.NewDecoder(bytes.NewReader(text))
		for at := d.InputOffset(); ; at = d.InputOffset() {
			t, err := d.ReadToken()
			if err != nil {
				return false
			}
			if d.StackPointer() == into && t.Kind() == end {
				before := ","
				if text[at-1] == '{' || text[at-1] == '[' {
					before = " "
				}
				text = slices.Concat(text[:at], []byte(before+add), text[at:])
				return true
			}
		}
	}
	for _, event := range append(slices.Clone(d.hooks), sessionEnd) {
		group, err := json.Marshal(hookGroup{[]hook{d.hook(event, "exec "+command+" --of "+d.Name)}})
		if err != nil {
			return nil, err
		}
		member := fmt.Sprintf(`"%s":[%s]`, event, group)
		_ = put(string(group), jsontext.Pointer("/hooks/"+event), ']') || put(member, "/hooks", '}') || put(`"hooks":{`+member+`}`, "", '}')
	}
	if !jsontext.Value(text).IsValid() {
		return nil, errors.New("its hooks are no object with an array for each event")
	}
	return text, nil
}

// Install writes the hooks into a settings file, or takes them away if w.Hook is empty. A preview gets the text instead.
func (w *Worker) Install(file string, preview io.Writer) error {
	mode := fs.FileMode(0o600)
	if to, err := filepath.EvalSymlinks(file); err == nil {
		file = to
	}
	if info, err := os.Stat(file); err == nil {
		mode = info.Mode().Perm()
	}
	was, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		was, err = []byte(created), nil
	}
	var text []byte
	if err == nil {
		text, err = w.Dialect.Installed(was, w.Hook)
	}
	if err != nil {
		return failure.New(failure.Usage, "", "%s is left as it is: %v", file, err)
	}
	change := "written"
	switch {
	case preview != nil:
		_, err = preview.Write(text)
		return err
	case bytes.Equal(was, text):
		change = "nothing to change"
	case string(text) == created:
		err, change = os.Remove(file), "removed"
	default:
		if err = os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			return err
		}
		err = durable.Replace(file, func(to io.Writer) error {
			_, err := to.Write(text)
			return err
		})
		err = errors.Join(err, os.Chmod(file, mode))
	}
	if err == nil {
		w.say("%s: %s", file, change)
	}
	return err
}

// Begins reads the input of a hook: begins is true at the start of a session, asks before a prompt, guards before a tool.
func Begins(input []byte) (begins, asks, guards bool) {
	var e event
	_ = json.Unmarshal(input, &e) // the bridge refuses another input
	return e.Name == sessionStart, e.Name == userPromptSubmit, e.Name == preToolUse || e.Name == ""
}
