//go:build unix

package nemesis_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go"

	"github.com/waymarkio/waymark/internal/harness/testbin"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// unrecorded is a run that is asked for by the thousand. The history knows nothing of it.
const unrecorded = "unrecorded"

// slowness is one way in which a store is slow.
type slowness struct {
	name string
	// begin makes it slow, end takes it back.
	begin, end func() error
}

// All messages of the server come late: to the daemon alone, to all clients, and, as root on Linux, because its disk
// does few writes a second. Publishers get an acknowledgement or an error in time, of a thousand concurrent requests
// those that cannot be served are refused, the daemon's memory is bounded, and everything works again without help.
func TestSlowStore_Load_ReportedNothingPilesUp(t *testing.T) {
	t.Parallel() // it mostly waits
	if testing.Short() {
		t.Skip("short: real servers and programs are broken")
	}
	s := ordinary()
	disk := slowDisk(t, &s)
	r := newRound(t, s, number(t, "WAYMARK_CHAOS_SEED", 1))
	took, asked := 2*time.Second, 1500
	if testbin.Full(t) {
		took, asked = 30*time.Second, 5000
	}
	c := r.crowd("besides", 2, 16, 50*time.Millisecond, s.timeout)
	r.unrecorded()
	everyClient := func() []string { return slices.Collect(maps.Keys(r.links)) }
	ways := []slowness{r.slowLinks("slow-store-for-the-daemon", []string{r.daemons[0].name}), r.slowLinks("slow-store", everyClient())}
	if disk != nil && testbin.Full(t) {
		ways = append(ways, slowness{"slow-disk", func() error { return disk.allow(r.nodes[0], 15) }, func() error { return disk.allow(r.nodes[0], 0) }})
	}
	if !testbin.Full(t) {
		ways = ways[1:]
	}
	asker := r.dial("asker", 0) // its own way to the server is never slow
	for _, way := range ways {
		before := peak(r.daemons[0])
		r.suffer(fault{name: way.name, strike: func(ctx context.Context, _ *storm) error {
			if err := way.begin(); err != nil {
				return err
			}
			var work sync.WaitGroup
			work.Go(func() { c.work(ctx, took) })
			err := r.ask(t, asker, asked)
			work.Wait()
			return errors.Join(err, way.end())
		}})
		c.held(t)
		r.moreMemory(t, before)
	}
	r.sumUp(t)
}

// slowLinks is a store whose answers, and requests to it, come late for some clients.
func (w *world) slowLinks(name string, clients []string) slowness {
	set := func(weather Weather) func() error {
		return func() error {
			for _, client := range clients {
				for _, link := range w.links[client] {
					link.Set(weather)
				}
			}
			return nil
		}
	}
	return slowness{name, set(Weather{Delay: 300 * time.Millisecond}), set(Weather{})}
}

// unrecorded begins a run that is asked for by the thousand.
func (w *world) unrecorded() {
	w.tb.Helper()
	fleet := w.fleet("unrecorded", 0, patience)
	run, err := fleet.Start(w.tb.Context(), publisher.RunSpec{ID: unrecorded, Task: "be asked for"})
	w.must(err)
	for range 20 {
		w.must(run.AddMessage(w.tb.Context(), schema.Message{Role: schema.RoleUser, Parts: []schema.Part{schema.Text("well?")}}))
	}
}

// ask sends many requests at once, some of them takeovers, and returns when each of them has had an answer: the
// requested result, or an error with the next step.
func (w *world) ask(t *testing.T, nc *nats.Conn, many int) error {
	t.Helper()
	inbox := nc.NewInbox()
	sub, err := nc.SubscribeSync(inbox + ".*")
	if err != nil {
		return err
	}
	if err := sub.SetPendingLimits(-1, -1); err != nil {
		return err
	}
	begun := time.Now()
	for i := range many {
		verb, request := schema.VerbGet, any(schema.GetRequest{View: schema.ViewHead})
		if i%20 == 0 {
			verb, request = schema.VerbRecover, schema.RecoverRequest{Executor: "asker", RequestID: fmt.Sprintf("%d-%d", begun.UnixNano(), i)}
		}
		body, err := json.Marshal(request)
		if err != nil {
			return err
		}
		if err := nc.PublishRequest(schema.ServiceSubject(verb, schema.DefaultFleet, unrecorded), fmt.Sprintf("%s.%d", inbox, i), body); err != nil {
			return err
		}
	}
	first, ends := make(map[string]bool), make(map[string]int)
	var slowest time.Duration
	for len(first) < many {
		m, err := sub.NextMsg(patience)
		if err != nil {
			return fmt.Errorf("%d of %d requests had an answer: %v: %w", len(first), many, ends, err)
		}
		if first[m.Subject] {
			continue
		}
		first[m.Subject], slowest = true, time.Since(begun)
		if m.Header.Get(schema.HeaderErrorCode) == "" {
			ends["answered"]++
			continue
		}
		var refused schema.ServiceError
		if err := json.Unmarshal(m.Data, &refused); err != nil {
			return fmt.Errorf("an error that says nothing: %q: %w", m.Data, err)
		}
		if refused.Hint == "" {
			return fmt.Errorf("an error without a next step: %w", &refused)
		}
		ends[string(refused.Code)]++
	}
	t.Logf("%d requests at once: %v, the last after %s", many, ends, slowest.Round(time.Millisecond))
	for code := range ends {
		if code != "answered" && code != string(schema.CodeOverloaded) && code != string(schema.CodeUnavailable) && code != string(schema.CodeConflict) {
			return fmt.Errorf("requests were refused as %s: %v", code, ends)
		}
	}
	return sub.Unsubscribe()
}
