package publisher_test

import (
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

func TestCall_SeveralCalls_TroubleInBetween_EachRecordedOnce(t *testing.T) {
	t.Parallel()
	tests := map[string]func(*world, *proxy){
		"a control event came first":     func(w *world, _ *proxy) { w.control("r1", 1, &schema.RunOrphanedData{}) },
		"its acknowledgement was lost":   func(_ *world, p *proxy) { p.dropAcks(1) },
		"two acknowledgements were lost": func(_ *world, p *proxy) { p.dropAcks(2) },
	}
	for name, trouble := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			p := newProxy(t, w.server.URL())
			f := w.fleet(func(c *publisher.Config) {
				c.Conn, c.URL, c.Options = nil, p.url(), w.server.Options()
			})
			run := start(t, f, "r1")
			turn := openTurn(t, run)
			trouble(w, p)
			var calls []publisher.ToolCall
			for i := range 20 {
				calls = append(calls, publisher.ToolCall{ID: fmt.Sprint(i), Name: "x"})
			}
			_, err := turn.Call(t.Context(), calls...)
			require.NoError(t, err)
			require.NoError(t, turn.End(t.Context(), publisher.TurnEnd{}))
			s := w.requireSameFold(run)
			require.Len(t, s.Calls, 20)
			require.Zero(t, s.Head.Counts.Duplicates)
		})
	}
}

func TestFleet_ManyRuns_Concurrent(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	f := w.fleet()
	var wait sync.WaitGroup
	for i := range 48 {
		wait.Go(func() {
			run, err := f.Start(t.Context(), publisher.RunSpec{ID: fmt.Sprint("r", i)})
			for n := 0; err == nil && n < 20; n++ {
				if n%7 == 3 {
					w.control(run.ID(), 1, &schema.RunOrphanedData{})
				}
				err = run.AddMessage(t.Context(), user(fmt.Sprint(n)))
			}
			if err != nil {
				t.Errorf("run %d: %v", i, err)
				return
			}
			w.requireSameFold(run)
		})
	}
	wait.Wait()
}
