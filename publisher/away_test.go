package publisher_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// A rolling restart of the servers meets runs that are being begun, and blobs that are being stored, too.
func TestStart_ServerRestarts_Waits(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	f := w.fleet(func(c *publisher.Config) { c.PublishTimeout, c.RequestTimeout = time.Minute, time.Minute })
	first := start(t, f, "r1")
	large := schema.Message{Role: schema.RoleUser, Parts: []schema.Part{schema.Text(strings.Repeat("x", big))}}
	for name, do := range map[string]func(context.Context) error{
		"start": func(ctx context.Context) error {
			_, err := f.Start(ctx, publisher.RunSpec{ID: "r2"})
			return err
		},
		"blob": func(ctx context.Context) error { return first.AddMessage(ctx, large) },
	} {
		w.server.Stop(t)
		begun, done := make(chan struct{}), make(chan error, 1)
		go func() {
			close(begun)
			done <- do(context.WithoutCancel(t.Context()))
		}()
		<-begun
		w.server.Resume(t)
		require.NoError(t, <-done, name)
	}
	w.requireSameFold(first)
}
