package cli

import (
	"context"
	"io"
	"net/http"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/publisher/waymarktest"
	"github.com/waymarkio/waymark/schema"
)

// looker serves an agent that looks around, 852 tokens a turn, and that sums up when it is asked for the last time.
func looker(t *testing.T) *world {
	t.Helper()
	w := &world{waymarktest.Start(t), t}
	loop := publisher.Loop{Tools: []publisher.Tool{does("look", publisher.Pure, works)}, Model: func(_ context.Context, q publisher.ModelRequest) (publisher.Answer, error) {
		switch {
		case q.Limit != "":
			return says("One room is left."), nil
		case q.Turn > 10:
			return says("No limit stops me."), nil
		}
		return says("I look.", "a", "look"), nil
	}}
	answers := func(ctx context.Context, run *publisher.Run) error {
		turn, err := run.StartTurn(ctx, publisher.TurnSpec{})
		if err == nil {
			_, err = turn.Answer(ctx, says("I think that it is done."))
		}
		return err
	}
	w.Serve("ex-1", publisher.ExecutorSpec{
		Loops:  map[string]publisher.Loop{"looker": loop},
		Agents: agents{"answerer": func(context.Context, *publisher.Run) (publisher.Work, error) { return answers, nil }},
	}, nil)
	return w
}

func TestStart_Limits_EndTheRunWithASummary(t *testing.T) {
	t.Parallel()
	w := looker(t)
	for limit, test := range map[string]struct {
		args        []string
		turns       int32
		told        string
		endedByList string
	}{
		"turns":  {[]string{"--max-turns", "2"}, 3, `(?m)limit +reached turns: 2 of 2$`, `(?m)^turns .* limit turns +\S+ ago$`},
		"tokens": {[]string{"--max-tokens", "2000"}, 4, `(?m)limit +reached tokens: 2556 of 2000$`, `(?m)^tokens .* limit tokens +\S+ ago$`},
	} {
		code, out, complaints := w.ask("", "", append([]string{"start", "looker", "--id", limit, "--task", "Search the rooms.", "--wait"}, test.args...)...)
		require.Equal(t, 1, code, "it has failed: %s", out)
		require.Contains(t, complaints, "has ended as failed")
		require.Equal(t, test.turns, w.State(limit).Head.Turn, "one more turn sums up")
		_, out, _ = w.ask("", "", "runs", "show", limit)
		require.Regexp(t, test.told, out)
		require.Regexp(t, `failed +One room is left\.`, out)
		w.until(func() bool {
			_, out, _ = w.ask("", "", "runs", "ls", "--status", "failed")
			return regexp.MustCompile(test.endedByList).MatchString(out)
		})
	}
}

func TestStart_CompletionTool_IsTheOnlyWayToComplete(t *testing.T) {
	t.Parallel()
	w := looker(t)
	code, _, complaints := w.ask("", "", "start", "answerer", "--id", "free", "--wait")
	require.Zero(t, code, complaints)
	code, _, complaints = w.ask("", "", "start", "answerer", "--id", "bound", "--completion-tool", "submit", "--wait")
	require.Equal(t, 1, code)
	require.Contains(t, complaints, "its work returned before a call of submit completed it")
	require.Equal(t, "submit", w.State("bound").Head.CompletionTool)
	code, _, complaints = w.ask("", "", "start", "answerer", "--id", "bound", "--completion-tool", "finish")
	require.Equal(t, 5, code, "the same id is the same run: %s", complaints)
}

func TestMetrics_RunsEndInEachWay_AreCounted(t *testing.T) {
	t.Parallel()
	nc, ready := startServe(t, "--shards", "1")
	ctx := t.Context()
	f, err := publisher.Connect(ctx, publisher.Config{Conn: nc, Executor: "ex-1", Agent: "coder"})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, f.Close(context.WithoutCancel(ctx))) })
	start := func(id string) (*publisher.Run, *publisher.Turn) {
		run, err := f.Start(ctx, publisher.RunSpec{ID: id})
		require.NoError(t, err)
		turn, err := run.StartTurn(ctx, publisher.TurnSpec{})
		require.NoError(t, err)
		return run, turn
	}
	run, turn := start("by-tool")
	keys, err := turn.Answer(ctx, says("It is done.", "a", "submit"))
	require.NoError(t, err)
	require.NoError(t, turn.Return(ctx, keys[0], publisher.ToolResult{Result: []byte(`"done"`)}))
	require.NoError(t, run.Complete(ctx, keys[0], publisher.RunEnd{}))

	run, turn = start("by-word")
	_, err = turn.Answer(ctx, says("It is done."))
	require.NoError(t, err)
	require.NoError(t, run.End(ctx, publisher.RunEnd{}))

	run, turn = start("summed-up")
	_, err = turn.Answer(ctx, says("I begin."))
	require.NoError(t, err)
	require.NoError(t, run.LimitReached(ctx, publisher.Limit{Kind: "turns", Value: 1, Maximum: 1}, func(context.Context, *publisher.Turn) (string, error) {
		return "It is half done.", nil
	}, publisher.RunEnd{Status: schema.StatusFailed}))

	run, turn = start("cut-off")
	_, err = turn.Answer(ctx, says("I begin."))
	require.NoError(t, err)
	require.NoError(t, run.Limit(ctx, "turns", 1, 1))
	require.NoError(t, run.End(ctx, publisher.RunEnd{}))

	want := map[string]string{"completed_total": "3", "completed_by_tool_total": "1", "limited_total": "2", "limited_summed_up_total": "1"}
	counted := make(map[string]string)
	client := http.Client{Timeout: startLimit, Transport: &http.Transport{DisableKeepAlives: true}}
	require.Eventually(t, func() bool {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, ready.HTTP+"/metrics", http.NoBody)
		require.NoError(t, err)
		response, err := client.Do(request)
		require.NoError(t, err)
		defer func() { require.NoError(t, response.Body.Close()) }()
		text, err := io.ReadAll(response.Body)
		require.NoError(t, err)
		for _, m := range regexp.MustCompile(`(?m)^waymark_fleet_runs_(\w+)\{fleet="default",shard="0"\} (\d+)$`).FindAllStringSubmatch(string(text), -1) {
			counted[m[1]] = m[2]
		}
		return counted["completed_total"] == want["completed_total"] && counted["limited_total"] == want["limited_total"]
	}, startLimit, pollEvery)
	for name, n := range want {
		require.Equal(t, n, counted[name], name)
	}
}
