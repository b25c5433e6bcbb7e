package transcript_test

import (
	"context"
	"fmt"
	"os"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go"

	"github.com/waymarkio/waymark/internal/harness/natstest"
	"github.com/waymarkio/waymark/internal/transcript"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// childEnv makes the test binary an executor; its value is an executorJob.
const childEnv = "WAYMARK_TRANSCRIPT_EXECUTOR"

func TestMain(m *testing.M) {
	if job := os.Getenv(childEnv); job != "" {
		if err := runExecutor(job); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1) //nolint:forbidigo // stands in for main
		}
		os.Exit(0) //nolint:forbidigo // stands in for main
	}
	natstest.Main(m)
}

// executorJob is what an executor process is told.
type executorJob struct {
	URL      string `json:"url"`
	Context  string `json:"context"`
	Executor string `json:"executor"`
	File     string `json:"file"`
	RunID    string `json:"run_id"`
	// Journal is the file outside of Waymark into which executions and acknowledgements are written.
	Journal string `json:"journal"`
}

func callText(k schema.CallKey) string {
	return fmt.Sprintf("%d/%s/%d", k.Turn, k.ToolCallID, k.Occurrence)
}

// runExecutor replays the file's first run. It writes a line before each tool runs, after it ran, and after
// each boundary was acknowledged, so that the parent can kill it at any of them and knows what it had been
// promised.
func runExecutor(settings string) error {
	var job executorJob
	if err := json.Unmarshal([]byte(settings), &job); err != nil {
		return err
	}
	journal, err := os.OpenFile(job.Journal, os.O_APPEND|os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = journal.Close() }()
	// A kill can cut a line short: this ends it, and only a line with a semicolon is whole.
	if _, err := journal.WriteString("\n"); err != nil {
		return err
	}
	var login struct{ User, Password string }
	b, err := os.ReadFile(job.Context)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(b, &login, json.MatchCaseInsensitiveNames(true)); err != nil {
		return err
	}
	ctx := context.Background()
	fleet, err := publisher.Connect(ctx, publisher.Config{
		URL: job.URL, Options: []nats.Option{nats.UserInfo(login.User, login.Password)}, Executor: job.Executor,
	})
	if err != nil {
		return err
	}
	file, err := transcript.Open(job.File, transcript.Options{RunID: job.RunID})
	if err != nil {
		return err
	}
	for run := range file.Runs() {
		if run.ID != job.RunID {
			continue
		}
		out, err := transcript.Replay(ctx, fleet, run, transcript.ReplayOptions{
			TakeOver: true,
			OnBoundary: func(b transcript.Boundary) {
				// A line that cannot be written only makes the parent expect less.
				_, _ = fmt.Fprintf(journal, "acked %d %s %s;\n", b.Step, b.Name, callText(b.Call))
			},
			Execute: func(_ context.Context, c *transcript.Call) error {
				_, err := fmt.Fprintf(journal, "run %s;\n", callText(c.Key))
				return err
			},
		})
		if err == nil && out.Done == out.Steps {
			// The one before died between the last acknowledgement and its line in the journal.
			_, err = fmt.Fprintf(journal, "acked %d run.ended %s;\n", out.Steps, callText(schema.CallKey{}))
		}
		if err != nil {
			return err
		}
	}
	return fleet.Close(ctx)
}
