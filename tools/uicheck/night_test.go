package uicheck

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"
)

// questions of an operator on call, and the page that answers each.
var questions = []struct{ name, path, says string }{
	{"1-wrong", "/", "43 stuck"},
	{"2-which", "/", "14 stuck"},
	{"3-why", "/?status=stuck&agent=coder", "orphaned: its executor is gone"},
	{"4-executors", "/executors", "support-1"},
	{"5-failed", "/?status=failed", "429, quota of project harbour used up"},
	{"6-person", "/needs-you", "wants the money back"},
	{"7-fleet", "/health", "Shards"},
	{"8-preview", "/act/cancel?status=stuck&agent=coder", "Cancel 14 runs?"},
	{"9-run", "/run/coder-3", "no executor of coder is alive"},
	{"10-command", "/?status=stuck&agent=coder", "waymark runs ls --stuck --agent coder"},
	{"11-fleets", "/executors", "search unreachable"},
}

// With WAYMARK_UI_SHOTS the pages are drawn into that folder.
func TestNight_QuestionsOfAnOperator_AreAnsweredAtEachWidth(t *testing.T) {
	s := newScene(t)
	s.stage.Night()
	for _, name := range []string{"search", "ledger-of-the-northern-harbour"} {
		s.pages.Also(name, nil, errors.New("cannot reach the nats server"))
	}
	rules := axe(t)
	b := s.open()
	b.show("/needs-you")
	b.await(`document.body.innerText.includes("(12)") || document.querySelectorAll("article.thing").length === 12`)
	var wrong []string
	for _, width := range []int64{400, 1000} {
		b.sized(width, "light")
		for _, q := range questions {
			name := fmt.Sprintf("%s-%d", q.name, width)
			b.show(q.path)
			b.await(fmt.Sprintf("document.body.innerText.includes(%q)", q.says))
			if wide := eval[int](b, "document.documentElement.scrollWidth"); wide > int(width) {
				wrong = append(wrong, fmt.Sprintf("%s scrolls sideways: it is %d wide", name, wide))
			}
			if rules != "" {
				wrong = append(wrong, b.violations(name, rules)...)
			}
			if dir := os.Getenv("WAYMARK_UI_SHOTS"); dir != "" {
				ctx, cancel := context.WithTimeout(b.ctx, stepWithin)
				shot, err := chromedp.Run(ctx, chromedp.CaptureScreenshot())
				cancel()
				require.NoError(t, err)
				require.NoError(t, os.WriteFile(filepath.Join(dir, name+".png"), shot, 0o600))
			}
		}
	}
	require.Empty(t, wrong)
	b.clean()
}
