package runs

import (
	"bytes"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/jedib0t/go-pretty/v6/text"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/base/output"
	"github.com/waymarkio/waymark/internal/base/prompt"
	"github.com/waymarkio/waymark/internal/cli/base"
	"github.com/waymarkio/waymark/internal/look/inbox"
	"github.com/waymarkio/waymark/internal/look/story"
	"github.com/waymarkio/waymark/schema"
)

func TestList_Attention_Shown(t *testing.T) {
	t.Parallel()
	for want, r := range map[string]schema.RunSummary{
		"running":                              {Status: schema.StatusRunning},
		"waiting":                              {Status: schema.StatusWaiting, Waits: 1},
		"waiting for 3":                        {Status: schema.StatusWaiting, Waits: 3},
		"running, overdue":                     {Status: schema.StatusRunning, Overdue: 2},
		"orphaned, 1 unanswered":               {Status: schema.StatusOrphaned, Waits: 1},
		"orphaned, quarantined":                {Status: schema.StatusOrphaned, Quarantined: true},
		"interrupted, quarantined, 2 in doubt": {Status: schema.StatusInterrupted, Quarantined: true, InDoubt: 2},
	} {
		require.Equal(t, want, story.SummaryStatus(&r))
	}
}

func TestGet_Head_ShowsExecutor(t *testing.T) {
	t.Parallel()
	for want, h := range map[string]schema.Head{
		"waiting":                           {Status: schema.StatusWaiting, Interrupts: make([]schema.OpenInterrupt, 1)},
		"waiting, no executor (orphaned)":   {Status: schema.StatusWaiting, Unattended: schema.StatusOrphaned, Interrupts: make([]schema.OpenInterrupt, 1)},
		"orphaned, quarantined":             {Status: schema.StatusOrphaned, Stalled: schema.DefaultMaxClaims},
		"interrupted":                       {Status: schema.StatusInterrupted, Epoch: 1, Counts: schema.Counts{Events: 5}},
		"running":                           {Status: schema.StatusRunning, Stalled: schema.DefaultMaxClaims},
		"running, cancel requested":         {Status: schema.StatusRunning, CancelRequested: true},
		"cancelled":                         {Status: schema.StatusCancelled, CancelRequested: true},
		"running, cancel requested, gapped": {Status: schema.StatusRunning, CancelRequested: true, Counts: schema.Counts{Gaps: 1}},

		"interrupted, waits for its first executor": {Status: schema.StatusInterrupted, Epoch: 1, Counts: schema.Counts{Events: 2}},
	} {
		require.Equal(t, want, story.HeadStatus(&h, h.Quarantined(0)))
	}
}

func TestCalls_RunWithoutExecutor_DoNotRun(t *testing.T) {
	t.Parallel()
	for want, h := range map[string]schema.Head{
		"running":            {Status: schema.StatusRunning},
		"begun, no executor": {Status: schema.StatusOrphaned},
		"no outcome":         {Status: schema.StatusCompleted},
	} {
		h.OpenCalls = []schema.OpenCall{{CallKey: schema.CallKey{Turn: 1, ToolCallID: "c1"}, Name: "mail"}}
		var out bytes.Buffer
		require.NoError(t, printCalls(&base.App{Stdout: &out, Now: time.Now}, &h))
		require.Contains(t, out.String(), want)
	}
}

func TestList_Quarantined_OnlyThose(t *testing.T) {
	t.Parallel()
	c := lsCmd{Status: []schema.Status{quarantined}}
	require.Equal(t, []schema.Status{schema.StatusInterrupted, schema.StatusOrphaned}, c.asked())
	require.True(t, c.unwanted(schema.RunSummary{Status: schema.StatusOrphaned}))
	require.False(t, c.unwanted(schema.RunSummary{Status: schema.StatusOrphaned, Quarantined: true}))
	c.Status = append(c.Status, schema.StatusOrphaned, schema.StatusRunning)
	require.Equal(t, []schema.Status{schema.StatusOrphaned, schema.StatusRunning, schema.StatusInterrupted}, c.asked())
	require.False(t, c.unwanted(schema.RunSummary{Status: schema.StatusOrphaned}))
	require.True(t, c.unwanted(schema.RunSummary{Status: schema.StatusInterrupted}))
	require.Nil(t, lsCmd{}.asked())
	require.False(t, lsCmd{}.unwanted(schema.RunSummary{Status: schema.StatusInterrupted}))
}

func TestSteps_Commands_Pasteable(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"call-1":       "show r call-1 --id call-1",
		"a b":          "show r 'a b' --id 'a b'",
		"it's":         `show r 'it'\''s' --id 'it'\''s'`,
		"$(rm -rf ~)":  "show r '$(rm -rf ~)' --id '$(rm -rf ~)'",
		"":             "show r '' --id ''",
		"toolu_01:2/3": "show r toolu_01:2/3 --id toolu_01:2/3",
		"--nats=evil":  "show --id='--nats=evil' -- r '--nats=evil'",
	} {
		require.Equal(t, want, schema.Command("show", schema.Flag("id", in), "r", in))
	}
	key := schema.CallKey{Turn: 2, ToolCallID: "c", Occurrence: 3}
	h := &schema.Head{Run: "r", OpenCalls: []schema.OpenCall{{CallKey: key, Epoch: 4, State: schema.CallInDoubt}}}
	require.Equal(t, "waymark --fleet blue settle r 2 c --occurrence 3 --epoch 4 --how rerun", inbox.SettleCommands(prompt.Prompt{Flags: "--fleet blue "}, h, key)[1])
}

func TestSteps_ManyThings_BoundedEachOnce(t *testing.T) {
	t.Parallel()
	h := &schema.Head{Run: "r", Status: schema.StatusWaiting}
	for _, id := range []string{"a", "b", "c", "d", "e"} {
		h.Interrupts = append(h.Interrupts, schema.OpenInterrupt{InterruptID: id, Reason: schema.WaitHumanInput})
	}
	var stderr bytes.Buffer
	require.NoError(t, printSteps(&base.App{Flags: new(base.Flags), Stderr: &stderr, Now: time.Now}, h, false))
	require.Equal(t, `answer with: waymark input r a --payload JSON (or --text TEXT)
answer with: waymark input r b --payload JSON (or --text TEXT)
answer with: waymark input r c --payload JSON (or --text TEXT)
see all its questions with: waymark input r
`, stderr.String())
}

func TestSteps_Pasted_DecideOnlyTheirLine(t *testing.T) {
	t.Parallel()
	h := &schema.Head{
		Run: "r", Status: schema.StatusWaiting,
		Interrupts: []schema.OpenInterrupt{
			{InterruptID: "may-i", Reason: schema.WaitToolApproval, Turn: 1, ToolCallID: "c1"},
			{InterruptID: "colour", Reason: schema.WaitHumanInput},
		},
		OpenCalls: []schema.OpenCall{{CallKey: schema.CallKey{Turn: 1, ToolCallID: "c2", Occurrence: 1}, State: schema.CallHeld}},
	}
	list := steps(prompt.Prompt{}, h, true)
	require.Len(t, list, 8)
	h.OpenCalls = append(h.OpenCalls, schema.OpenCall{CallKey: schema.CallKey{Turn: 1, ToolCallID: "c3", Occurrence: 1}, Replay: schema.ReplayPure, State: schema.CallInDoubt})
	require.Equal(t, append(list, "see what the next executor does with the calls in doubt, and how to settle them: waymark plan r"), steps(prompt.Prompt{}, h, true),
		"a call that its policy settles is left to no person")
	for _, step := range list {
		require.NotContains(t, step, "|", "a shell would run the text in front of it")
	}
}

func TestRejectedText_OneOfEach_IsSingular(t *testing.T) {
	t.Parallel()
	require.Equal(t, "1 dead letter, 1 fenced, 1 forked, 1 duplicate, 1 gap", rejectedText(schema.Counts{DeadLetters: 1, Fenced: 1, Forked: 1, Duplicates: 1, Gaps: 1}))
	require.Equal(t, "2 dead letters, 3 gaps", rejectedText(schema.Counts{DeadLetters: 2, Gaps: 3}))
}

// An executor names the work, so that it may hold anything that fits.
func TestPrintOverdue_HostileText_IsPrintableAndFitsTheTerminal(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	since := schema.FormatTime(now.Add(-time.Minute))
	list := []schema.Overdue{
		{Turn: 1 << 30, ToolCallID: "\x1b[2Jc1\r\n", Tool: "a\u202eb\x00" + strings.Repeat("界", schema.MaxIdentifier/3), Since: since, LimitMS: math.MaxInt64},
		{Turn: 2, Since: since, LimitMS: 30_000},
	}
	for _, width := range []string{"80", ""} {
		var out bytes.Buffer
		page := output.NewPage(&out, func(string) string { return width })
		require.NoError(t, printOverdue(&base.App{Stdout: page, Now: func() time.Time { return now }}, list))
		shown := strings.Split(strings.Trim(out.String(), "\n"), "\n")
		require.Len(t, shown, 3, "a row each: %s", &out)
		require.NotContains(t, out.String(), "-", "no limit is below 0")
		require.Regexp(t, `^the model +2 .* 30s$`, shown[2])
		for _, l := range shown {
			require.Equal(t, output.Printable(l), l)
			if width != "" {
				require.LessOrEqual(t, text.StringWidthWithoutEscSequences(l), 80)
			}
		}
	}
}
