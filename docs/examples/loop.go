package examples

import (
	"context"
	"encoding/json"
	"time"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// snippet: loop

// Change is the subject of a review: files to read, and a place for comments.
type Change interface {
	Read(ctx context.Context, path string) (string, error)
	// Comment writes once for each key.
	Comment(ctx context.Context, key, text string) (string, error)
}

// Verdict is the result of a review.
type Verdict struct {
	Approved bool   `json:"approved"`
	Reason   string `json:"reason" jsonschema:"one sentence"`
}

// Reviewer is an agent: a model, its tools, and the tool that ends the work.
func Reviewer(model publisher.Model, change Change) publisher.Loop {
	read := publisher.NewTool("read_file", "Reads a file of the change.", publisher.Pure,
		func(ctx context.Context, in struct {
			Path string `json:"path" jsonschema:"relative to the root"`
		},
		) (string, error) {
			return change.Read(ctx, in.Path)
		})
	comment := publisher.NewTool("comment", "Writes a comment below the change.", publisher.Idempotent,
		func(ctx context.Context, in struct {
			Text string `json:"text"`
		},
		) (string, error) {
			return change.Comment(ctx, publisher.InvocationOf(ctx).IdempotencyKey, in.Text)
		})
	submit := publisher.NewTool("submit", "Ends the review.", publisher.Pure,
		func(_ context.Context, verdict Verdict) (Verdict, error) { return verdict, nil })
	return publisher.Loop{
		System: "You review a change. Read before you judge.", Model: model,
		Tools: []publisher.Tool{read, comment, submit}, Complete: "submit",
		MaxTurns: 40, ModelTimeout: 5 * time.Minute, ToolTimeout: time.Minute,
	}
}

// Review serves reviews until ctx ends.
func Review(ctx context.Context, fleet *publisher.Fleet, model publisher.Model, change Change) error {
	executor, err := fleet.NewExecutor(publisher.ExecutorSpec{
		Loops: map[string]publisher.Loop{"reviewer": Reviewer(model, change)},
	})
	if err != nil {
		return err
	}
	return executor.Serve(ctx)
}

// end of loop

// snippet: unrecorded

// ReviewAlone reviews without a server, as in a test of the agent.
func ReviewAlone(ctx context.Context, model publisher.Model, change Change, task string) (verdict Verdict, err error) {
	run, err := publisher.Unrecorded(ctx, publisher.Config{Executor: "test"}, publisher.RunSpec{ID: "alone", Agent: "reviewer", Task: task})
	if err != nil {
		return verdict, err
	}
	if err := Reviewer(model, change).Work(ctx, run); err != nil {
		return verdict, err
	}
	run.View(func(s *schema.State) { err = json.Unmarshal(s.Ended.Output, &verdict) })
	return verdict, err
}

// end of unrecorded
