package inspector

import (
	"context"
	"net/http"
	"time"

	"github.com/waymarkio/waymark/internal/look/failure"
	"github.com/waymarkio/waymark/internal/look/story"
	"github.com/waymarkio/waymark/schema"
)

const (
	// heardOld is the age at which the list of executors is read again. While a page is open it is read every listenEvery.
	heardOld, listenEvery = 500 * time.Millisecond, 750 * time.Millisecond
	// askedFor is how long the list is kept current after a page without live updates was served.
	askedFor = 10 * time.Second
)

// executorsBody is the page of the executors.
type executorsBody struct {
	*schema.ExecutorsReply
	Executor string
	Rows     []executorRow
	Silence  string
}

type executorRow struct {
	*schema.ExecutorState
	Heard, Orphaned, Class string
	// Left is the part of the allowed silence that is left, in percent; Counts: the countdown runs.
	Left   int64
	Counts bool
}

func (s *Inspector) executorsPage(ctx context.Context, r *http.Request) (*view, error) {
	name := r.URL.Query().Get("executor")
	words := "fleet executors"
	var reply *schema.ExecutorsReply
	if name == "" {
		var ok bool
		var err error
		if reply, ok, err = s.executors.get(heardOld, readSoon, s.readExecutors); err != nil {
			return nil, err
		} else if !ok {
			return nil, failure.New(failure.Unavailable, "reload the page", "no daemon said in time which executors it hears")
		}
	} else {
		if err := schema.CheckName("executor", name); err != nil {
			return nil, failure.New(failure.Usage, "use the name of an executor", "%v", err)
		}
		words += " " + name
		reply = new(schema.ExecutorsReply)
		if err := s.Fleet.Ask(ctx, schema.VerbExecutors, "", schema.ExecutorsRequest{Executor: name}, reply); err != nil {
			return nil, err
		}
	}
	body := executorsBody{ExecutorsReply: reply, Executor: name, Silence: story.Age(reply.SilenceMS)}
	for i := range reply.Executors {
		body.Rows = append(body.Rows, rowOf(&reply.Executors[i], reply.SilenceMS, reply.HeardSince != ""))
	}
	v := s.view("Executors", "executors", words)
	v.Body = &body
	return v, nil
}

// readSoon is how long a page waits for its content.
const readSoon = 5 * time.Second

// rowOf is the line of an executor. Only one that is heard now and was heard in time is shown as alive.
func rowOf(e *schema.ExecutorState, silence int64, heard bool) executorRow {
	row := executorRow{ExecutorState: e, Heard: story.HeardText(e), Orphaned: story.OrphanedText(e), Class: "off"}
	switch late := e.Silent || e.SeenMS == nil || *e.SeenMS >= max(silence, 3*e.IntervalMS); {
	case e.InHand > 0 && e.OrphanedInMS != nil && *e.OrphanedInMS == 0:
		row.Class = "bad"
	case e.InHand > 0 && (late || e.Leaving):
		row.Class = "wait"
	case heard && !late && !e.Leaving:
		row.Class = "live"
	}
	if e.InHand > 0 && e.OrphanedInMS != nil && silence > 0 {
		row.Counts, row.Left = true, min(100**e.OrphanedInMS/max(silence, 3*e.IntervalMS), 100)
	}
	return row
}

func (s *Inspector) readExecutors(ctx context.Context) (*schema.ExecutorsReply, error) {
	ctx, cancel := s.open(ctx)
	defer cancel()
	reply := new(schema.ExecutorsReply)
	return reply, s.Fleet.Ask(ctx, schema.VerbExecutors, "", schema.ExecutorsRequest{}, reply)
}

// open returns a context that ends with the pages, too.
func (s *Inspector) open(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		select {
		case <-s.live.closed:
			cancel()
		case <-ctx.Done():
		}
	}()
	return ctx, cancel
}

// heartbeat returns a text on the last sign of a run's executor, and its CSS class; empty if it is unknown or does not matter.
func (s *Inspector) heartbeat(h *schema.Head) (text, class string) {
	if h.Status != schema.StatusRunning || h.Executor == "" {
		return "", ""
	}
	s.wanted.Store(time.Now().UnixNano())
	reply, ok := s.executors.peek()
	if !ok {
		return "", ""
	}
	for i := range reply.Executors {
		e := &reply.Executors[i]
		if e.Executor != h.Executor || e.Instance != h.Instance || e.SeenMS == nil {
			continue
		}
		if e.Silent || e.Leaving {
			text = story.HeardText(e)
			if e.OrphanedInMS != nil {
				text += ": orphaned " + story.OrphanedText(e)
			}
			return text, "wait"
		}
		return "heard " + (time.Duration(*e.SeenMS) * time.Millisecond).Round(time.Second).String() + " ago", "live"
	}
	return "", ""
}

// listen reads the list of executors while pages are open. It renders them again when an executor falls silent, and during its countdown.
func (s *Inspector) listen() {
	tick := time.NewTicker(listenEvery)
	defer tick.Stop()
	silent := make(map[string]bool)
	for {
		select {
		case <-tick.C:
		case <-s.live.closed:
			return
		}
		if !s.live.watched() && time.Since(time.Unix(0, s.wanted.Load())) > askedFor {
			continue
		}
		reply, ok, err := s.executors.get(heardOld, readSoon, s.readExecutors)
		if !ok || err != nil {
			continue
		}
		now := make(map[string]bool)
		for i := range reply.Executors {
			if e := &reply.Executors[i]; e.InHand > 0 && (e.Silent || e.Leaving) {
				now[e.Executor+" "+e.Instance] = true
			}
		}
		if len(now) > 0 || len(silent) > 0 {
			s.live.wake("")
		}
		silent = now
	}
}
