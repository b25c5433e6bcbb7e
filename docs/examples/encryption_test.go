package examples_test

import (
	"bytes"
	"context"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/docs/examples"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// An executor of the page's configuration leaves nothing readable, another with the vault goes on, and one without is refused.
func TestSealed_RunIsTakenOver_VaultDecides(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	vault := func(_ context.Context, id string) ([]byte, error) {
		if id != "2026-11" {
			return nil, publisher.ErrNoKey
		}
		return bytes.Repeat([]byte{7}, 32), nil
	}
	connect := func(cfg publisher.Config) *publisher.Fleet {
		cfg.Conn = w.server.Conn(t, nats.ReconnectBufSize(-1))
		f, err := publisher.Connect(t.Context(), cfg)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, f.Close(context.Background())) })
		return f
	}
	f := connect(examples.Sealed("one", vault))
	run, err := f.Start(t.Context(), publisher.RunSpec{ID: "secret", Task: "canaryTask", Labels: map[string]string{"team": "blue", "customer": "canaryCustomer"}})
	require.NoError(t, err)
	require.NoError(t, run.SetState(t.Context(), "plan", "canaryPlan"))
	require.NoError(t, f.Events(t.Context(), "secret", func(rec schema.Record) error {
		require.NotContains(t, string(rec.Body), "canary")
		return nil
	}))
	require.Equal(t, map[string]string{"team": "blue", "customer": "(encrypted)"}, run.Head().Labels)

	_, err = w.fleet("without", nil).Resume(t.Context(), "secret", publisher.ResumeSpec{})
	require.ErrorIs(t, err, publisher.ErrEncrypted)
	require.ErrorContains(t, err, "key 2026-11")
	run, err = connect(examples.Sealed("two", vault)).Resume(t.Context(), "secret", publisher.ResumeSpec{})
	require.NoError(t, err)
	var plan string
	_, err = run.GetState(t.Context(), "plan", &plan)
	require.NoError(t, err)
	require.Equal(t, "canaryPlan", plan)
}
