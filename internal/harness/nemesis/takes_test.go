//go:build unix

package nemesis_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
)

// Figures of a process.
const (
	goroutines = "goroutines"
	openFiles  = "open files"
	resident   = "resident memory"
	heapInUse  = "heap in use"
	heapLive   = "heap live"
	processor  = "processor"
)

// takes is a process's current resource usage, as it reports. The world must have metrics.
func (p *process) takes(ctx context.Context) (map[string]float64, error) {
	var said struct {
		HTTP    string `json:"http"`
		Metrics string `json:"metrics"`
	}
	if !p.served {
		return nil, fmt.Errorf("%s has not begun", p.name)
	}
	if err := json.Unmarshal([]byte(p.said), &said); err != nil {
		return nil, fmt.Errorf("%s said %q: %w", p.name, p.said, err)
	}
	if said.HTTP != "" {
		said.Metrics = said.HTTP + "/metrics"
	}
	seen, err := scrape(ctx, said.Metrics)
	if err != nil {
		return nil, err
	}
	return map[string]float64{
		goroutines: seen["go_goroutines"], openFiles: seen["process_open_fds"], resident: seen["process_resident_memory_bytes"],
		heapInUse: seen["go_memstats_heap_inuse_bytes"],
		// The collector begins when the heap is twice what was in use at its last end.
		heapLive:  seen["go_memstats_next_gc_bytes"] / 2,
		processor: seen["process_cpu_seconds_total"],
	}, nil
}

// scrape reads a process's metrics without labels.
func scrape(ctx context.Context, url string) (_ map[string]float64, err error) {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return nil, err
	}
	request.Close = true // it shall not be among what the process has open
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, response.Body.Close()) }()
	seen := make(map[string]float64)
	lines := bufio.NewScanner(response.Body)
	for lines.Scan() {
		name, value, _ := strings.Cut(lines.Text(), " ")
		if n, err := strconv.ParseFloat(value, 64); err == nil && !strings.ContainsAny(name, "#{") {
			seen[name] = n
		}
	}
	if len(seen) == 0 {
		return nil, fmt.Errorf("%s: no figures (%s)", url, response.Status)
	}
	return seen, lines.Err()
}
