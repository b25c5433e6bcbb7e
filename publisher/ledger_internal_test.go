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
func startedLedger(t *testing.T) (s *sharedLedger, held *[]bool) {
	t.Helper()
	s = shared(newLedger(schema.Writer{Fleet: "f", Run: "r", Executor: "e"}, nil))
	held = new([]bool)
	s.held = func(in, _ bool, _ schema.Epoch) { *held = append(*held, in) }
	s.l.start(nil)
	items, err := s.l.seal([]draft{drafted(t, &schema.RunStartedData{Agent: "a", Executor: "e"}, 0)})
	require.NoError(t, err)
	require.Equal(t, handleStarting, s.l.stage)
	require.NoError(t, s.acknowledged(items[0], 1, time.Now()))
	require.NoError(t, s.delivered(items, nil))
	return s, held
}

func drafted(t *testing.T, data schema.Data, turn int32) draft {
	t.Helper()
	body, err := schema.MarshalData(data)
	require.NoError(t, err)
	return draft{data: data, turn: turn, at: time.Now(), body: body}
}

func TestLedger_EventAcknowledged_ProvesTheEpoch(t *testing.T) {
	s, held := startedLedger(t)
	l := &s.l
	require.Equal(t, handleUsable, l.stage)
	require.Equal(t, []bool{true}, *held)
	require.EqualValues(t, 1, l.last)
	require.NotEmpty(t, l.lastID)
	now := time.Now()
	require.Positive(t, l.provenFor(time.Hour, now))
	require.LessOrEqual(t, l.provenFor(time.Hour, now.Add(2*time.Hour)), time.Duration(0))

	items, err := l.seal([]draft{drafted(t, &schema.TurnStartedData{Turn: 1}, 1)})
	require.NoError(t, err)
	l.durable(items[0], 2, time.Time{})
	require.LessOrEqual(t, l.provenFor(time.Hour, now), time.Duration(0), "an event that is found in the log proves nothing")
}

func TestLedger_DeliveryWithoutAnswer_SameDraftsGoOnAndOthersAreRefused(t *testing.T) {
	s, _ := startedLedger(t)
	l := &s.l
	d := drafted(t, &schema.TurnStartedData{Turn: 1}, 1)
	items, err := l.seal([]draft{d})
	require.NoError(t, err)
	items[0].sent = true
	require.ErrorIs(t, l.delivered(items, ErrUnavailable), ErrUnresolved)
	require.ErrorIs(t, l.err(), ErrUnresolved)

	again, err := l.seal([]draft{d})
	require.NoError(t, err)
	require.Same(t, items[0], again[0])
	_, err = l.seal([]draft{drafted(t, &schema.TurnStartedData{Turn: 1, Purpose: schema.PurposeRecovery}, 1)})
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
	_, err = l.l.seal([]draft{drafted(t, &schema.TurnStartedData{Turn: 1}, 1)})
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
