package publisher

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/schema"
)

// startedLedger returns a ledger whose run.started is durable at stream sequence 1, and what held was told.
func startedLedger(t *testing.T) (l *ledger, held *[]bool) {
	t.Helper()
	l = newLedger(schema.Writer{Fleet: "f", Run: "r", Executor: "e"}, nil)
	held = new([]bool)
	l.held = func(in, _ bool, _ schema.Epoch) { *held = append(*held, in) }
	l.start(nil)
	items, err := l.resumeOrSeal([]draft{drafted(t, &schema.RunStartedData{Agent: "a", Executor: "e"}, 0)})
	require.NoError(t, err)
	require.True(t, l.isStarting())
	require.NoError(t, l.acknowledged(items[0], 1, time.Now()))
	require.NoError(t, l.delivered(items, nil))
	return l, held
}

func drafted(t *testing.T, data schema.Data, turn int32) draft {
	t.Helper()
	body, err := schema.MarshalData(data)
	require.NoError(t, err)
	return draft{data: data, turn: turn, at: time.Now(), body: body}
}

func TestLedger_EventAcknowledged_ProvesTheEpoch(t *testing.T) {
	l, held := startedLedger(t)
	require.False(t, l.isStarting())
	require.Equal(t, []bool{true}, *held)
	last, id := l.end()
	require.EqualValues(t, 1, last)
	require.NotEmpty(t, id)
	proven, err := l.proven(time.Hour)
	require.NoError(t, err)
	require.True(t, proven)

	items, err := l.resumeOrSeal([]draft{drafted(t, &schema.TurnStartedData{Turn: 1}, 1)})
	require.NoError(t, err)
	l.mu.Lock()
	l.durableLocked(items[0], 2, time.Time{})
	l.mu.Unlock()
	proven, err = l.proven(time.Hour)
	require.NoError(t, err)
	require.False(t, proven, "an event that is found in the log proves nothing")
}

func TestLedger_DeliveryWithoutAnswer_SameDraftsGoOnAndOthersAreRefused(t *testing.T) {
	l, _ := startedLedger(t)
	d := drafted(t, &schema.TurnStartedData{Turn: 1}, 1)
	items, err := l.resumeOrSeal([]draft{d})
	require.NoError(t, err)
	items[0].sent = true
	require.ErrorIs(t, l.delivered(items, ErrUnavailable), ErrUnresolved)
	require.ErrorIs(t, l.err(), ErrUnresolved)

	again, err := l.resumeOrSeal([]draft{d})
	require.NoError(t, err)
	require.Same(t, items[0], again[0])
	_, err = l.resumeOrSeal([]draft{drafted(t, &schema.TurnStartedData{Turn: 1, Purpose: schema.PurposeRecovery}, 1)})
	require.ErrorIs(t, err, ErrUnresolved)
}

func TestLedger_Dead_LeavesTheHandAndEndsWork(t *testing.T) {
	l, held := startedLedger(t)
	_, changed, err := l.check(func(*localFold) (bool, error) { return false, nil })
	require.NoError(t, err)
	first := errors.New("first")
	require.Equal(t, first, l.die(first))
	require.Equal(t, first, l.die(errors.New("second")), "the first error stays")
	<-changed
	require.Equal(t, first, context.Cause(l.halt))
	require.Equal(t, []bool{true, false}, *held)
	_, err = l.resumeOrSeal([]draft{drafted(t, &schema.TurnStartedData{Turn: 1}, 1)})
	require.Equal(t, first, err)
}

func TestFollower_NoticeMeanwhile_IsFollowedUpByTheSameLook(t *testing.T) {
	t.Parallel()
	var w follower
	var places []schema.StreamSequence
	w.ended = func() bool { return false }
	w.look = func(_ context.Context, upTo schema.StreamSequence) error {
		if places = append(places, upTo); len(places) == 1 {
			require.False(t, w.notice(9), "a look is under way")
		}
		return nil
	}
	require.True(t, w.notice(5))
	require.NoError(t, w.lookUntil(t.Context()))
	require.Equal(t, []schema.StreamSequence{5, 9}, places)
	require.True(t, w.notice(10), "the look before is over")
}
