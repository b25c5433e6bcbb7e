package runs

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/waymarkio/waymark/internal/cli/base"
	"github.com/waymarkio/waymark/internal/cli/failure"
	"github.com/waymarkio/waymark/internal/cli/output"
	"github.com/waymarkio/waymark/schema"
)

const (
	// watchPending bounds the checkpoints waiting to be printed; more are dropped, because they are only hints.
	watchPending = 4096
	// watchRest is the width of the other columns.
	watchRest = 65
	// watchLook is how often a watched run is read, in case a hint was lost.
	watchLook = 5 * time.Second
)

type watchCmd struct {
	Run_     string `arg:"" name:"run" optional:"" help:"Run id; omit it for all runs of the fleet."`
	UntilEnd bool   `help:"Stop when the run has ended."`
}

// Run shows checkpoints until Ctrl-C. They come from the republished copies of the checkpoint bucket: at most once, and
// only new ones.
func (c watchCmd) Run(ctx context.Context, a *base.App) error {
	if c.Run_ == "" && c.UntilEnd {
		return failure.New(failure.Usage, "name a run: "+a.Prompt.Command("runs watch RUN --until-end"), "--until-end needs a run")
	}
	cl, err := a.Connect(ctx, nats.MaxReconnects(-1), nats.ReconnectWait(time.Second))
	if err != nil {
		return err
	}
	token := "*"
	if c.Run_ != "" {
		token = c.Run_
	}
	arriving := make(chan *nats.Msg, watchPending)
	sub, err := cl.NATS.ChanSubscribe("waymark.checkpoints."+cl.Fleet+".*."+token, arriving)
	if err != nil {
		return fmt.Errorf("watching checkpoints: %w", err)
	}
	defer func() { _ = sub.Unsubscribe() }() // the connection is closed next
	if err := cl.NATS.FlushTimeout(cl.Wait); err != nil {
		return fmt.Errorf("watching checkpoints: %w", err)
	}
	w := &watcher{app: a, client: cl}
	if c.Run_ == "" {
		return w.all(ctx, arriving)
	}
	return w.one(ctx, c.Run_, c.UntilEnd, arriving)
}

// watcher prints heads as they arrive.
type watcher struct {
	app    *base.App
	client *base.Client
	// last is the position printed last, of one run.
	last schema.Position
	// titled: the title line was printed.
	titled bool
}

func (w *watcher) all(ctx context.Context, arriving <-chan *nats.Msg) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case m := <-arriving:
			if err := w.show(m); err != nil {
				return err
			}
		}
	}
}

// one starts with the run's current state, so that an idle run shows something.
func (w *watcher) one(ctx context.Context, run string, untilEnd bool, arriving <-chan *nats.Msg) error {
	look := time.NewTicker(watchLook)
	defer look.Stop()
	ended, err := w.look(ctx, run)
	for err == nil && (!ended || !untilEnd) {
		select {
		case <-ctx.Done():
			return nil
		case m := <-arriving:
			if err := w.show(m); err != nil {
				return err
			}
			if c, decodeErr := schema.DecodeCheckpoint(m.Data); decodeErr == nil {
				ended = c.Status.Terminal()
			}
		case <-look.C:
			ended, err = w.look(ctx, run)
		}
	}
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// look reads the run and prints its head if it is new.
func (w *watcher) look(ctx context.Context, run string) (ended bool, err error) {
	var reply schema.GetReply
	if err := w.client.Ask(ctx, schema.VerbGet, run, schema.GetRequest{View: schema.ViewHead}, &reply); err != nil {
		return false, err
	}
	return reply.Head.Status.Terminal(), w.print(&reply.Head)
}

// show prints a republished checkpoint. Markers of deleted keys have no event.
func (w *watcher) show(m *nats.Msg) error {
	if len(m.Data) == 0 || strings.HasPrefix(m.Header.Get("KV-Operation"), "DEL") || m.Header.Get("KV-Operation") == "PURGE" {
		return nil
	}
	c, err := schema.DecodeCheckpoint(m.Data)
	if err != nil {
		_, err = fmt.Fprintf(w.app.Stderr, "skipped a checkpoint on %s: %s\n", output.Printable(m.Subject), output.Printable(err.Error()))
		return err
	}
	return w.print(&c.Head)
}

func (w *watcher) print(h *schema.Head) error {
	if h.Position == w.last {
		return nil
	}
	w.last = h.Position
	if w.app.JSON {
		return output.Line(w.app.Stdout, h)
	}
	width := output.WidthOf(w.app.Stdout) - watchRest
	if !w.titled {
		w.titled = true
		if _, err := fmt.Fprintf(w.app.Stdout, "%-12s  %s  %-12s  %5s  %5s  %6s  %4s  %7s\n",
			"TIME", output.InColumn("RUN", width), "STATUS", "EPOCH", "TURN", "CALLS", "OPEN", "EVENTS"); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintf(w.app.Stdout, "%-12s  %s  %-12s  %5d  %5d  %6d  %4d  %7d\n",
		output.Clock(h.UpdatedAt), output.InColumn(h.Run, width), output.Printable(string(h.Status)), h.Epoch, h.Turn, h.Counts.ToolCalls, len(h.OpenCalls), h.Counts.Events)
	return err
}
