package e2e_test

import (
	"context"
	"fmt"
	"io"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go"

	"github.com/waymarkio/waymark/internal/journal"
	"github.com/waymarkio/waymark/schema"
)

// shopVariable makes this test binary the tool shop: a separate service with the effects of tools with policy verify,
// which answers what became of a call. It survives executors and daemon.
const shopVariable = "WAYMARK_E2E_SHOP"

// Subjects of the shop, and its answer to an order that was carried out.
const (
	shopDo     = "e2e.shop.do"
	shopVerify = "e2e.shop.verify"
	shopDone   = "done"
)

type shopSettings struct {
	StateDir string `json:"state_dir"`
	Journal  string `json:"journal"`
}

// shopOrder is the request of an executor's tool.
type shopOrder struct {
	Run string `json:"run"`
	schema.CallKey
	Epoch schema.Epoch `json:"epoch"`
}

type shopCall struct {
	run string
	key schema.CallKey
}

// shop records the orders, and the epoch below which an order is refused: an executor that was told that a call has
// no effect must be able to rely on it.
type shop struct {
	mu      sync.Mutex
	witness *journal.Writer
	done    map[shopCall]bool
	refused map[shopCall]schema.Epoch
}

func shopMain(settings string) int {
	if err := shopServe(settings); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func shopServe(settings string) error {
	var s shopSettings
	if err := json.Unmarshal([]byte(settings), &s); err != nil {
		return err
	}
	witness, err := journal.OpenUnsynced(s.Journal, time.Now)
	if err != nil {
		return err
	}
	nc, closed, err := dial(context.Background(), s.StateDir)
	if err != nil {
		return err
	}
	open := &shop{witness: witness, done: make(map[shopCall]bool), refused: make(map[shopCall]schema.Epoch)}
	for subject, serve := range map[string]func([]byte) (string, error){shopDo: open.do, shopVerify: open.verify} {
		_, err := nc.Subscribe(subject, func(m *nats.Msg) {
			answer, err := serve(m.Data)
			if err != nil {
				answer = err.Error()
			}
			if err := m.Respond([]byte(answer)); err != nil {
				fmt.Fprintln(os.Stderr, err)
			}
		})
		if err != nil {
			return err
		}
	}
	if err := nc.Flush(); err != nil {
		return err
	}
	if _, err := fmt.Fprintln(os.Stdout, "ready"); err != nil {
		return err
	}
	_, _ = io.Copy(io.Discard, os.Stdin) // ends with the parent
	nc.Close()
	<-closed
	return witness.Close()
}

func (s *shop) do(body []byte) (string, error) {
	var o shopOrder
	if err := json.Unmarshal(body, &o); err != nil {
		return "", err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	call := shopCall{o.Run, o.CallKey}
	if o.Epoch < s.refused[call] {
		return fmt.Sprintf("epoch %d was told that this is not done", s.refused[call]), nil
	}
	s.done[call] = true
	return shopDone, s.witness.Write(journal.Entry{
		Op: journal.Effect, Run: o.Run, Call: callOf(o.CallKey), Name: o.ToolCallID, Replay: string(schema.ReplayVerify),
		Note: o.IdempotencyKey(o.Run),
	})
}

func (s *shop) verify(body []byte) (string, error) {
	var q schema.VerifyRequest
	if err := json.Unmarshal(body, &q); err != nil {
		return "", err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	call := shopCall{q.Run, q.CallKey}
	reply := schema.VerifyReply{Outcome: schema.VerifyNotDone, Reason: "the shop has no such order"}
	if s.done[call] {
		result, err := json.Marshal(toolResult(q.Run, q.CallKey), json.Deterministic(true))
		if err != nil {
			return "", err
		}
		reply = schema.VerifyReply{Outcome: schema.VerifyDone, Result: result}
	} else {
		s.refused[call] = max(s.refused[call], q.Epoch)
	}
	out, err := json.Marshal(reply)
	return string(out), err
}

// shop starts the tool shop.
func (w *world) shop(tb testing.TB) *child {
	tb.Helper()
	return w.again(tb, "shop", shopVariable, shopSettings{StateDir: w.state(), Journal: w.journal()}).ready(tb)
}
