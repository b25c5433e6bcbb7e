package publisher_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// claimDesk answers claims: it gives out those of its runs that the recovery service lets it take over, as the daemon
// does for all runs of a fleet.
type claimDesk struct {
	w *world

	mu    sync.Mutex
	runs  []string
	given map[string]schema.ClaimReply
	// silent answers are not sent, although the run was taken over.
	silent int
	asked  []schema.ClaimRequest
}

// desk opens a claim desk for runs.
func (w *world) desk(runs ...string) *claimDesk {
	w.tb.Helper()
	d := &claimDesk{w: w, runs: runs, given: make(map[string]schema.ClaimReply)}
	nc := w.server.Conn(w.tb, nats.ReconnectBufSize(-1))
	sub, err := nc.Subscribe(schema.ServiceSubject(schema.VerbClaim, "default", ""), func(m *nats.Msg) {
		if body := d.answer(nc, m.Data); body != nil {
			_ = m.Respond(body)
		}
	})
	require.NoError(w.tb, err)
	require.NoError(w.tb, nc.Flush())
	w.tb.Cleanup(func() { _ = sub.Unsubscribe() })
	return d
}

func (d *claimDesk) add(run string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.runs = append(d.runs, run)
}

func (d *claimDesk) requests() []schema.ClaimRequest {
	d.mu.Lock()
	defer d.mu.Unlock()
	return append([]schema.ClaimRequest(nil), d.asked...)
}

func (d *claimDesk) answer(nc *nats.Conn, body []byte) []byte {
	d.mu.Lock()
	defer d.mu.Unlock()
	var request schema.ClaimRequest
	if err := json.Unmarshal(body, &request); err != nil {
		return nil
	}
	d.asked = append(d.asked, request)
	reply, ok := d.given[request.RequestID]
	if !ok {
		reply = schema.ClaimReply{RetryAfterMS: 1}
		for i, run := range d.runs {
			if !d.takeOver(nc, run, &request) {
				continue
			}
			reply = schema.ClaimReply{Run: run, Claimable: len(d.runs)}
			d.runs = append(d.runs[:i:i], d.runs[i+1:]...)
			d.given[request.RequestID] = reply
			break
		}
	}
	if d.silent > 0 {
		d.silent--
		return nil
	}
	out, err := json.Marshal(&reply)
	if err != nil {
		return nil
	}
	return out
}

func (d *claimDesk) takeOver(nc *nats.Conn, run string, c *schema.ClaimRequest) bool {
	body, err := json.Marshal(&schema.RecoverRequest{Executor: c.Executor, Instance: c.Instance, Reason: "claim", RequestID: c.RequestID})
	if err != nil {
		return false
	}
	m, err := nc.Request(schema.ServiceSubject(schema.VerbRecover, "default", run), body, patience)
	return err == nil && m.Header.Get(schema.HeaderErrorCode) == ""
}

// orphan says of a run that its executor fell silent, as the daemon does.
func (w *world) orphan(run string, epoch schema.Epoch) {
	w.tb.Helper()
	w.control(run, epoch, &schema.RunOrphanedData{Executor: "exec-1"})
}

func named(name string) func(*publisher.Config) {
	return func(c *publisher.Config) { c.Executor = name }
}

func TestAClaimBringsARunThatNobodyDrives(t *testing.T) {
	w := newWorld(t)
	w.serve()
	f := w.fleet()
	require.NoError(t, start(t, f, "r1").Mark(t.Context(), "here"))
	desk := w.desk("r1")
	second := w.fleet(named("exec-2"))
	_, err := second.Claim(t.Context(), publisher.ClaimSpec{Labels: map[string]string{"a": "b"}})
	require.ErrorIs(t, err, publisher.ErrNothing)
	nothing, ok := errors.AsType[*publisher.NothingError](err)
	require.True(t, ok)
	require.Equal(t, time.Millisecond, nothing.RetryAfter)
	w.orphan("r1", 1)
	run, err := second.Claim(t.Context(), publisher.ClaimSpec{})
	require.NoError(t, err)
	require.Equal(t, schema.Epoch(2), run.Epoch())
	w.requireSameFold(run)
	asked := desk.requests()
	require.Equal(t, map[string]string{"a": "b"}, asked[0].Labels)
	require.Equal(t, []string{"coder"}, asked[0].Agents)
	require.Equal(t, second.Instance(), asked[0].Instance)
	require.NotEqual(t, asked[0].RequestID, asked[1].RequestID)
}

func TestARunWhoseClaimHadNoAnswerIsNotLost(t *testing.T) {
	w := newWorld(t)
	w.serve()
	start(t, w.fleet(), "r1")
	w.orphan("r1", 1)
	desk := w.desk("r1")
	desk.silent = 100
	second := w.fleet(named("exec-2"), func(c *publisher.Config) { c.RequestTimeout = 200 * time.Millisecond })
	_, err := second.Claim(t.Context(), publisher.ClaimSpec{})
	require.ErrorIs(t, err, publisher.ErrUnavailable)
	require.Equal(t, "exec-2", w.fold("r1").Head.Executor, "the daemon gave it, and nobody has it in hand")
	desk.mu.Lock()
	desk.silent = 0
	desk.mu.Unlock()
	var run *publisher.Run
	require.Eventually(t, func() bool {
		run, err = second.Claim(t.Context(), publisher.ClaimSpec{})
		return err == nil
	}, patience, 10*time.Millisecond)
	require.Equal(t, "r1", run.ID())
	require.Equal(t, schema.Epoch(2), run.Epoch(), "the claim is continued, not made anew")
}

func TestTwoExecutorsClaimEachRunOnce(t *testing.T) {
	w := newWorld(t)
	w.serve()
	f := w.fleet()
	var runs []string
	for i := range 50 {
		runs = append(runs, fmt.Sprintf("r%d", i))
		start(t, f, runs[i])
		w.orphan(runs[i], 1)
	}
	w.desk(runs...)
	var mu sync.Mutex
	claimed := map[string]int{}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var group sync.WaitGroup
	for _, name := range []string{"exec-2", "exec-3"} {
		second := w.fleet(named(name))
		group.Go(func() {
			for run, err := range second.Claims(ctx, publisher.ClaimSpec{}) {
				if err == nil {
					err = run.End(t.Context(), publisher.RunEnd{})
				}
				mu.Lock()
				if err != nil {
					t.Errorf("%s: %v", name, err)
				}
				claimed[run.ID()]++
				if len(claimed) == len(runs) {
					cancel()
				}
				mu.Unlock()
			}
		})
	}
	group.Wait()
	require.Len(t, claimed, 50)
	for run, times := range claimed {
		require.Equal(t, 1, times, run)
		require.Equal(t, []string{"run.started", "run.orphaned", "run.resumed", "run.ended"}, names(w.log(run)))
	}
}

func TestClaimsStopWithTheirConsumer(t *testing.T) {
	w := newWorld(t)
	w.serve()
	f := w.fleet()
	for _, id := range []string{"r1", "r2"} {
		start(t, f, id)
		w.orphan(id, 1)
	}
	w.desk("r1", "r2")
	for run, err := range w.fleet(named("exec-2")).Claims(t.Context(), publisher.ClaimSpec{}) {
		require.NoError(t, err)
		require.Equal(t, "r1", run.ID())
		break
	}
	require.Equal(t, schema.StatusOrphaned, w.fold("r2").Head.Status)
	_, err := f.Claim(t.Context(), publisher.ClaimSpec{Agents: []string{"a.b"}})
	require.ErrorIs(t, err, publisher.ErrConfig)
	require.NoError(t, f.Close(t.Context()))
	var errs []error
	for _, err := range f.Claims(t.Context(), publisher.ClaimSpec{}) {
		errs = append(errs, err)
	}
	require.Len(t, errs, 1)
	require.ErrorIs(t, errs[0], publisher.ErrStopped)
}

func TestAClaimedRunThatMissesEventsIsGivenBack(t *testing.T) {
	w := newWorld(t)
	w.serve()
	start(t, w.fleet(), "r1")
	head := w.fold("r1").Head
	chain, err := schema.ParseHash(head.Chain)
	require.NoError(t, err)
	writer := schema.Writer{Fleet: "default", Run: "r1", Executor: "exec-1", Epoch: 1, Last: head.Sequence + 3, Chain: chain}
	e, _, err := writer.Event(&schema.CheckpointMarkedData{Name: "x"}, 0, time.Now(), chain, 0)
	require.NoError(t, err)
	w.put(e)
	w.orphan("r1", 1)
	desk := w.desk("r1")
	second := w.fleet(named("exec-2"))
	_, err = second.Claim(t.Context(), publisher.ClaimSpec{})
	require.ErrorIs(t, err, publisher.ErrIncomplete)
	require.Equal(t, schema.StatusInterrupted, w.fold("r1").Head.Status)
	require.Equal(t, 1, w.fold("r1").Head.Stalled, "in the end it is quarantined")
	desk.add("r1")
	run, err := second.Claim(t.Context(), publisher.ClaimSpec{AllowGaps: true})
	require.NoError(t, err)
	require.Equal(t, schema.Epoch(3), run.Epoch())
}
