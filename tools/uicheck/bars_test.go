package uicheck

import (
	"context"
	"fmt"
	"os"
	goruntime "runtime"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/heapprofiler"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// full reports whether full sizes are measured and compared with the bars (make uicheck FULL=1), and not a sample that only checks the code.
func full() bool { return os.Getenv("WAYMARK_UI_FULL") != "" }

// of returns the size of a case.
func of(sample, whole int) int {
	if full() {
		return whole
	}
	return sample
}

// rounds is how often a figure may be measured until it meets its bar: other load on the machine only makes it worse.
const rounds = 3

// times are durations of a repeated action, in milliseconds.
type times []float64

// percentile returns a percentile of the times.
func (l times) percentile(share float64) float64 {
	l = slices.Sorted(slices.Values(l))
	return l[min(int(float64(len(l))*share), len(l)-1)]
}

func (l times) String() string {
	return fmt.Sprintf("p50 %.0f ms, p95 %.0f ms, most %.0f ms of %d", l.percentile(.5), l.percentile(.95), l.percentile(1), len(l))
}

// within compares the 95th percentile of the measured times with a bar, in milliseconds.
func within(t *testing.T, what string, bar float64, measure func() times) {
	t.Helper()
	for round := 1; ; round++ {
		l := measure()
		load, _ := os.ReadFile("/proc/loadavg") // empty on other systems
		t.Logf("%s: %s; to reach %.0f ms; load %.5s", what, l, bar, load)
		if l.percentile(.95) < bar || !full() {
			return
		}
		require.Less(t, round, rounds, "%s takes longer than %.0f ms in each of %d rounds", what, bar, rounds)
	}
}

// opened follows a link to a page, and returns how long it took until the page had its rows.
func (b *tab) opened(from, link, rows string) float64 {
	b.Helper()
	b.show(from)
	b.await(`document.querySelector('` + link + `') !== null`)
	b.click(link)
	b.await(`location.pathname !== "` + from + `" && document.readyState === "complete" && document.querySelectorAll("` + rows + `").length > 0`)
	return b.loaded()
}

// loaded returns the time from the click until the page was loaded.
func (b *tab) loaded() float64 {
	b.Helper()
	return eval[float64](b, `performance.getEntriesByType("navigation")[0].domContentLoadedEventEnd`)
}

// repeat does something several times.
func repeat(n int, do func(i int) float64) (l times) {
	for i := range n {
		l = append(l, do(i))
	}
	return l
}

// fits fails for a page with more rows or bytes than it may have.
func (b *tab) fits() {
	b.Helper()
	require.LessOrEqual(b, eval[int](b, `document.querySelectorAll("main tr").length`), 300)
	require.Less(b, eval[float64](b, `performance.getEntriesByType("navigation")[0].decodedBodySize`), 150.*1024)
}

func TestBars_LongRun_IsShownInTime(t *testing.T) {
	turns := of(400, 5000)
	s := newSecuredScene(t)
	s.stage.Long("long", turns)
	s.folded()
	b := s.open()
	const link = `th a[href="/run/long"]`
	t.Logf("%d turns: the first look takes %.0f ms", turns, b.opened("/", link, "tr.line"))
	require.Contains(t, eval[string](b, "document.body.innerText"), fmt.Sprintf("%d turns", turns))
	b.fits()
	within(t, "first rows behind the click", 300, func() times {
		return repeat(20, func(int) float64 { return b.opened("/", link, "tr.line") })
	})
	within(t, "a page further back", 300, func() times {
		b.show("/run/long")
		return repeat(10, func(int) float64 {
			b.click(`a[rel="prev"]`)
			b.await(`document.readyState === "complete" && document.querySelectorAll("tr.line").length > 0`)
			b.fits()
			if !eval[bool](b, `document.querySelector('a[rel="prev"]') !== null`) {
				took := b.loaded()
				b.show("/run/long")
				return took
			}
			return b.loaded()
		})
	})
	b.clean()
}

func TestBars_RunOfManyEvents_OpensInTime(t *testing.T) {
	turns := of(800, 20000)
	s := newSecuredScene(t)
	s.stage.Long("huge", turns)
	s.folded()
	b := s.open()
	const link = `th a[href="/run/huge"]`
	t.Logf("%d events: the first look takes %.0f ms", 5*turns+1, b.opened("/", link, "tr.line"))
	within(t, fmt.Sprintf("opening a run of %d events", 5*turns+1), 500, func() times {
		return repeat(20, func(int) float64 { return b.opened("/", link, "tr.line") })
	})
	b.fits()
	within(t, "opening it at a point", 500, func() times {
		return repeat(10, func(i int) float64 {
			b.show(fmt.Sprintf("/run/huge?at=record:%d", 1+(i+1)*7919%(5*turns)))
			require.True(t, eval[bool](b, `document.querySelector("tr.at") !== null`))
			return b.loaded()
		})
	})
	b.clean()
}

func TestBars_ManyRuns_TheirListOpensInTime(t *testing.T) {
	runs := of(2000, 100_000)
	if text := os.Getenv("WAYMARK_UI_RUNS"); text != "" {
		var err error
		runs, err = strconv.Atoi(text)
		require.NoError(t, err, "WAYMARK_UI_RUNS is a number of runs")
	}
	s := newSecuredScene(t)
	s.fill(runs)
	s.folded()
	// No executor drives the running ones: they are orphaned first, so that no other work disturbs the measurement.
	reader, err := publisher.NewReader(t.Context(), publisher.Config{Conn: s.executor, Fleet: schema.DefaultFleet})
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		page, err := reader.List(t.Context(), schema.ListRequest{Status: []schema.Status{schema.StatusRunning}, Limit: 1})
		return err == nil && len(page.Runs) == 0
	}, 10*time.Minute, 100*time.Millisecond)
	b := s.open()
	within(t, fmt.Sprintf("the list of %d runs", runs), 300, func() times {
		return repeat(20, func(int) float64 { return b.opened("/health", `a[href="/"]`, "table.runs tr.row:nth-of-type(20)") })
	})
	b.fits()
	b.clean()
}

// heaps are the heap sizes of the page and of this process (server, daemon and inspector) after a garbage collection, in bytes.
func (b *tab) heaps() (page, process float64) {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, stepWithin)
	defer cancel()
	_, err := chromedp.Call(ctx, heapprofiler.CollectGarbage, cdp.Empty{})
	require.NoError(b, err)
	usage, err := chromedp.Call(ctx, runtime.GetHeapUsage, cdp.Empty{})
	require.NoError(b, err)
	goruntime.GC()
	var m goruntime.MemStats
	goruntime.ReadMemStats(&m)
	return usage.UsedSize, float64(m.HeapAlloc)
}

func TestBars_BusyRun_HeapStaysFlat(t *testing.T) {
	const aSecond, executors = 1000, 4
	lasts := time.Duration(of(8, 600)) * time.Second
	s := newSecuredScene(t)
	var runs []*publisher.Run
	for i := range executors {
		run, err := s.stage.Executor(fmt.Sprintf("box-%d", i)).Start(t.Context(), publisher.RunSpec{ID: fmt.Sprintf("busy-%d", i), Agent: "coder"})
		require.NoError(t, err)
		runs = append(runs, run)
	}
	b := s.open()
	b.show("/run/busy-0")
	b.await(`document.querySelector("#pause").hidden === false`)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	began, sent, looked := time.Now(), 0, time.Now()
	var pages, processes []float64
	for time.Since(began) < lasts {
		<-tick.C
		for due := int(time.Since(began).Seconds() * aSecond); sent < due; sent++ {
			require.NoError(t, runs[sent%executors].SetState(t.Context(), "n", sent))
		}
		if time.Since(looked) > lasts/20 && time.Since(began) > lasts/5 { // caches are full by then
			page, process := b.heaps()
			pages, processes = append(pages, page), append(processes, process)
			looked = time.Now()
		}
	}
	require.GreaterOrEqual(t, float64(sent)/time.Since(began).Seconds(), aSecond*.9)
	events := 1 + (sent+executors-1)/executors
	b.await(fmt.Sprintf(`document.querySelector(".runbar").innerText.includes("%d events")`, events))
	show := func(list []float64) (first, then float64) {
		half := len(list) / 2
		return times(list[:half]).percentile(.5) / (1 << 20), times(list[half:]).percentile(.5) / (1 << 20)
	}
	page, pageThen := show(pages)
	process, processThen := show(processes)
	t.Logf("%d events in %s: heap of the page %.1f MiB, then %.1f MiB; of server, daemon and inspector together %.1f MiB, then %.1f MiB",
		sent, lasts, page, pageThen, process, processThen)
	require.LessOrEqual(t, eval[int](b, `document.querySelectorAll("main tr").length`), 300)
	if full() {
		require.Less(t, pageThen, 1.2*page+1, "the page holds more and more")
		require.Less(t, processThen, 1.2*process+8, "the process holds more and more")
	}
	b.clean()
}
