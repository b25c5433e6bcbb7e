//go:build unix

package worker_test

import (
	"context"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/adapter/worker"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/publisher/waymarktest"
	"github.com/waymarkio/waymark/schema"
)

// BenchmarkTurn is a turn with one pure tool, in one run of 150 turns: of the SDK in this process, and of programs of a worker. They take turns
// in each iteration, on one server.
func BenchmarkTurn(b *testing.B) {
	const turns = 150
	w := waymarktest.Start(b)
	loop := publisher.Loop{
		Model: func(_ context.Context, r publisher.ModelRequest) (publisher.Answer, error) {
			if r.Turn > turns {
				return publisher.Answer{Message: schema.Message{Parts: []schema.Part{schema.Text("All is done.")}}}, nil
			}
			return publisher.Answer{Calls: []publisher.ToolCall{{Name: "look", Arguments: []byte("{}")}}}, nil
		},
		Tools: []publisher.Tool{publisher.NewTool("look", "", schema.ReplayPure, func(context.Context, struct{}) (string, error) { return "look is done", nil })},
	}
	serve := func(agent string, work func(ctx context.Context) error) {
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() { done <- work(ctx) }()
		b.Cleanup(func() {
			cancel()
			require.NoError(b, <-done, agent)
		})
	}
	executor, err := w.Fleet("go", nil).NewExecutor(publisher.ExecutorSpec{Loops: map[string]publisher.Loop{"go": loop}})
	require.NoError(b, err)
	serve("go", executor.Serve)
	here, err := filepath.Abs(clients)
	require.NoError(b, err)
	for name, command := range languages {
		serve(name, func(ctx context.Context) error {
			return worker.Serve(ctx, worker.Config{
				Command: append([]string{"/usr/bin/env", "CLIENTS=" + here, "LEDGER=" + filepath.Join(b.TempDir(), "ledger"), "AGENT=" + name}, command...),
				Stderr:  io.Discard, Log: zerolog.Nop(), Ready: func(*worker.Hello, string) {},
				Connect: func(_ context.Context, _ string, change func(*publisher.Config)) (*publisher.Fleet, error) {
					return w.Fleet(name, change), nil
				},
			})
		})
	}
	task := "[[\"look\"]"
	for range turns - 1 {
		task += ",[\"look\"]"
	}
	took := make(map[string][]time.Duration)
	for i := 0; b.Loop(); i++ {
		for _, agent := range []string{"go", "node", "python"} {
			id := fmt.Sprintf("%s-%d", agent, i)
			_, err := w.Fleet("submitter-"+id, nil).Submit(b.Context(), publisher.RunSpec{ID: id, Agent: agent, Task: task + "]"})
			require.NoError(b, err)
			require.Equal(b, schema.StatusCompleted, w.Ended(id).Status)
			state := w.State(id)
			first, err := time.Parse(time.RFC3339Nano, state.Turns[0].StartedAt)
			require.NoError(b, err)
			last, err := time.Parse(time.RFC3339Nano, state.Turns[turns].StartedAt)
			require.NoError(b, err)
			took[agent] = append(took[agent], last.Sub(first)/turns)
		}
	}
	for agent, list := range took {
		slices.Sort(list)
		b.ReportMetric(float64(list[len(list)/2].Microseconds())/1000, agent+"-ms/turn")
	}
}
