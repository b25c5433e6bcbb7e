package serve

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// aServingDaemon runs a daemon, and returns a function that reads a page from it.
func aServingDaemon(t *testing.T, flags ...string) (*daemon, func(path string) string) {
	t.Helper()
	d, registry := aDaemon(t, flags...)
	ctx, cancel := context.WithCancel(t.Context())
	group, work := errgroup.WithContext(ctx)
	d.run(work, group, zerolog.Nop())
	h, err := listenHealth(t.Context(), "127.0.0.1:0", zerolog.Nop())
	require.NoError(t, err)
	h.shown.Store(&shown{d, time.Now, promhttp.HandlerFor(registry, promhttp.HandlerOpts{})})
	group.Go(h.run)
	t.Cleanup(func() {
		require.NoError(t, h.shutdown(context.Background()))
		cancel()
		require.NoError(t, group.Wait())
	})
	select {
	case <-d.waymark.Ready():
	case <-time.After(time.Minute):
		require.Fail(t, "the service is not ready")
	}
	return d, func(path string) string {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, h.url()+path, nil)
		require.NoError(t, err)
		response, err := http.DefaultClient.Do(request)
		require.NoError(t, err)
		defer response.Body.Close() //nolint:errcheck // it was read
		body, err := io.ReadAll(response.Body)
		require.NoError(t, err)
		require.Equal(t, http.StatusOK, response.StatusCode, string(body))
		return string(body)
	}
}

// did returns the lines of a metrics page about agents that are not 0; only the counts of histograms.
func did(page string) (lines []string) {
	for scanner := bufio.NewScanner(strings.NewReader(page)); scanner.Scan(); {
		line, ok := strings.CutPrefix(scanner.Text(), "waymark_agent_")
		if !ok || strings.HasSuffix(line, " 0") || strings.Contains(line, "_bucket{") || strings.Contains(line, "_seconds_sum{") {
			continue
		}
		lines = append(lines, strings.Replace(strings.Replace(line, `fleet="default",`, "", 1), `,fleet="default"`, "", 1))
	}
	slices.Sort(lines)
	return lines
}

// executor connects one by a connection of its own.
func executor(t *testing.T, d *daemon, name string, change func(*publisher.Config)) (*publisher.Fleet, *nats.Conn) {
	t.Helper()
	nc, err := d.server.Connect(nats.ReconnectBufSize(-1))
	require.NoError(t, err)
	t.Cleanup(nc.Close)
	config := publisher.Config{Conn: nc, Executor: name, Agent: "coder"}
	if change != nil {
		change(&config)
	}
	f, err := publisher.Connect(t.Context(), config)
	require.NoError(t, err)
	t.Cleanup(func() { _ = f.Close(context.Background()) })
	return f, nc
}

func begun(t *testing.T, f *publisher.Fleet, id string) *publisher.Run {
	t.Helper()
	run, err := f.Start(t.Context(), publisher.RunSpec{ID: id, ModelTier: "large", Task: "mend it"})
	require.NoError(t, err)
	return run
}

// answers is a model that gives these calls, one answer each, and then answers without one.
func answers(given ...[]publisher.ToolCall) publisher.Model {
	return func(_ context.Context, request publisher.ModelRequest) (publisher.Answer, error) {
		answer := publisher.Answer{
			Message: schema.Message{Parts: []schema.Part{schema.Text("so be it")}}, Duration: 1500 * time.Millisecond,
			Usage: &schema.Usage{InputTokens: 100, OutputTokens: 20, CacheReadInputTokens: 50, CacheCreationInputTokens: 5, ReasoningOutputTokens: 7},
		}
		if n := int(request.Turn); n <= len(given) {
			answer.Calls = given[n-1]
		}
		return answer, nil
	}
}

type nothing struct{}

func aTool(name string, replay schema.Replay, run func(context.Context) (string, error)) publisher.Tool {
	return publisher.NewTool(name, "", replay, func(ctx context.Context, _ nothing) (string, error) { return run(ctx) })
}

func asked(name string) publisher.ToolCall {
	return publisher.ToolCall{Name: name, Arguments: json.RawMessage(`{}`)}
}

func TestMetrics_AgentsAtWork_CountWhatTheyDid(t *testing.T) {
	t.Parallel()
	d, get := aServingDaemon(t, "--shards", "2", "--silence", "2s")
	require.Empty(t, did(get("/metrics")))
	first, _ := executor(t, d, "executor-1", nil)
	look := aTool("look", publisher.Pure, func(context.Context) (string, error) { return "seen", nil })

	// Completed, with a tool that runs three times and one that does not exist.
	tries := 0
	fetch := aTool("fetch", publisher.Pure, func(context.Context) (string, error) {
		if tries++; tries < 3 {
			return "", publisher.Retryable(errors.New("busy"))
		}
		return "fetched", nil
	})
	loop := publisher.Loop{Model: answers([]publisher.ToolCall{asked("fetch"), asked("made-up")}), Tools: []publisher.Tool{fetch}}
	require.NoError(t, loop.Work(t.Context(), begun(t, first, "completed")))

	// Failed: the model gives no answer. Its tier is not known.
	failed, err := first.Start(t.Context(), publisher.RunSpec{ID: "failed", Agent: "tester", Task: "mend it"})
	require.NoError(t, err)
	loop = publisher.Loop{Model: func(context.Context, publisher.ModelRequest) (publisher.Answer, error) {
		return publisher.Answer{}, publisher.Permanent(errors.New("no credit"))
	}}
	require.Error(t, loop.Work(t.Context(), failed))
	require.NoError(t, failed.End(t.Context(), publisher.RunEnd{Status: schema.StatusFailed}))

	// Denied: the policy decides about each call.
	denying, _ := executor(t, d, "executor-2", func(c *publisher.Config) {
		c.Policy = func(_ context.Context, _ *publisher.Run, call publisher.ToolCall) (publisher.Decision, error) {
			if call.Name == "remove" {
				return publisher.Decision{Decision: schema.DecisionDeny, Reason: "never"}, nil
			}
			return publisher.Decision{Decision: schema.DecisionAllow}, nil
		}
	})
	remove := aTool("remove", publisher.Hold, func(context.Context) (string, error) { return "", errors.New("not to be run") })
	loop = publisher.Loop{Model: answers([]publisher.ToolCall{asked("remove"), asked("look")}), Tools: []publisher.Tool{look, remove}}
	require.NoError(t, loop.Work(t.Context(), begun(t, denying, "denied")))

	// At its limit behind the first turn, and a tool that fails for good.
	broken := aTool("broken", publisher.Idempotent, func(context.Context) (string, error) { return "", errors.New("no such file") })
	loop = publisher.Loop{Model: answers([]publisher.ToolCall{asked("broken")}), Tools: []publisher.Tool{broken}, MaxTurns: 1}
	require.NoError(t, loop.Work(t.Context(), begun(t, first, "limited")))

	// Killed within a call that must not run twice; taken over, settled by a person, and continued.
	doomed, nc := executor(t, d, "executor-3", nil)
	dying, kill := context.WithCancel(t.Context())
	pay := func(run func(context.Context) (string, error)) publisher.Loop {
		return publisher.Loop{Model: answers([]publisher.ToolCall{asked("pay")}), Tools: []publisher.Tool{aTool("pay", publisher.Hold, run)}}
	}
	require.Error(t, pay(func(ctx context.Context) (string, error) {
		kill()
		return "", ctx.Err()
	}).Work(dying, begun(t, doomed, "taken-over")))
	nc.Close()
	var run *publisher.Run
	require.Eventually(t, func() bool {
		run, err = first.Claim(t.Context(), publisher.ClaimSpec{})
		return err == nil
	}, time.Minute, 50*time.Millisecond, "%v", err)
	require.Equal(t, "taken-over", run.ID())
	again := pay(func(context.Context) (string, error) { return "", errors.New("not to be run") })
	var held *publisher.HeldError
	require.ErrorAs(t, again.Work(t.Context(), run), &held)
	_, err = first.Settle(t.Context(), "taken-over", schema.SettleRequest{
		CallKey: held.Key, CallEpoch: held.Epoch, How: schema.SettledDecided, Result: []byte(`"paid"`), By: "anna",
	})
	require.NoError(t, err)
	require.NoError(t, again.Work(t.Context(), run))

	want := []string{
		// completed 2 turns, failed 1, denied 2, limited 1 and the one that sums up, taken-over 2
		`limits_reached_total{agent="coder",limit="turns",tier="large"} 1`,
		`runs_ended_total{agent="coder",outcome="completed",tier="large"} 3`,
		`runs_ended_total{agent="coder",outcome="failed",tier="large"} 1`,
		`runs_ended_total{agent="tester",outcome="failed",tier="none"} 1`,
		`runs_orphaned_total{agent="coder",tier="large"} 1`,
		`runs_started_total{agent="coder",tier="large"} 4`,
		`runs_started_total{agent="tester",tier="none"} 1`,
		`takeover_duration_seconds_count{after="silence"} 1`,
		`takeovers_total{agent="coder",reason="claim",tier="large"} 1`,
		`tokens_total{agent="coder",kind="cache_creation",tier="large"} 40`,
		`tokens_total{agent="coder",kind="cache_read",tier="large"} 400`,
		`tokens_total{agent="coder",kind="input",tier="large"} 800`,
		`tokens_total{agent="coder",kind="output",tier="large"} 160`,
		`tokens_total{agent="coder",kind="reasoning",tier="large"} 56`,
		`tool_calls_total{outcome="denied",tool="remove"} 1`,
		`tool_calls_total{outcome="failed",tool="broken"} 1`,
		`tool_calls_total{outcome="failed",tool="other"} 1`,
		`tool_calls_total{outcome="returned",tool="fetch"} 1`,
		`tool_calls_total{outcome="returned",tool="look"} 1`,
		`tool_calls_total{outcome="settled",tool="pay"} 1`,
		`tool_decisions_total{decision="allow",mode="enforce",tool="look"} 1`,
		`tool_decisions_total{decision="deny",mode="enforce",tool="remove"} 1`,
		`tool_duration_seconds_count{tool="broken"} 1`,
		`tool_duration_seconds_count{tool="fetch"} 1`,
		`tool_duration_seconds_count{tool="look"} 1`,
		`tool_in_doubt_total{tool="pay"} 1`,
		`tool_retries_total{tool="fetch"} 2`,
		`tool_settlements_total{how="decided",tool="pay"} 1`,
		`turn_duration_seconds_count{agent="coder",tier="large"} 8`,
		`turn_duration_seconds_count{agent="tester",tier="none"} 1`,
		`turns_ended_total{agent="coder",outcome="completed",tier="large"} 8`,
		`turns_ended_total{agent="tester",outcome="failed",tier="none"} 1`,
	}
	page := ""
	require.Eventually(t, func() bool {
		page = get("/metrics")
		return slices.Equal(want, did(page))
	}, time.Minute, 20*time.Millisecond, "the lines that are missing, or too many, are seen by comparing with %q", want)
	// A turn that its answer opens took as long as its model; a turn that begins with messages began earlier.
	require.Contains(t, page, `waymark_agent_turn_duration_seconds_bucket{agent="coder",fleet="default",tier="large",le="1"} 4`)
	require.Contains(t, page, `waymark_agent_tool_duration_seconds_bucket{fleet="default",tool="fetch",le="0.25"} 0`)
	require.Contains(t, page, `waymark_agent_takeover_duration_seconds_bucket{after="silence",fleet="default",le="1"} 0`)
}
