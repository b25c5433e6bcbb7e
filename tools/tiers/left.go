package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
)

// Reasons begin with the words that say which command runs the rest.
const (
	shortly = "short: "  // left out by -short
	sampled = "sample: " // a seeded part of the whole
)

// command runs what was left out for a reason.
func command(o outcome) string {
	switch {
	case strings.HasPrefix(o.Reason, shortly):
		return "make check-full"
	case strings.HasPrefix(o.Reason, sampled):
		return "make check-full FULL=1"
	}
	return "" // the reason says what is missing
}

// printLeft prints what the runs left out, each with the command that runs it.
func printLeft(out io.Writer, outcomes []outcome) {
	groups := map[string][]string{}
	for _, o := range best(outcomes) {
		if o.Reason == "" {
			continue
		}
		text := o.Test + ": "
		if o.Action != skipped {
			text = o.Test + ", in part: "
		}
		text = "  " + short(o.Package) + "." + text + strings.TrimPrefix(strings.TrimPrefix(o.Reason, shortly), sampled)
		groups[command(o)] = append(groups[command(o)], text)
	}
	for _, c := range []string{"make check-full", "make check-full FULL=1", ""} {
		lines := groups[c]
		if len(lines) == 0 {
			continue
		}
		slices.Sort(lines)
		title := "NOT PROVEN here; each line says what is missing"
		if c != "" {
			title = "left out; to run: " + c
		}
		_, _ = fmt.Fprintf(out, "== %s (%d)\n%s\n", title, len(lines), strings.Join(lines, "\n"))
	}
}

// printFailed prints what each failure said, once more: in a long run it was said far above.
func printFailed(out io.Writer, outcomes []outcome) {
	for _, o := range outcomes {
		if o.Action == failed && o.Output != "" && o.Output != o.Line+"\n" {
			_, _ = fmt.Fprintf(out, "== FAILED: %s\n%s", strings.TrimSuffix(short(o.Package)+"."+o.Test, "."), o.Output)
		}
	}
}

// short is a package's path within the repository.
func short(pkg string) string {
	return strings.TrimPrefix(pkg, modulePath+"/")
}

// best returns what became of each test at its best: a test that one run skipped may have passed in another, and the whole of a
// test is more than a part. A failure is never made up for. Packages are left out.
func best(outcomes []outcome) []outcome {
	type key struct{ pkg, test string }
	rank := func(o outcome) int {
		switch {
		case o.Action == failed:
			return 3
		case o.Action == passed && o.Reason == "":
			return 2
		case o.Action == passed:
			return 1
		}
		return 0
	}
	found := map[key]outcome{}
	for _, o := range outcomes {
		if o.Test == "" {
			continue
		}
		k := key{o.Package, o.Test}
		if old, ok := found[k]; !ok || rank(o) > rank(old) || rank(o) == rank(old) && preferred(o, old) {
			found[k] = o
		}
	}
	var list []outcome
	for _, o := range found {
		list = append(list, o)
	}
	slices.SortFunc(list, func(a, b outcome) int {
		return cmp.Or(cmp.Compare(a.Package, b.Package), cmp.Compare(a.Test, b.Test))
	})
	return list
}

// preferred tells whether of two outcomes of the same rank the first says more: -short hides what else a test lacks.
func preferred(o, old outcome) bool {
	return strings.HasPrefix(old.Reason, shortly) && !strings.HasPrefix(o.Reason, shortly)
}
