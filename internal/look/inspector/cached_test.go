package inspector

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// What was read before a change is shown no more after it, also if the reading ends after the change.
func TestCached_ForgottenWhileItIsRead_IsReadAgain(t *testing.T) {
	t.Parallel()
	var c cached[string]
	begun, end := make(chan struct{}), make(chan struct{})
	_, ok, err := c.get(time.Hour, time.Millisecond, func(context.Context) (string, error) {
		close(begun)
		<-end
		return "before", nil
	})
	require.NoError(t, err)
	require.False(t, ok)
	<-begun
	c.forget()
	got := make(chan string, 1)
	go func() {
		value, _, _ := c.get(time.Hour, time.Minute, func(context.Context) (string, error) { return "after", nil })
		got <- value
	}()
	close(end)
	require.Equal(t, "after", <-got)
	value, ok, _ := c.get(time.Hour, 0, nil)
	require.True(t, ok)
	require.Equal(t, "after", value, "it is kept")
	c.forget()
	_, ok = c.peek()
	require.False(t, ok)
}

// A failed read took long, because a server was away: the next one must not wait ten times as long.
func TestCached_SlowReadFailed_IsReadAgainSoon(t *testing.T) {
	t.Parallel()
	c := cached[string]{err: context.DeadlineExceeded, at: time.Now().Add(-2 * time.Second), took: time.Hour}
	value, ok, err := c.get(time.Second, time.Minute, func(context.Context) (string, error) { return "back", nil })
	require.NoError(t, err)
	require.True(t, ok)
	require.Equal(t, "back", value)
	c.at, c.took = time.Now().Add(-2*time.Second), time.Hour
	value, _, _ = c.get(time.Second, time.Minute, func(context.Context) (string, error) { return "not read", nil })
	require.Equal(t, "back", value, "a slow value is read less often")
}

// A read that hangs, because the servers are away, does not let a page show for minutes what was true before.
func TestCached_ReadHangs_OldValueIsGone(t *testing.T) {
	t.Parallel()
	end := make(chan struct{})
	t.Cleanup(func() { close(end) })
	hangs := func(context.Context) (string, error) { <-end; return "", context.DeadlineExceeded }
	c := cached[string]{value: "before", at: time.Now().Add(-2 * time.Second)}
	value, ok, err := c.get(time.Second, time.Millisecond, hangs)
	require.NoError(t, err)
	require.True(t, ok)
	require.Equal(t, "before", value)
	c.mu.Lock()
	c.at = time.Now().Add(-time.Second - peekable)
	c.mu.Unlock()
	_, ok, err = c.get(time.Second, time.Millisecond, hangs)
	require.NoError(t, err)
	require.False(t, ok)
	c.mu.Lock()
	c.took = time.Minute
	c.mu.Unlock()
	_, ok, _ = c.get(time.Second, time.Millisecond, hangs)
	require.True(t, ok, "a slow value is read less often")
}
