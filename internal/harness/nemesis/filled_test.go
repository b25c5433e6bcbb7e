//go:build unix

package nemesis_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// listed is the output of runs ls, page by page if pages are requested.
func (w *lone) listed(tb testing.TB, args ...string) []schema.RunSummary {
	tb.Helper()
	var all []schema.RunSummary
	for after := ""; ; {
		more := args
		if after != "" {
			more = append(slices.Clone(args), "--after", after)
		}
		page := schema.ListReply{Incomplete: true} // as it is for a moment after a start
		for until := time.Now().Add(patience); page.Incomplete && time.Now().Before(until); {
			page = schema.ListReply{}
			require.NoError(tb, json.Unmarshal(w.cli(tb, append([]string{"runs", "ls", "--json"}, more...)...), &page))
		}
		require.False(tb, page.Incomplete)
		all = append(all, page.Runs...)
		if after = page.Next; after == "" {
			return all
		}
	}
}

func names(runs []schema.RunSummary) []string {
	list := make([]string, len(runs))
	for i := range runs {
		list[i] = runs[i].Run
	}
	return list
}

// fill makes runs, one in every tenth of them live, and waits until a list has them all.
func (w *lone) fill(tb testing.TB, runs int) {
	tb.Helper()
	fleet := w.fleet(tb, "generator")
	group, ctx := errgroup.WithContext(tb.Context())
	group.SetLimit(32)
	for n := range runs {
		group.Go(func() error { return generate(ctx, fleet, n) })
	}
	require.NoError(tb, group.Wait())
	require.Eventually(tb, func() bool { return len(w.listed(tb, "--all")) == runs }, 10*patience, time.Second)
}

// generate makes the run of a number: one turn with a call, and an end unless it is live.
func generate(ctx context.Context, fleet *publisher.Fleet, n int) error {
	run, err := fleet.Start(ctx, publisher.RunSpec{
		ID: fmt.Sprintf("gen-%08d", n), Agent: fmt.Sprintf("agent-%d", n%20), Labels: map[string]string{"team": fmt.Sprintf("team-%d", n%50)},
	})
	if err != nil {
		return err
	}
	turn, err := run.StartTurn(ctx, publisher.TurnSpec{Messages: []schema.Message{text("user", "Look.")}})
	if err != nil {
		return err
	}
	call := publisher.ToolCall{ID: "call-1", Name: "look", Arguments: []byte(`{}`), Replay: publisher.Pure}
	if _, err := turn.Answer(ctx, publisher.Answer{Message: text("assistant", "I look."), Calls: []publisher.ToolCall{call}}); err != nil {
		return err
	}
	if _, err := turn.Tool(ctx, call, func(context.Context, publisher.Invocation) (publisher.ToolResult, error) {
		return publisher.Result("nothing there")
	}); err != nil {
		return err
	}
	switch n % 20 {
	case 0:
		return nil
	case 10:
		return run.Wait(ctx, schema.RunWaitingData{InterruptID: "q", Reason: schema.WaitHumanInput})
	case 3:
		return run.End(ctx, publisher.RunEnd{Status: schema.StatusFailed, Error: &schema.Error{Type: "internal", Message: "it broke"}})
	case 13:
		return run.End(ctx, publisher.RunEnd{Status: schema.StatusCancelled})
	default:
		return run.End(ctx, publisher.RunEnd{})
	}
}
