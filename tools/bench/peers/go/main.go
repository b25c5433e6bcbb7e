// Command peers plays the turns of tools/bench by the Go clients of other systems: "peers restate SERVICE INGRESS", "peers dbos URL"
// or "peers temporal ADDRESS". It prints a line when it is ready. ../main.mjs starts the servers, writes a line of JSON with runs, and
// reads a line with their times. A module of its own: the clients' dependencies are large.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// output is what a boundary makes durable: the model's answer with its calls, or the result of a call.
type output struct {
	Text  string `json:"text"`
	Calls []struct {
		ID        string `json:"id"`
		Name      string `json:"name"`
		Arguments string `json:"arguments"`
	} `json:"calls,omitempty"`
}

// run is one run: what each boundary of its turns says, and when it was durable.
type run struct {
	ID    string     `json:"id"`
	Turns [][]output `json:"turns"`
	begun atomic.Bool
	clock clock
}

// clock has times in ms.
type clock struct {
	Began      float64   `json:"began"`
	Ended      float64   `json:"ended"`
	Boundaries []float64 `json:"boundaries"`
	Turns      []float64 `json:"turns"`
}

var (
	started = time.Now()
	runs    sync.Map // of *run, by id
	quiet   = slog.New(slog.DiscardHandler)
)

func now() float64 { return float64(time.Since(started)) / float64(time.Millisecond) }

// cpuTime is the processor time of this process in us.
func cpuTime() int64 {
	var used syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &used) // it has this process to tell of
	return (used.Utime.Nano() + used.Stime.Nano()) / 1000
}

func runOf(id string) *run {
	r, _ := runs.Load(id)
	return r.(*run) //nolint:forcetypeassert // there is nothing else in it
}

// play plays the run within a handler or workflow: step returns when what it was given is durable.
func play(id string, step func(turn, i int, o output) (output, error)) error {
	r := runOf(id)
	if r.begun.Swap(true) {
		return fmt.Errorf("run %s was begun again: its times would be those of a replay", id)
	}
	c := clock{Began: now()}
	c.Ended = c.Began
	for turn, outputs := range r.Turns {
		last := c.Ended
		for i, o := range outputs {
			recorded, err := step(turn, i, o)
			if err != nil {
				return err
			}
			if recorded.Text != o.Text || len(recorded.Calls) != len(o.Calls) {
				return fmt.Errorf("run %s: the system returned another output than the one it was given", id)
			}
			at := now()
			c.Boundaries, last = append(c.Boundaries, at-last), at
		}
		c.Turns, c.Ended = append(c.Turns, last-c.Ended), last
	}
	r.clock = c
	return nil
}

func serve(ctx context.Context) error {
	open := map[string]func(context.Context, ...string) (func(id string) error, error){"restate": restateAgent, "dbos": dbosAgent, "temporal": temporalAgent}
	start, err := open[os.Args[1]](ctx, os.Args[2:]...)
	if err != nil {
		return err
	}
	fmt.Println("{}")
	in := bufio.NewReader(os.Stdin)
	for {
		line, err := in.ReadBytes('\n')
		if err != nil {
			return nil // nothing more is asked
		}
		var all []*run
		if err := json.Unmarshal(line, &all); err != nil {
			return err
		}
		errs, began := make([]error, len(all)), cpuTime()
		var group sync.WaitGroup
		for i, r := range all {
			runs.Store(r.ID, r)
			group.Go(func() { errs[i] = start(r.ID) })
		}
		group.Wait()
		used := cpuTime() - began
		clocks := make([]clock, len(all))
		for i, r := range all {
			clocks[i] = r.clock
			runs.Delete(r.ID)
		}
		if err := errors.Join(errs...); err != nil {
			return err
		}
		if err := json.NewEncoder(os.Stdout).Encode(map[string]any{"clocks": clocks, "cpu_us": used}); err != nil {
			return err
		}
	}
}

func main() {
	if err := serve(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, "peers:", err)
		os.Exit(1) //nolint:forbidigo // this is main
	}
}
