package e2e_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/harness/testbin"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// loopVariable makes this test binary an executor whose agent is a [publisher.Loop].
const loopVariable = "WAYMARK_E2E_LOOP"

// loopAgent is the agent of its runs.
const loopAgent = "loop"

// loopSettings are the settings of an executor of loops.
type loopSettings struct {
	Name     string `json:"name"`
	StateDir string `json:"state_dir"`
	// Model is the address of the model, and Mails the file to which the tool mail adds a line.
	Model string `json:"model"`
	Mails string `json:"mails"`
	// ToolTimeout bounds a tool, in milliseconds; 0 does not. Stuck tools do not return.
	ToolTimeout int64 `json:"tool_timeout_ms,omitzero"`
	Stuck       bool  `json:"stuck,omitzero"`
}

// loopRequest is the request to a model of the loops.
type loopRequest struct {
	Executor string           `json:"executor"`
	Run      string           `json:"run"`
	Epoch    schema.Epoch     `json:"epoch"`
	Turn     int32            `json:"turn"`
	Messages []schema.Message `json:"messages"`
}

// loopCall is a call of an answer.
type loopCall struct {
	ID   string `json:"id"`
	Tool string `json:"tool"`
	At   int    `json:"at"`
}

func loopMain(settings string) int {
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin) // ends with the parent
		cancel()
	}()
	if err := loopServe(ctx, settings); err != nil && !errors.Is(err, context.Canceled) {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func loopServe(ctx context.Context, text string) error {
	var settings loopSettings
	if err := json.Unmarshal([]byte(text), &settings); err != nil {
		return err
	}
	nc, _, err := dial(ctx, settings.StateDir)
	if err != nil {
		return err
	}
	defer nc.Close()
	fleet, err := publisher.Connect(ctx, publisher.Config{
		Conn: nc, Executor: settings.Name, PublishTimeout: patience, RequestTimeout: patience,
	})
	if err != nil {
		return err
	}
	executor, err := fleet.NewExecutor(publisher.ExecutorSpec{
		Agents: map[string]func(context.Context, *publisher.Run) (publisher.Work, error){
			loopAgent: func(_ context.Context, run *publisher.Run) (publisher.Work, error) {
				return settings.loop(run.Epoch()).Work, nil
			},
		},
		WaitDetached: true,
		OnOutcome: func(run string, outcome publisher.Outcome, err error) {
			if err != nil {
				fmt.Fprintln(os.Stderr, run, outcome, err)
			}
		},
	})
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintln(os.Stdout, "ready"); err != nil {
		return err
	}
	return executor.Serve(ctx)
}

// loop is the agent: two pure tools, one that may run again, and one that must not.
func (s *loopSettings) loop(epoch schema.Epoch) publisher.Loop {
	type in struct {
		At int `json:"at"`
	}
	tool := func(name string, replay schema.Replay, effect func(context.Context) error) publisher.Tool {
		return publisher.NewTool(name, "", replay, func(ctx context.Context, in in) (string, error) {
			if s.Stuck {
				select {}
			}
			if err := loopPause(ctx); err != nil {
				return "", err
			}
			if effect != nil {
				if err := effect(ctx); err != nil {
					return "", err
				}
			}
			return loopResult(name, in.At), loopPause(ctx)
		})
	}
	return publisher.Loop{
		System: "Work.", ToolTimeout: time.Duration(s.ToolTimeout) * time.Millisecond,
		Model: func(ctx context.Context, request publisher.ModelRequest) (publisher.Answer, error) {
			return s.ask(ctx, loopRequest{s.Name, request.Run, epoch, request.Turn, request.Messages})
		},
		Tools: []publisher.Tool{
			tool("look", publisher.Pure, nil), tool("price", publisher.Pure, nil), tool("put", publisher.Idempotent, nil),
			tool("mail", publisher.Hold, func(ctx context.Context) error {
				file, err := os.OpenFile(s.Mails, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
				if err != nil {
					return err
				}
				_, err = fmt.Fprintln(file, publisher.InvocationOf(ctx).IdempotencyKey)
				return errors.Join(err, file.Close())
			}),
		},
	}
}

// loopPause is the time of a model, and half of the time of a tool: random.
func loopPause(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(time.Duration(rand.IntN(80)) * time.Millisecond): //nolint:gosec // no secret
		return nil
	}
}

func loopResult(tool string, at int) string { return fmt.Sprintf("%s of %d", tool, at) }

// ask asks the model, which answers with calls, or with none as its last answer.
func (s *loopSettings) ask(ctx context.Context, request loopRequest) (answer publisher.Answer, err error) {
	body, err := json.Marshal(request)
	if err != nil {
		return answer, err
	}
	post, err := http.NewRequestWithContext(ctx, http.MethodPost, s.Model, bytes.NewReader(body))
	if err != nil {
		return answer, err
	}
	reply, err := http.DefaultClient.Do(post)
	if err != nil {
		return answer, err
	}
	defer reply.Body.Close() //nolint:errcheck // only read
	var calls []loopCall
	if err := json.UnmarshalRead(reply.Body, &calls); err != nil {
		return answer, err
	}
	answer.Message = schema.Message{Role: schema.RoleAssistant, Parts: []schema.Part{schema.Text(fmt.Sprintf("This is answer %d.", request.Turn))}}
	for _, c := range calls {
		answer.Calls = append(answer.Calls, publisher.ToolCall{ID: c.ID, Name: c.Tool, Arguments: []byte(fmt.Sprintf(`{"at":%d}`, c.At))})
	}
	return answer, nil
}

// loopPlans is the number of different conversations.
const loopPlans = 6

// planOf returns the model's answers in the turns of a run, whose id ends with the number of its plan.
func planOf(run string) (plan [][]loopCall) {
	rnd := rand.New(rand.NewPCG(uint64(run[len(run)-1]), 3)) //nolint:gosec // a test's
	tools := []string{"look", "price", "put", "mail"}
	for range 2 + rnd.IntN(4) {
		var calls []loopCall
		for i := range 1 + rnd.IntN(4) {
			calls = append(calls, loopCall{fmt.Sprint("c", i), tools[rnd.IntN(len(tools))], rnd.IntN(100)})
		}
		plan = append(plan, calls)
	}
	return append(plan, nil)
}

// loopModel answers by the plan, and records its requests.
type loopModel struct {
	mu    sync.Mutex
	asked map[string][]loopRequest // by run
	by    map[string]int           // by executor
}

// askedBy is how often an executor has asked.
func (m *loopModel) askedBy(executor string) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.by[executor]
}

func (m *loopModel) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var request loopRequest
	if err := json.UnmarshalRead(r.Body, &request); err != nil {
		return // its client was killed
	}
	m.mu.Lock()
	m.asked[request.Run] = append(m.asked[request.Run], request)
	m.by[request.Executor]++
	m.mu.Unlock()
	if loopPause(r.Context()) != nil {
		return
	}
	plan := planOf(request.Run)
	if int(request.Turn) > len(plan) {
		http.Error(w, "the run has no such turn", http.StatusBadRequest)
		return
	}
	_ = json.MarshalWrite(w, plan[request.Turn-1])
}

// loopSiege kills executors of loops, and checks what becomes of their runs.
type loopSiege struct {
	*world
	rnd      *rand.Rand
	model    *loopModel
	settings loopSettings
	fleet    *publisher.Fleet
	workers  []*child
	runs     []string
	ended    map[string]bool
	// seen are calls that had a result at the last look, with it.
	seen    map[string]map[schema.CallKey]schema.Call
	settled map[schema.Settlement]int
	// released counts the runs that were quarantined.
	released int
}

// Three executors are killed at random moments while their agents call a model and run tools. Each run reaches the
// conversation of an undisturbed one; exactly-once effects happen once; the model is called at most once more for
// each executor that died.
func TestLoop_ExecutorsKilledAtRandomMoments_ComeToTheSameConversations(t *testing.T) {
	if testing.Short() {
		t.Skip("short: real processes are started and killed")
	}
	kills := 500
	if !testbin.Full(t) {
		kills = 30
		t.Logf("%d kills; WAYMARK_E2E_FULL=1 does 500", kills)
	}
	model := &loopModel{asked: make(map[string][]loopRequest), by: make(map[string]int)}
	server := httptest.NewServer(model)
	t.Cleanup(server.Close)
	w := newWorld(t, shortSilence...)
	s := &loopSiege{
		world: w, rnd: random(t), model: model, fleet: w.fleet(t, "person"), ended: make(map[string]bool),
		settings: loopSettings{StateDir: w.state(), Model: server.URL, Mails: filepath.Join(w.dir, "mails.txt")},
		seen:     make(map[string]map[schema.CallKey]schema.Call), settled: make(map[schema.Settlement]int),
	}
	for i := range 3 {
		s.workers = append(s.workers, s.worker(t, fmt.Sprint("worker-", i)))
	}
	for range loopPlans {
		s.submit(t)
	}
	s.awaitEnds(t)
	undisturbed := make([]string, loopPlans)
	for i, run := range s.runs {
		undisturbed[i] = conversationOf(t, s.get(t, run))
	}
	for n := range kills {
		for len(s.runs)-len(s.ended) < 12 {
			s.submit(t)
		}
		s.look(t)
		i := s.rnd.IntN(len(s.workers))
		s.awaitWork(t, i)
		s.workers[i].kill9(t)
		s.workers[i] = s.worker(t, fmt.Sprintf("worker-%d-%d", i, n/2)) // every other one under the name of the one before
		s.person(t)
	}
	s.awaitEnds(t)
	s.prove(t, kills, undisturbed)
}

func (s *loopSiege) worker(t *testing.T, name string) *child {
	t.Helper()
	settings := s.settings
	settings.Name = name
	return s.again(t, name, loopVariable, settings).ready(t)
}

// awaitWork returns at a random moment after an executor has begun to work, or when it has long found nothing to do.
func (s *loopSiege) awaitWork(t *testing.T, i int) {
	t.Helper()
	began := s.model.askedBy(s.workers[i].name)
	for deadline := time.Now().Add(3 * time.Second); s.model.askedBy(s.workers[i].name) == began && time.Now().Before(deadline); {
		s.person(t)
	}
	timer := time.NewTimer(time.Duration(s.rnd.IntN(300)) * time.Millisecond)
	defer timer.Stop()
	select {
	case <-t.Context().Done():
	case <-timer.C:
	}
}

func (s *loopSiege) submit(t *testing.T) {
	t.Helper()
	run := fmt.Sprintf("run-%d-%d", len(s.runs), len(s.runs)%loopPlans)
	_, err := s.fleet.Submit(t.Context(), publisher.RunSpec{ID: run, Agent: loopAgent, Task: "Do it."})
	require.NoError(t, err)
	s.runs = append(s.runs, run)
}

func (s *loopSiege) get(t *testing.T, run string) *schema.State {
	t.Helper()
	state, err := s.fleet.Get(t.Context(), run)
	require.NoError(t, err, run)
	return state
}

// look notes the results that a run has, which it must keep.
func (s *loopSiege) look(t *testing.T) {
	t.Helper()
	run := s.runs[len(s.runs)-1-s.rnd.IntN(12)]
	state := s.get(t, run)
	if s.seen[run] == nil {
		s.seen[run] = make(map[schema.CallKey]schema.Call)
	}
	for i := range state.Calls {
		if c := &state.Calls[i]; c.ClosedAt != "" {
			s.seen[run][c.CallKey] = *c
		}
	}
}

// person settles the mails with an unknown outcome, by the mailbox, releases runs that were killed too often, and
// records those that have ended.
func (s *loopSiege) person(t *testing.T) {
	t.Helper()
	for _, run := range s.runs {
		if s.ended[run] {
			continue
		}
		head, err := s.fleet.Head(t.Context(), run)
		require.NoError(t, err, run)
		require.NotEqual(t, schema.StatusFailed, head.Status, run)
		if head.Status.Terminal() {
			s.ended[run] = true
		}
		if head.Quarantined(0) {
			// Three executors in a row were killed before they could report that a mail is held.
			s.cli(t, "release", run)
			s.released++
		}
		for _, held := range head.Interrupts {
			require.Equal(t, schema.WaitToolInDoubt, held.Reason)
			i := slices.IndexFunc(head.OpenCalls, func(c schema.OpenCall) bool {
				return c.Turn == held.Turn && c.ToolCallID == held.ToolCallID && c.Occurrence == held.Occurrence
			})
			require.GreaterOrEqual(t, i, 0)
			call := head.OpenCalls[i]
			require.Equal(t, "mail", call.Name, "nothing else is held")
			request := schema.SettleRequest{CallKey: call.CallKey, How: schema.SettledRerun, By: "person"}
			if slices.Contains(s.mails(t), call.IdempotencyKey(run)) {
				at := planOf(run)[held.Turn-1][slices.IndexFunc(planOf(run)[held.Turn-1], func(c loopCall) bool { return c.ID == held.ToolCallID })].At
				request.How, request.Result = schema.SettledDecided, []byte(fmt.Sprintf("%q", loopResult("mail", at)))
			}
			_, err := s.fleet.Settle(t.Context(), run, request)
			require.NoError(t, err, run)
			s.settled[request.How]++
		}
	}
}

// mails are the keys of those that were sent.
func (s *loopSiege) mails(t *testing.T) []string {
	t.Helper()
	text, err := os.ReadFile(s.settings.Mails)
	if err != nil {
		require.ErrorIs(t, err, os.ErrNotExist)
	}
	return strings.Fields(string(text))
}

func (s *loopSiege) awaitEnds(t *testing.T) {
	t.Helper()
	ticker := time.NewTicker(100 * time.Millisecond)
	defer ticker.Stop()
	for deadline := time.Now().Add(2 * patience); ; <-ticker.C {
		s.person(t)
		if len(s.ended) == len(s.runs) {
			return
		}
		if time.Now().After(deadline) {
			require.Fail(t, "runs do not end", s.open(t))
		}
	}
}

// open lists the runs that have not ended, and their states.
func (s *loopSiege) open(t *testing.T) (said string) {
	t.Helper()
	for _, run := range s.runs {
		if s.ended[run] {
			continue
		}
		head, err := s.fleet.Head(t.Context(), run)
		require.NoError(t, err, run)
		said += fmt.Sprintf("%s: %s by %s, epoch %d, turn %d, %d claims without progress, open calls %v\n",
			run, head.Status, head.Executor, head.Epoch, head.Turn, head.Stalled, head.OpenCalls)
	}
	return said
}

func conversationOf(t *testing.T, s *schema.State) string {
	t.Helper()
	text, err := json.Marshal(s.Conversation())
	require.NoError(t, err)
	return string(text)
}

func (s *loopSiege) prove(t *testing.T, kills int, undisturbed []string) {
	t.Helper()
	sent := make(map[string]int)
	for _, key := range s.mails(t) {
		sent[key]++
	}
	epochs, requests, lost, mails := 0, 0, 0, 0
	for i, run := range s.runs {
		state := s.get(t, run)
		require.Equal(t, schema.StatusCompleted, state.Head.Status, run)
		require.Equal(t, undisturbed[i%loopPlans], conversationOf(t, state), run)
		byKey := make(map[schema.CallKey]schema.Call)
		for j := range state.Calls {
			c := &state.Calls[j]
			byKey[c.CallKey] = *c
			if c.Name == "mail" {
				mails++
				key := c.CallKey.IdempotencyKey(run)
				require.Equal(t, 1, sent[key], "mail %s", key)
			}
		}
		for key, had := range s.seen[run] {
			require.Equal(t, had, byKey[key], "a result of run %s that was recorded", run)
		}
		epochs += int(state.Head.Epoch) //nolint:gosec // few
		asked := s.model.asked[run]
		requests += len(asked)
		lost += len(asked) - len(state.Turns)
		s.proveRequests(t, run, asked)
	}
	require.Len(t, sent, mails)
	t.Logf("%d kills, %d epochs, %d runs, %d mails once each (%d of them settled as sent, %d sent on a person's word), %d of %d requests lost, %d runs released from quarantine",
		kills, epochs, len(s.runs), mails, s.settled[schema.SettledDecided], s.settled[schema.SettledRerun], lost, requests, s.released)
	require.Positive(t, lost, "no executor died while its model was asked")
	require.Positive(t, s.settled[schema.SettledDecided]+s.settled[schema.SettledRerun], "no executor died in a mail")
}

// proveRequests sees that each executor that a run had lost one request at most, its last, and asked nothing twice.
func (s *loopSiege) proveRequests(t *testing.T, run string, asked []loopRequest) {
	t.Helper()
	last := make(map[schema.Epoch]int32)
	for _, r := range asked {
		require.Greater(t, r.Turn, last[r.Epoch], "run %s asked in epoch %d for turn %d again", run, r.Epoch, r.Turn)
		last[r.Epoch] = r.Turn
	}
	for _, r := range asked {
		if r.Turn == last[r.Epoch] {
			continue
		}
		for _, other := range asked {
			require.False(t, other.Epoch > r.Epoch && other.Turn <= r.Turn, "run %s: turn %d was answered in epoch %d, and asked for in epoch %d", run, r.Turn, r.Epoch, other.Epoch)
		}
	}
}
