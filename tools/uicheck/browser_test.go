package uicheck

import (
	"context"
	"fmt"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/base/prompt"
	"github.com/waymarkio/waymark/internal/harness/showcase"
	"github.com/waymarkio/waymark/internal/look/inspector"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/publisher/waymarktest"
	"github.com/waymarkio/waymark/schema"
)

// chromium is the browser; "" where there is none.
func chromium() string {
	for _, name := range []string{os.Getenv("WAYMARK_CHROMIUM"), "chromium", "chromium-browser", "google-chrome", "chrome"} {
		if path, err := exec.LookPath(name); name != "" && err == nil {
			return path
		}
	}
	return ""
}

// scene is a fleet with an inspector.
type scene struct {
	*testing.T
	stage *showcase.Stage
	// js has a daemon's rights, executor those of an executor.
	js       jetstream.JetStream
	executor *nats.Conn
	// pages and server are nil if a command serves the pages.
	pages  *inspector.Inspector
	server *httptest.Server
	// entrance returns the address that lets a browser in.
	entrance func() string
}

func newScene(t *testing.T) *scene {
	t.Helper()
	return newSceneWith(t, waymarktest.Config{})
}

func newSceneWith(t *testing.T, cfg waymarktest.Config) *scene {
	t.Helper()
	needsChromium(t)
	w := waymarktest.StartWith(t, cfg)
	fleet, err := inspector.Connect(t.Context(), publisher.Config{Conn: w.Conn(), Fleet: schema.DefaultFleet, RequestTimeout: 30 * time.Second})
	require.NoError(t, err)
	pages, err := inspector.New(inspector.Config{Fleet: fleet, Prompt: prompt.Prompt{}, By: "ann", Acts: true, Now: w.Now})
	require.NoError(t, err)
	s := &scene{T: t, stage: showcase.New(t, w), pages: pages, server: httptest.NewServer(pages)}
	port := s.server.URL[strings.LastIndexByte(s.server.URL, ':'):]
	s.entrance = func() string { return "http://" + pages.Host() + port + "/enter?t=" + pages.NewToken() }
	s.executor = w.Conn()
	s.js, err = jetstream.New(s.executor)
	require.NoError(t, err)
	t.Cleanup(func() {
		pages.Close()
		s.server.Close()
	})
	return s
}

func needsChromium(t *testing.T) {
	t.Helper()
	if chromium() == "" {
		t.Skip("no Chromium: install it (on Debian: apt-get install chromium), or name one with WAYMARK_CHROMIUM")
	}
}

// tab is a separate browser, with its errors.
type tab struct {
	*testing.T
	ctx context.Context
	url string

	mu        sync.Mutex
	troubles  []string
	requested []string
}

// open starts a browser and opens the entrance.
func (s *scene) open() *tab {
	s.Helper()
	allocated, end := chromedp.NewExecAllocator(context.Background(),
		chromedp.ExecPath(chromium()), chromedp.Headless, chromedp.NoSandbox, chromedp.DisableGPU, chromedp.NoFirstRun, chromedp.Flag("disable-quic", true),
		chromedp.Flag("disable-background-networking", true), chromedp.Flag("disable-component-update", true), chromedp.Flag("disable-sync", true),
		chromedp.Flag("hide-scrollbars", true), chromedp.UserDataDir(s.TempDir()))
	s.Cleanup(end)
	at, entrance, _ := strings.Cut(s.entrance(), "/enter")
	b := &tab{T: s.T, url: at}
	ctx, cancel := chromedp.NewContext(allocated, chromedp.WithListener(b.hear))
	s.Cleanup(cancel)
	b.ctx = ctx
	require.NoError(s, chromedp.Do(ctx)) // the browser lives as long as the context of its first step
	command(b, network.Enable, network.EnableParams{})
	command(b, log.Enable, cdp.Empty{})
	b.show("/enter" + entrance)
	b.awaitPath("/")
	return b
}

// command sends a command of the browser's protocol.
func command[P, R any](b *tab, c cdp.Command[P, R], params P) {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, stepWithin)
	defer cancel()
	_, err := chromedp.Call(ctx, c, params)
	require.NoError(b, err)
}

// hear records the errors and the requests of the browser.
func (b *tab) hear(event any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch e := event.(type) {
	case *runtime.EventExceptionThrown:
		b.troubles = append(b.troubles, "exception: "+e.ExceptionDetails.Text)
	case *log.EventEntryAdded:
		if e.Entry.Level == log.EntryLevelError || e.Entry.Source == log.EntrySourceSecurity {
			b.troubles = append(b.troubles, fmt.Sprintf("%s: %s (%s)", e.Entry.Source, e.Entry.Text, e.Entry.URL))
		}
	case *network.EventRequestWillBeSent:
		b.requested = append(b.requested, e.Request.URL)
	}
}

// clean fails if the browser had errors, or sent requests to other addresses.
func (b *tab) clean() {
	b.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	require.Empty(b, b.troubles)
	for _, url := range b.requested {
		require.True(b, strings.HasPrefix(url, b.url+"/") || strings.HasPrefix(url, "data:"), "the page asked for %s", url)
		require.NotContains(b, url, "pwned")
	}
}

// stepWithin bounds one step of a browser.
const stepWithin = 60 * time.Second

func (b *tab) do(steps ...chromedp.Action[chromedp.Void]) {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, stepWithin)
	defer cancel()
	require.NoError(b, chromedp.Do(ctx, steps...))
}

// show goes to a page and waits until it is loaded.
func (b *tab) show(path string) {
	b.Helper()
	b.do(chromedp.Navigate(b.url+path), chromedp.WaitReady(chromedp.CSS("#page")))
}

// click clicks the first element that matches a selector.
func (b *tab) click(selector string) {
	b.Helper()
	b.do(chromedp.Click(chromedp.CSS(selector)))
}

// eval is the value of an expression in the page.
func eval[T any](b *tab, expression string) T {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, stepWithin)
	defer cancel()
	value, err := chromedp.Run(ctx, chromedp.Evaluate[T](expression, chromedp.EvalAwaitPromise))
	require.NoError(b, err, expression)
	return value
}

// await waits until an expression is true in the page, whatever page that is.
func (b *tab) await(expression string) {
	b.Helper()
	look := func() bool {
		ctx, cancel := context.WithTimeout(b.ctx, stepWithin)
		defer cancel()
		ok, err := chromedp.Run(ctx, chromedp.Evaluate[bool](expression))
		return err == nil && ok
	}
	for deadline := time.Now().Add(30 * time.Second); !look(); {
		if time.Now().After(deadline) {
			require.Fail(b, "this did not come: "+expression, eval[string](b, "location.href + document.body.innerText"))
		}
	}
}

func (b *tab) awaitPath(path string) {
	b.Helper()
	b.await(`location.pathname === "` + path + `" && document.readyState === "complete"`)
}

// sized sets the width of the window, and light or dark.
func (b *tab) sized(width int64, scheme string) {
	b.Helper()
	command(b, emulation.SetDeviceMetricsOverride, emulation.SetDeviceMetricsOverrideParams{Width: width, Height: 900, DeviceScaleFactor: 1, Mobile: width < 600})
	command(b, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{
		{Name: "prefers-color-scheme", Value: scheme}, {Name: "prefers-reduced-motion", Value: "reduce"},
	}})
}

// axe is the source of axe-core; "" if it is not installed.
func axe(t *testing.T) string {
	t.Helper()
	file := os.Getenv("WAYMARK_AXE")
	if file == "" {
		return ""
	}
	source, err := os.ReadFile(file)
	require.NoError(t, err)
	return string(source)
}
