package service_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/consumer/fold"
	"github.com/waymarkio/waymark/internal/nats/eventlog"
	"github.com/waymarkio/waymark/schema"
)

// mixed writes into one run what executors, fenced ones, foreign clients and faults write.
type mixed struct {
	*writer
	rng  *rand.Rand
	old  []schema.Record
	gone schema.Writer
}

// raw publishes without compare-and-set, like clients that do not use it.
func (x *mixed) raw(header nats.Header, body []byte) {
	ack, err := x.World.JS.PublishMsg(x.World.TB.Context(), &nats.Msg{Subject: x.World.Names.EventSubject(x.Run.Run), Header: header, Data: body})
	require.NoError(x.World.TB, err)
	x.Last = ack.Sequence
	x.old = append(x.old, schema.NewRecord(schema.StreamSequence(ack.Sequence), header, body))
}

func (x *mixed) event(e *schema.Event) {
	header, body := e.Encode()
	x.raw(header, body)
}

func (x *mixed) step(w *serviceWorld, n int) {
	began := x.Run.Last > 0 || x.Run.Epoch > 1
	at := time.Unix(1_700_000_000+int64(n), 0)
	switch k := x.rng.IntN(10); {
	case k == 0:
		x.raw(nil, fmt.Appendf(nil, "garbage %d", n))
	case k == 1:
		x.raw(nats.Header{"Status": {"503"}, "N": {fmt.Sprint(n)}}, nil)
	case !began && x.rng.IntN(2) == 0:
		x.event(&schema.Event{ID: fmt.Sprintf("plain-%d", n), Source: "/elsewhere", Type: "com.example.noted", Time: schema.FormatTime(at)})
	case !began:
		x.Start()
		x.old = append(x.old, x.Acked...)
	case k == 2 && len(x.old) > 0:
		r := x.old[x.rng.IntN(len(x.old))]
		x.raw(r.Header, r.Body)
	case k == 3: // another event in the place of the last or the next but one
		e, err := x.Run.Event(&schema.PhaseStartedData{Phase: fmt.Sprintf("p%d", n)}, 0, at, 0)
		require.NoError(w.TB, err)
		e.Sequence += schema.Sequence(x.rng.IntN(3))
		e.ID = schema.EventID(e.Subject, e.Epoch, e.Sequence, e.ContentHash())
		x.event(e)
		if e.Sequence == x.Run.Last+1 {
			require.NoError(w.TB, x.Run.Commit(e))
		}
	case k == 4 && x.gone.Run != "": // fenced: perhaps the late result of a call in doubt
		e, err := x.gone.Event(&schema.ToolReturnedData{ToolCallID: fmt.Sprintf("call-%d", x.Turn), Result: []byte(`"late"`)}, x.Turn, at, 0)
		require.NoError(w.TB, err)
		x.event(e)
	case k == 5:
		x.Turn++
		x.Publish(&schema.TurnStartedData{Turn: x.Turn}, x.Turn)
		x.Publish(&schema.ToolCalledData{ToolCallID: fmt.Sprintf("call-%d", x.Turn), Name: "write", Arguments: []byte(`{}`), Replay: schema.ReplayIdempotent}, x.Turn)
	case k == 6:
		x.gone = x.Run
		req := takeover("executor-2", fmt.Sprintf("request-%d", n))
		req.View = schema.ViewEvents
		reply, a := w.recover(x.Run.Run, req)
		require.Equal(w.TB, reply.Head.Digest, a.fold(w.TB, x.Run.Run).Head.Digest)
		x.Run.Epoch, x.Run.Last, x.Last = reply.Epoch, reply.NextSequence-1, uint64(reply.LastStream)
	default:
		x.TurnOf(200)
	}
}

// Fold worker, service and client see one state, wherever the fold worker was stopped.
func TestFold_MixedLog_EveryFoldEqual(t *testing.T) {
	t.Parallel()
	seeds := 6
	if testing.Short() {
		seeds = 2
		t.Log("short: 2 of 6 seeds")
	}
	for seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			w := newServiceWorld(t)
			rng := rand.New(rand.NewPCG(uint64(seed), 7)) //nolint:gosec // a seed to be repeated
			var runs []*mixed
			for i := range 3 {
				runs = append(runs, &mixed{writer: w.writer(fmt.Sprintf("run-%d", i)), rng: rng})
			}
			cfg := fold.Config{SealBytes: 1 << 10, SealEvents: 12, BatchEvents: 5, CachedRuns: 1}
			_, stop := w.Fold(cfg)
			for n := range 150 {
				runs[rng.IntN(len(runs))].step(w, n)
				if rng.IntN(25) == 0 {
					stop()
					_, stop = w.Fold(cfg)
				}
			}
			for _, x := range runs {
				model := schema.NewState("default", x.Run.Run)
				require.NoError(t, eventlog.Read(t.Context(), w.JS, w.Names, x.Run.Run, 1, func(rec schema.Record) error {
					model.Apply(schema.NoKeys, &rec)
					return nil
				}))
				model.Settle()
				require.Eventually(t, func() bool {
					c, _, err := w.Shard.Checkpoints.GetFresh(t.Context(), x.Run.Run)
					return err == nil && c.Position == model.Head.Position
				}, time.Minute, 10*time.Millisecond)
				c, _, err := w.Shard.Checkpoints.GetFresh(t.Context(), x.Run.Run)
				require.NoError(t, err)
				stored, err := schema.EncodeCheckpoint(&schema.Checkpoint{Head: model.Head})
				require.NoError(t, err)
				want, err := schema.DecodeCheckpoint(stored)
				require.NoError(t, err)
				require.Equal(t, want.Head, c.Head)
				reply, a := w.get(x.Run.Run, schema.ViewEvents)
				require.Equal(t, want.Head, reply.Head)
				require.Equal(t, model, a.fold(t, x.Run.Run))
				reply, _ = w.get(x.Run.Run, schema.ViewState)
				require.Equal(t, want.Head, reply.Head)
				requireView(t, model, reply.State)
			}
		})
	}
}
