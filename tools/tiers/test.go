package main

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// Outcomes of a test, and of a package.
const (
	passed  = "pass"
	failed  = "fail"
	skipped = "skip"
)

// event is a line of go test -json. See go doc test2json.
type event struct {
	Action     string
	Package    string
	ImportPath string
	Test       string
	Elapsed    float64
	Output     string
}

// outcome is what became of one test or one package (Test is empty) in one run of go test.
type outcome struct {
	Package string  `json:"package"`
	Test    string  `json:"test,omitempty"`
	Action  string  `json:"action"`
	Seconds float64 `json:"seconds"`
	Reason  string  `json:"reason,omitempty"` // of a skip, or what was left out of a test that passed
	Line    string  `json:"line,omitempty"`   // of a package: what go test says of it
	Output  string  `json:"output,omitempty"` // of a failure: the end of what was printed of it
}

type tester struct {
	record         string
	long, ram      bool
	skipLong       bool
	stdout, stderr io.Writer
}

// run runs go test and returns errFailed when tests failed.
func (t tester) run(ctx context.Context, args []string) error {
	if t.long {
		tests, err := longTests(os.DirFS("."))
		if err != nil {
			return err
		}
		if len(tests) == 0 {
			return errors.New("no test asks testing.Short")
		}
		args = append(args, longArguments(tests)...)
	}
	if t.skipLong {
		skip, err := longSkip(os.DirFS("."))
		if err != nil {
			return err
		}
		args = append(skip, args...)
	}
	first := []string{"test", "-json"}
	if len(args) > 1 && args[0] == "-C" { // go wants it before all others
		first, args = []string{"test", "-C", args[1], "-json"}, args[2:]
	}
	cmd := exec.CommandContext(ctx, "go", append(first, args...)...)
	cmd.Stderr = t.stderr
	// A process with the race detector sleeps a second at its end, 45 binaries of tests among them. Its shadow
	// memory is four times the memory: in small pages, a tenth of the CPU time went into page faults.
	cmd.Env = append(os.Environ(), "GORACE="+strings.TrimSpace("atexit_sleep_ms=0 no_huge_pages_for_shadow=0 "+os.Getenv("GORACE")))
	if t.ram {
		cmd.Env = append(cmd.Env, inMemory(t.stderr)...)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	list, err := follow(out, t.stdout)
	if waited := cmd.Wait(); err == nil && waited != nil {
		err = errFailed
		if _, ok := errors.AsType[*exec.ExitError](waited); !ok {
			err = waited
		}
	}
	if t.record != "" {
		err = errors.Join(err, writeRecord(t.record, list))
	} else {
		printLeft(t.stdout, list)
	}
	return err
}

// longArguments are the arguments of go test for those tests.
func longArguments(tests map[string][]string) []string {
	names := map[string]bool{}
	for _, list := range tests {
		for _, name := range list {
			names[name] = true
		}
	}
	args := []string{"-run", "^(" + strings.Join(slices.Sorted(maps.Keys(names)), "|") + ")$"}
	// The packages of the harness take longest: begun last, they would end alone.
	dirs := slices.Sorted(maps.Keys(tests))
	for _, first := range []bool{true, false} {
		for _, dir := range dirs {
			if strings.HasPrefix(dir, "internal/harness/") == first {
				args = append(args, "./"+dir)
			}
		}
	}
	return args
}

// What a test says of a part that it leaves out: as the reason of a skip, or in a log line of its own.
var (
	location = regexp.MustCompile(`^\s*\S+\.go:\d+: (.*)`)
	partly   = regexp.MustCompile(`^\s*\S+\.go:\d+: ((?:short|sample): .*)`)
)

// follow prints the events of go test -json as go test without it prints them, and returns what became of each test.
func follow(in io.Reader, out io.Writer) ([]outcome, error) {
	type key struct{ pkg, test string }
	var list []outcome
	said, parts := map[key][]string{}, map[key]string{}
	begun := map[string][]string{} // benchmarks by package: go test says when one begins and when one fails, not when one ends well
	lines := bufio.NewReader(in)
	for {
		line, err := lines.ReadString('\n')
		if line == "" && errors.Is(err, io.EOF) {
			return list, nil
		}
		if err != nil && !errors.Is(err, io.EOF) {
			return list, err
		}
		var e event
		if json.Unmarshal([]byte(line), &e) != nil {
			_, _ = fmt.Fprint(out, line) // what is no event goes to the reader as it is
			continue
		}
		at := key{e.Package, e.Test}
		switch e.Action {
		case "build-output":
			_, _ = fmt.Fprint(out, e.Output)
		case "output":
			said[at] = append(said[at], e.Output)
			if found := partly.FindStringSubmatch(e.Output); found != nil {
				parts[at] = found[1]
			}
		case "run":
			if strings.HasPrefix(e.Test, "Benchmark") {
				begun[e.Package] = append(begun[e.Package], e.Test)
			}
		case passed, failed, skipped:
			o := outcome{Package: e.Package, Test: e.Test, Action: e.Action, Seconds: e.Elapsed}
			begun[e.Package] = slices.DeleteFunc(begun[e.Package], func(test string) bool { return test == e.Test })
			switch {
			case e.Test == "":
				for _, test := range begun[e.Package] {
					list = append(list, outcome{Package: e.Package, Test: test, Action: e.Action})
				}
				delete(begun, e.Package)
				var whole strings.Builder
				if o.Action == failed { // tests that never ended
					for _, k := range slices.SortedFunc(maps.Keys(said), func(a, b key) int { return cmp.Compare(a.test, b.test) }) {
						if k.pkg == e.Package && k.test != "" {
							_, _ = fmt.Fprint(&whole, strings.Join(said[k], ""))
						}
					}
				}
				o.Line = closing(&whole, said[at], o.Action)
				_, _ = fmt.Fprint(out, whole.String())
				if o.Action == failed {
					o.Output = end(whole.String())
				}
				maps.DeleteFunc(said, func(k key, _ []string) bool { return k.pkg == e.Package })
			case e.Action == failed:
				text := strings.Join(said[at], "")
				_, _ = fmt.Fprint(out, text)
				o.Output = end(text)
			case e.Action == skipped:
				o.Reason = reason(said[at])
			default:
				o.Reason = parts[at]
			}
			if e.Test != "" && e.Action != failed { // a panic is printed under the name of whichever test was the last to say something
				whole := key{pkg: e.Package}
				said[whole] = append(said[whole], behind(said[at])...)
			}
			delete(said, at)
			list = append(list, o)
		}
	}
}

// end is the last part of a text, in whole lines, as much as a person reads of one failure.
func end(text string) string {
	const enough = 6 << 10
	if len(text) <= enough {
		return text
	}
	_, rest, _ := strings.Cut(text[len(text)-enough:], "\n")
	return "...\n" + rest
}

// behind returns the lines behind the one that says how a test ended: they are not its own.
func behind(lines []string) []string {
	end := slices.IndexFunc(lines, func(line string) bool { return strings.HasPrefix(strings.TrimLeft(line, " "), "--- ") })
	if end < 0 {
		return nil
	}
	return lines[end+1:]
}

// closing prints what go test says of a package, and returns its last line.
func closing(out io.Writer, lines []string, action string) string {
	last := ""
	for _, line := range lines {
		if line == "PASS\n" || line == "FAIL\n" || strings.HasPrefix(line, "testing: warning: no tests to run") {
			continue
		}
		text := strings.TrimSpace(line)
		switch {
		case strings.HasPrefix(line, "ok "), strings.HasPrefix(line, "FAIL\t"):
			last = text
		case strings.HasPrefix(line, "?"):
			continue
		}
		if action == failed || last == text {
			_, _ = fmt.Fprint(out, line)
		}
	}
	return last
}

// reason is what a test said when it skipped itself.
func reason(lines []string) string {
	for _, line := range slices.Backward(lines) {
		if found := location.FindStringSubmatch(line); found != nil {
			return strings.TrimSpace(found[1])
		}
	}
	return "no reason given"
}

func writeRecord(name string, list []outcome) error {
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	data, err := json.MarshalIndent(list, "", "\t")
	if err != nil {
		return err
	}
	return os.WriteFile(name, data, 0o644) //nolint:gosec // no secret
}

// readRecords returns the outcomes of all records below a folder, the oldest name first.
func readRecords(dir string) ([]outcome, error) {
	var list []outcome
	err := filepath.WalkDir(dir, func(name string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() || filepath.Ext(name) != ".json" {
			return err
		}
		data, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		var some []outcome
		if err := json.Unmarshal(data, &some); err != nil {
			return fmt.Errorf("%s: %w: remove it and run the tier again", name, err)
		}
		list = append(list, some...)
		return nil
	})
	return list, err
}
