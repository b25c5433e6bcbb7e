package lint_test

import (
	"fmt"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode"

	"github.com/stretchr/testify/require"
)

var pageLink = regexp.MustCompile(`\]\(([^)\s]+)\)`)

// anchors are the fragments of a page's headings, as GitHub makes them.
func anchors(page string) map[string]bool {
	all := map[string]bool{}
	fenced := false
	for line := range strings.Lines(page) {
		if strings.HasPrefix(strings.TrimSpace(line), "```") {
			fenced = !fenced
		}
		if fenced || !strings.HasPrefix(line, "#") {
			continue
		}
		title := strings.TrimSpace(strings.TrimLeft(line, "#"))
		title = regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)`).ReplaceAllString(title, "$1")
		var b strings.Builder
		for _, r := range strings.ToLower(title) {
			switch {
			case r == ' ':
				b.WriteByte('-')
			case r == '-', r == '_', unicode.IsLetter(r), unicode.IsDigit(r):
				b.WriteRune(r)
			}
		}
		anchor := b.String()
		for n := 1; all[anchor]; n++ {
			anchor = fmt.Sprintf("%s-%d", b.String(), n)
		}
		all[anchor] = true
	}
	return all
}

// brokenLinks are the links of a page to files and headings that are not there. pages are the texts of pages by their paths.
func brokenLinks(name, page string, pages map[string]string, there func(string) bool) []string {
	var findings []string
	number, fenced := 0, false
	for line := range strings.Lines(page) {
		number++
		if strings.HasPrefix(strings.TrimSpace(line), "```") {
			fenced = !fenced
		}
		if fenced {
			continue
		}
		for _, link := range pageLink.FindAllStringSubmatch(codeSpan.ReplaceAllString(line, ""), -1) {
			if strings.Contains(link[1], ":") {
				continue // another site
			}
			file, anchor, hasAnchor := strings.Cut(link[1], "#")
			target := name
			if file != "" {
				target = path.Join(path.Dir(name), file)
			}
			switch {
			case !there(target):
				findings = append(findings, fmt.Sprintf("%s:%d: there is no %s: link to where it is now", name, number, target))
			case hasAnchor && !anchors(pages[target])[anchor]:
				findings = append(findings, fmt.Sprintf("%s:%d: %s has no heading #%s", name, number, target, anchor))
			}
		}
	}
	return findings
}

func TestPages_Links_LeadToFilesAndHeadings(t *testing.T) {
	t.Parallel()
	pages := map[string]string{}
	walk(t, func(name string) {
		if strings.HasSuffix(name, ".md") {
			pages[name] = read(t, name)
		}
	})
	there := func(file string) bool {
		_, err := os.Stat(filepath.Join("..", "..", filepath.FromSlash(file)))
		return err == nil
	}
	for name, page := range pages {
		report(t, brokenLinks(name, page, pages, there))
	}
}

func TestBrokenLinks_EachKind_IsFoundOrPasses(t *testing.T) {
	t.Parallel()
	pages := map[string]string{"docs/a.md": "# A page\n## What `x` did, twice\n```sh\n# no heading\n```\n## Same\n## Same\n"}
	there := func(file string) bool { return file == "docs/a.md" || file == "docs/b.go" || file == "README.md" }
	for text, want := range map[string]string{
		"[a](a.md), [b](b.go), [c](https://example.org/x#y)": "",
		"[a](a.md#what-x-did-twice), [a](a.md#same-1)":       "",
		"`[x](y.md)`":                   "",
		"```\n[x](y.md)\n```":           "",
		"[a](../README.md)":             "",
		"one\n[a](c.md)":                "docs/page.md:2: there is no docs/c.md",
		"[a](a.md#no-heading)":          "docs/a.md has no heading #no-heading",
		"[a](a.md#same-2)":              "no heading #same-2",
		"[this page](#what)":            "there is no docs/page.md",
		"[two](\n[x](a.md#what-x-did-)": "no heading #what-x-did-",
	} {
		findings := strings.Join(brokenLinks("docs/page.md", text, pages, there), "\n")
		if want == "" {
			require.Empty(t, findings, text)
			continue
		}
		require.Contains(t, findings, want, text)
	}
}
