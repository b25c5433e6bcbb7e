package cli

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/nats/access"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// attackFor measures: go test ./internal/cli -run Neighbours -v -attack 30s, without other load on the machine.
var attackFor = flag.Duration("attack", time.Second, "how long each of the five quiet and five attacked parts of the test of neighbours lasts")

// An observer and an executor of the fleet read all that they may; an operator of another fleet on the same servers reads
// and writes; each has a key of its own. Between the attacks an executor publishes, claims and takes over as if there had been none. The
// test logs how much slower that is during the attacks, and asserts nothing about it: on a small machine all processes share
// the processors. Takeovers by the
// key that all executors share are not among the attacks.
func TestNeighbours_AtTheirWorst_LeaveNothingBehind(t *testing.T) {
	if testing.Short() {
		t.Skip("short: a cluster of three servers")
	}
	const calm, wild = "payments", "rivals"
	s := startSecured(t, calm, wild)
	s.daemon(t, calm)
	s.daemon(t, wild)
	ctx, cancel := context.WithTimeout(t.Context(), 5*securedWait+10**attackFor)
	defer cancel()
	f := s.executorWith(t, calm, "one", s.optionsOf(t, calm, access.Executor, "executor.second"))
	begin := func(f *publisher.Fleet, id string, messages, size int) *publisher.Run {
		r, err := f.Start(ctx, publisher.RunSpec{ID: id})
		require.NoError(t, err)
		for range messages {
			require.NoError(t, r.AddMessage(ctx, schema.Message{Role: schema.RoleUser, Parts: []schema.Part{schema.Text(strings.Repeat("x", size))}}))
		}
		return r
	}
	r := begin(f, "r1", 1, 100)
	begin(f, "small", 1, 100)
	begin(f, "large", 50, 100<<10) // two pages
	begin(s.executor(t, wild, "other"), "theirs", 50, 100<<10)

	var on atomic.Bool
	var asked, refused atomic.Int64
	var floods sync.WaitGroup
	flooding, stop := context.WithCancel(ctx)
	defer floods.Wait()
	defer stop()
	flood := func(fleet string, role access.Role, verb, run string, body func(n int64) string) {
		u := s.connect(t, fleet, role)
		for range 32 {
			replies := make(chan *nats.Msg, 4096)
			inbox := u.NewInbox()
			_, err := u.ChanSubscribe(inbox, replies)
			require.NoError(t, err)
			floods.Go(func() {
				for flooding.Err() == nil {
					if !on.Load() {
						within(flooding, 10*time.Millisecond)
						continue
					}
					_ = u.PublishRequest(schema.ServiceSubject(verb, fleet, run), inbox, []byte(body(asked.Add(1))))
					late := time.After(10 * time.Second)
					for ended := false; !ended; {
						select {
						case m := <-replies:
							kind := m.Header.Get(schema.HeaderKind)
							if ended = kind == schema.KindEnd || kind == ""; kind == "" {
								refused.Add(1)
								within(flooding, 10*time.Millisecond)
							}
						case <-late:
							ended = true
						case <-flooding.Done():
							return
						}
					}
				}
			})
		}
	}
	always := func(body string) func(int64) string { return func(int64) string { return body } }
	flood(calm, access.Observer, schema.VerbGet, "large", always(`{"view":"events"}`))
	flood(calm, access.Observer, schema.VerbGet, "large", func(n int64) string { return fmt.Sprintf(`{"at":"record:%d"}`, 1+n*37%50) })
	flood(calm, access.Observer, schema.VerbList, "", always(`{}`+strings.Repeat(" ", access.ObserverPayload-2)))
	flood(calm, access.Executor, schema.VerbGet, "large", always(`{"view":"events"}`))
	flood(wild, access.Operator, schema.VerbGet, "theirs", always(`{"view":"events"}`))
	flood(wild, access.Operator, schema.VerbMark, "theirs", always(`{"name":"m","by":"x","move":true}`))

	took := map[string]*[2][]time.Duration{"publish": {}, "claim": {}, "recover": {}}
	failed := map[string]int{}
	for part := range 10 {
		attacked := part % 2
		on.Store(attacked == 1)
		measure := func(name string, do func() error) {
			began := time.Now()
			err := do()
			took[name][attacked] = append(took[name][attacked], time.Since(began))
			if attacked == 0 {
				require.NoError(t, err, "%s in part %d", name, part)
			} else if err != nil {
				failed[name]++
			}
		}
		for end := time.Now().Add(*attackFor); time.Now().Before(end); {
			measure("publish", func() error {
				return r.AddMessage(ctx, schema.Message{Role: schema.RoleUser, Parts: []schema.Part{schema.Text("calm")}})
			})
			measure("claim", func() error {
				_, err := f.Claim(ctx, publisher.ClaimSpec{Agents: []string{"none"}})
				if errors.Is(err, publisher.ErrNothing) {
					return nil
				}
				return err
			})
			measure("recover", func() error {
				_, err := f.Resume(ctx, "small", publisher.ResumeSpec{})
				return err
			})
		}
	}
	require.Positive(t, asked.Load())
	for name, parts := range took {
		var p99 [2]time.Duration
		for i, list := range parts {
			require.NotEmpty(t, list, name)
			slices.Sort(list)
			p99[i] = list[len(list)*99/100]
			t.Logf("%s, attacked %v: median %s, p99 %s of %d", name, i == 1, list[len(list)/2], p99[i], len(list))
		}
		t.Logf("%s: p99 %.1f times, %d failed", name, float64(p99[1])/float64(p99[0]), failed[name])
	}
	t.Logf("attack: %d requests, %d refused", asked.Load(), refused.Load())
}

// within waits for a pause, or the end of a context.
func within(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}
