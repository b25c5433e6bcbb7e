package lint_test

import (
	"fmt"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var (
	pageLink  = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading   = regexp.MustCompile(`^#{1,6} (.+)$`)
	linkLabel = regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)`)
	notInSlug = regexp.MustCompile(`[^\p{L}\p{N}_ -]`)
)

// anchorsOf are the anchors that GitHub makes of a page's headings.
func anchorsOf(text string) map[string]bool {
	anchors, fenced := map[string]bool{}, false
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\r\n")
		if strings.HasPrefix(line, "```") {
			fenced = !fenced
		}
		if m := heading.FindStringSubmatch(line); m != nil && !fenced {
			slug := notInSlug.ReplaceAllString(strings.ToLower(linkLabel.ReplaceAllString(m[1], "$1")), "")
			slug = strings.ReplaceAll(slug, " ", "-")
			unique := slug
			for n := 1; anchors[unique]; n++ {
				unique = fmt.Sprintf("%s-%d", slug, n)
			}
			anchors[unique] = true
		}
	}
	return anchors
}

// deadLinks finds the links of a page that lead to no file of the repository, or to no heading of a page. content is the text of a page, and
// whether there is such a file or folder.
func deadLinks(name, text string, content func(path string) (string, bool)) []string {
	var findings []string
	number, fenced := 0, false
	for line := range strings.Lines(text) {
		number++
		if strings.HasPrefix(strings.TrimSpace(line), "```") {
			fenced = !fenced
		}
		if fenced {
			continue
		}
		for _, m := range pageLink.FindAllStringSubmatch(codeSpan.ReplaceAllString(line, "code"), -1) {
			if strings.Contains(m[1], "://") || strings.HasPrefix(m[1], "mailto:") {
				continue
			}
			file, anchor, _ := strings.Cut(m[1], "#")
			target := name
			if file != "" {
				target = path.Join(path.Dir(name), file)
			}
			page, ok := content(target)
			switch {
			case !ok:
				findings = append(findings, fmt.Sprintf("%s:%d: %s leads to no file: name the file as it is called now", name, number, m[1]))
			case anchor != "" && strings.HasSuffix(target, ".md") && !anchorsOf(page)[anchor]:
				findings = append(findings, fmt.Sprintf("%s:%d: %s leads to no heading: name the heading as it is called now", name, number, m[1]))
			}
		}
	}
	return findings
}

func TestPages_Links_LeadToFilesAndHeadings(t *testing.T) {
	t.Parallel()
	walk(t, func(name string) {
		if !strings.HasSuffix(name, ".md") {
			return
		}
		report(t, deadLinks(name, read(t, name), func(target string) (string, bool) {
			file := filepath.Join("..", "..", filepath.FromSlash(target))
			info, err := os.Stat(file)
			if err != nil || info.IsDir() {
				return "", err == nil
			}
			text, err := os.ReadFile(file)
			require.NoError(t, err)
			return string(text), true
		}))
	})
}

func TestDeadLinks_EachKindOfLink_IsFoundOrExempt(t *testing.T) {
	t.Parallel()
	pages := map[string]string{
		"docs/b.md": "# B\n\n## What `it` is, and why\n\n## Twice\n\n## Twice\n\n```sh\n# no heading\n```\n\n## A [link](c.md)'s end\n",
		"README.md": "# Top\n", "docs": "", "docs/a.go": "",
	}
	for text, found := range map[string]int{
		"[b](b.md)": 0, "[b](b.md#what-it-is-and-why)": 0, "[b](b.md#twice-1)": 0, "[top](../README.md#top)": 0, "[d](../docs)": 0,
		"[b](b.md#a-links-end)": 0, "[x](https://example.org/x#y)": 0, "```\n[b](c.md)\n```": 0, "`[b](c.md)`": 0, "# Here\n[h](#here)": 0,
		"[go](a.go#L3)": 0, "![p](b.md)": 0,
		"[c](c.md)": 1, "[b](b.md#other)": 1, "[b](b.md#no-heading)": 1, "[b](b.md#twice-2)": 1, "[h](#there)": 1, "![p](p.svg)": 1,
		"[c](c.md), [d](d.md)": 2,
	} {
		findings := deadLinks("docs/a.md", text, func(target string) (string, bool) {
			if target == "docs/a.md" {
				return text, true
			}
			page, ok := pages[target]
			return page, ok
		})
		require.Len(t, findings, found, text)
	}
}
