package publisher_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/publisher/waymarktest"
	"github.com/waymarkio/waymark/schema"
)

// Serve ends with its connection, also one that the program made itself, closed before or while it serves.
func TestExecutor_GivenConnectionCloses_ServeEnds(t *testing.T) {
	t.Parallel()
	w := waymarktest.Start(t)
	for name, early := range map[string]bool{"before": true, "while serving": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			nc := w.Conn()
			f, err := publisher.Connect(t.Context(), publisher.Config{Conn: nc, Fleet: schema.DefaultFleet, Executor: "own-1"})
			require.NoError(t, err)
			e, err := f.NewExecutor(publisher.ExecutorSpec{Grace: time.Millisecond, Agents: map[string]func(context.Context, *publisher.Run) (publisher.Work, error){
				"coder": func(context.Context, *publisher.Run) (publisher.Work, error) { return nil, nil },
			}})
			require.NoError(t, err)
			if early {
				nc.Close()
			}
			ended := make(chan error, 1)
			go func() { ended <- e.Serve(t.Context()) }()
			if !early {
				nc.Close()
			}
			require.ErrorIs(t, <-ended, publisher.ErrUnavailable)
		})
	}
}
