package service_test

import (
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

// expecting is a takeover by a sender that saw an epoch.
func expecting(executor, request string, epoch schema.Epoch) schema.RecoverRequest {
	r := takeover(executor, request)
	r.ExpectedEpoch = epoch
	return r
}

// Many saw the run in its first epoch and decide at once, at two replicas: one takes it over, each other is told who.
func TestTakeover_ManyExpectTheSameEpoch_OneWinsAndTheOthersAreTold(t *testing.T) {
	t.Parallel()
	w := newServiceWorld(t)
	settings, _, err := kvstore.NewFleets(w.JS).Get(t.Context(), "default")
	require.NoError(t, err)
	w.serve(settings, serviceConfig{Name: "service-2"})
	for round := range 4 {
		run := fmt.Sprintf("run-%d", round)
		w.aRun(run, 2, 10)
		const askers = 8
		errs := make([]error, askers)
		var wg sync.WaitGroup
		for i := range askers {
			wg.Go(func() {
				_, errs[i] = w.ask(schema.VerbRecover, run, expecting(fmt.Sprintf("executor-%d", i), fmt.Sprintf("req-%d", i), 1))
			})
		}
		wg.Wait()
		reply, _ := w.get(run, schema.ViewHead)
		require.EqualValues(t, 2, reply.Head.Epoch)
		won := 0
		for i, err := range errs {
			if err == nil {
				won++
				require.Equal(t, fmt.Sprintf("executor-%d", i), reply.Head.Executor)
				continue
			}
			refusal, ok := errors.AsType[*schema.ServiceError](err)
			require.True(t, ok, err)
			require.Equal(t, schema.CodeConflict, refusal.Code)
			require.Contains(t, refusal.Message, "it is in epoch 2, with executor "+reply.Head.Executor+", and not in epoch 1")
		}
		require.Equal(t, 1, won)
	}
}

func TestTakeover_ExpectedEpochRepeated_IsTheFirstTry(t *testing.T) {
	t.Parallel()
	w := newServiceWorld(t)
	x := w.aRun("run-1", 2, 10)
	later := w.refused(schema.VerbRecover, "run-1", expecting("executor-2", "req-1", 7))
	require.Equal(t, schema.CodeConflict, later.Code)
	require.Equal(t, "run run-1 is in epoch 1, with executor executor-1, and not in epoch 7", later.Message, "there was no takeover")
	first, _ := w.recover("run-1", expecting("executor-2", "req-1", 1))
	again, _ := w.recover("run-1", expecting("executor-2", "req-1", 1))
	require.Equal(t, first, again)
	require.Contains(t, w.refused(schema.VerbCancel, "run-1", schema.CancelRequest{By: "ann", ExpectedEpoch: 1}).Message, "with executor executor-2")

	// A rewind opens its epoch before it is read again.
	back := expecting("executor-3", "req-2", 2)
	back.Reason, back.At = schema.TakeoverRewind, "turn:1"
	reply, _ := w.recover("run-1", back)
	require.EqualValues(t, 3, reply.Epoch)
	reply, _ = w.recover("run-1", back)
	require.EqualValues(t, 3, reply.Epoch)
	require.Contains(t, w.refused(schema.VerbRecover, "run-1", expecting("executor-2", "req-1", 1)).Message, "with executor executor-3", "its epoch is over")

	x.resume(reply, "executor-3")
	w.control(schema.VerbCancel, "run-1", schema.CancelRequest{By: "ann", ExpectedEpoch: 3})
	w.control(schema.VerbCancel, "run-1", schema.CancelRequest{By: "bob", ExpectedEpoch: 2}) // it is requested already
}
