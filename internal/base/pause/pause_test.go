package pause_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/base/pause"
)

func TestFor_TimeOver_ReturnsNil(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		require.NoError(t, pause.For(t.Context(), time.Minute))
		require.Equal(t, time.Minute, time.Since(began))
	})
}

func TestFor_ContextEnds_ReturnsItsCauseAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		stopped := errors.New("stopped")
		ctx, cancel := context.WithCancelCause(t.Context())
		began := time.Now()
		time.AfterFunc(time.Second, func() { cancel(stopped) })
		require.ErrorIs(t, pause.For(ctx, time.Minute), stopped)
		require.Equal(t, time.Second, time.Since(began))
	})
}
