package examples_test

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/docs/examples"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/publisher/waymarktest"
	"github.com/waymarkio/waymark/schema"
)

// change keeps its comments by their keys.
type change struct {
	mu       sync.Mutex
	comments map[string]string
}

func (c *change) Read(_ context.Context, path string) (string, error) {
	if path != "main.go" {
		return "", errors.New("no such file")
	}
	return "package main", nil
}

func (c *change) Comment(_ context.Context, key, text string) (string, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.comments[key] = text
	return "written", nil
}

// scripted reads, comments and submits.
func scripted(_ context.Context, request publisher.ModelRequest) (publisher.Answer, error) {
	answers := map[int32][]publisher.ToolCall{
		1: {{ID: "a", Name: "read_file", Arguments: []byte(`{"path":"main.go"}`)}, {ID: "b", Name: "read_file", Arguments: []byte(`{"path":"x.go"}`)}},
		2: {{ID: "c", Name: "comment", Arguments: []byte(`{"text":"Where is main?"}`)}},
		3: {{ID: "d", Name: "submit", Arguments: []byte(`{"approved":false,"reason":"It does nothing."}`)}},
	}
	return publisher.Answer{Calls: answers[request.Turn]}, nil
}

func TestReview_Fleet_ReachesVerdict(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := &change{comments: map[string]string{}}
	f := w.fleet("ex-1", nil)
	ctx, stop := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- examples.Review(ctx, f, scripted, c) }()
	_, err := f.Submit(t.Context(), publisher.RunSpec{ID: "r1", Agent: "reviewer", Task: "Review change 7."})
	require.NoError(t, err)
	result, err := f.Result(t.Context(), "r1")
	require.NoError(t, err)
	stop()
	require.NoError(t, <-served)
	require.Equal(t, schema.StatusCompleted, result.Status)
	require.JSONEq(t, `{"approved":false,"reason":"It does nothing."}`, string(result.Output))
	require.Equal(t, "d", result.CompletedBy)
	require.Equal(t, map[string]string{"r1.2.c.1": "Where is main?"}, c.comments)

	recorded, err := f.Get(t.Context(), "r1")
	require.NoError(t, err)
	run, err := publisher.Unrecorded(t.Context(), publisher.Config{Executor: "ex-1"}, publisher.RunSpec{ID: "r1", Agent: "reviewer", Task: "Review change 7."})
	require.NoError(t, err)
	require.NoError(t, examples.Reviewer(scripted, c).Work(t.Context(), run))
	conversation, err := run.Conversation(t.Context())
	require.NoError(t, err)
	require.Equal(t, recorded.Conversation(), conversation, "without a fleet")
}

// outside is a change whose comments are counted.
type outside struct {
	change
	out *waymarktest.Outside
}

func (o *outside) Comment(ctx context.Context, key, text string) (string, error) {
	return "written", o.out.Once(ctx, key, "comment "+text)
}

func TestReviewer_KilledAnywhere_CommentsOnce(t *testing.T) {
	t.Parallel()
	waymarktest.CrashEverywhere(t, func(out *waymarktest.Outside) publisher.Work {
		return examples.Reviewer(scripted, &outside{out: out}).Work
	})
}

func TestReview_OneExecutor_ReachesVerdict(t *testing.T) {
	t.Parallel()
	c := &change{comments: map[string]string{}}
	verdict, err := examples.ReviewAlone(t.Context(), scripted, c, "Review change 7.")
	require.NoError(t, err)
	require.Equal(t, examples.Verdict{Reason: "It does nothing."}, verdict)
	require.Equal(t, map[string]string{"alone.2.c.1": "Where is main?"}, c.comments)
}
