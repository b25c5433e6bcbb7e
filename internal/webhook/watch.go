package webhook

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	ce "github.com/cloudevents/sdk-go/v2/event"
	"github.com/rs/zerolog"
	"golang.org/x/sync/errgroup"

	"github.com/waymarkio/waymark/internal/standstill"
	"github.com/waymarkio/waymark/schema"
)

const (
	// every is the pace of looks, and lookAgain how often a waiting run is read although its entry did not change: it may wait for one
	// thing more.
	every     = time.Second
	lookAgain = 30 * time.Second
	// firstPause is the pause after a post that was not taken; it doubles up to mostPause.
	firstPause, mostPause = time.Second, 5 * time.Minute
	// atOnce bounds concurrent posts and reads, mostPosts the posts of one look, and mostAgain its reads of runs whose entry did not change:
	// of ten thousand waiting runs each is read every five minutes.
	atOnce, mostPosts, mostAgain = 4, 64, 32
)

// Config of a watch. All fields are required.
type Config struct {
	// URL that is posted to, see [CheckURL], and Secret that posts are signed with, see [ParseSecret].
	URL    string
	Secret []byte
	// Fleet and Name of the daemon, the source of the events.
	Fleet, Name string
}

// Candidate is a run that may need a person.
type Candidate struct {
	Run   string
	Shard int
	// Changed is a fingerprint of the run's entry in the index of live runs: it changes with the entry.
	Changed string
	// Quarantined: the run is not claimable.
	Quarantined bool
}

// Deps are what a watch works with. All fields are required.
type Deps struct {
	// Candidates are the runs of the shards that this daemon folds that may need a person; false when it does not know yet.
	Candidates func() ([]Candidate, bool)
	// Head reads the head of a run.
	Head func(ctx context.Context, c Candidate) (*schema.Head, error)
	Now  func() time.Time
	Log  zerolog.Logger
}

// Stats counts posts. Every field may be read at any time.
type Stats struct {
	// Taken by the receiver, and Failed: refused, or not delivered. Each try counts.
	Taken, Failed atomic.Int64
	// Pending are the things that need a person and that the receiver has not taken.
	Pending atomic.Int64
}

// Watch posts the reasons for which runs need a person. See the package.
type Watch struct {
	cfg    Config
	deps   Deps
	client *http.Client
	stats  Stats
	// runs that may need a person, by id. Only Run uses them.
	runs map[string]*watched
}

// watched is a run that may need a person.
type watched struct {
	changed string
	looked  time.Time
	things  map[string]*thing
}

// thing is one reason, until the receiver has taken it and for as long as it lasts.
type thing struct {
	id     string
	reason standstill.Reason
	body   []byte
	taken  bool
	next   time.Time
	pause  time.Duration
}

// New returns a watch. Call Run to start it. It returns [ErrConfig].
func New(cfg Config, deps Deps) (*Watch, error) {
	if err := CheckURL(cfg.URL); err != nil {
		return nil, err
	}
	return &Watch{cfg: cfg, deps: deps, client: newClient(), runs: make(map[string]*watched)}, nil
}

// Stats returns the counters.
func (w *Watch) Stats() *Stats { return &w.stats }

// Run posts until ctx ends, and returns nil.
func (w *Watch) Run(ctx context.Context) error {
	tick := time.NewTicker(every)
	defer tick.Stop()
	defer w.client.CloseIdleConnections()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			w.look(ctx)
			w.send(ctx)
		}
	}
}

// look brings the runs up to date.
func (w *Watch) look(ctx context.Context) {
	candidates, known := w.deps.Candidates()
	if !known {
		return
	}
	there := make(map[string]bool, len(candidates))
	now := w.deps.Now()
	var due, again []Candidate
	for _, c := range candidates {
		there[c.Run] = true
		switch old := w.runs[c.Run]; {
		case old == nil || old.changed != c.Changed:
			due = append(due, c)
		case now.Sub(old.looked) >= lookAgain:
			again = append(again, c)
		}
	}
	slices.SortFunc(again, func(a, b Candidate) int { return w.runs[a.Run].looked.Compare(w.runs[b.Run].looked) })
	var mu sync.Mutex
	var group errgroup.Group
	group.SetLimit(atOnce)
	for _, c := range append(due, again[:min(len(again), mostAgain)]...) {
		mu.Lock()
		old := w.runs[c.Run]
		mu.Unlock()
		group.Go(func() error {
			h, err := w.deps.Head(ctx, c)
			if err != nil {
				w.deps.Log.Debug().Err(err).Str("run", c.Run).Msg("run not read for the webhook, trying again")
				return nil
			}
			fresh := w.watchedOf(c, h, old, now)
			mu.Lock()
			defer mu.Unlock()
			w.runs[c.Run] = fresh
			return nil
		})
	}
	_ = group.Wait() // its functions return nil
	for run := range w.runs {
		if !there[run] {
			delete(w.runs, run)
		}
	}
}

// watchedOf lists the reasons for which a run needs a person. Reasons that were known before keep their state.
func (w *Watch) watchedOf(c Candidate, h *schema.Head, old *watched, now time.Time) *watched {
	fresh := &watched{changed: c.Changed, looked: now, things: make(map[string]*thing)}
	for _, r := range standstill.Of(h, c.Quarantined, nil) {
		if !r.NeedsPerson() {
			continue
		}
		if old != nil && old.things[r.ID] != nil {
			fresh.things[r.ID] = old.things[r.ID]
			continue
		}
		body, err := w.event(&r)
		if err != nil {
			w.deps.Log.Error().Err(err).Str("run", r.Run).Msg("webhook not posted: event cannot be encoded")
			continue
		}
		fresh.things[r.ID] = &thing{id: r.ID, reason: r, body: body, pause: firstPause}
	}
	return fresh
}

// data of an event that is posted.
type data struct {
	Fleet string `json:"fleet"`
	standstill.Reason
}

// EventType is the type of the events that are posted.
const EventType = "run.attention"

// event is the CloudEvent of a reason, in structured form.
func (w *Watch) event(r *standstill.Reason) ([]byte, error) {
	e := ce.New()
	e.SetID(r.ID)
	e.SetSource(schema.Source(w.cfg.Fleet, w.cfg.Name))
	e.SetType(schema.TypeOf(EventType))
	e.SetSubject(r.Run)
	if at, err := time.Parse(time.RFC3339Nano, r.Since); err == nil {
		e.SetTime(at)
	}
	if err := e.SetData(ce.ApplicationJSON, data{w.cfg.Fleet, *r}); err != nil {
		return nil, fmt.Errorf("data: %w", err)
	}
	b, err := json.Marshal(e)
	if err != nil {
		return nil, fmt.Errorf("event: %w", err)
	}
	return b, nil
}

// send posts what is due, the oldest first.
func (w *Watch) send(ctx context.Context) {
	var due []*thing
	pending := int64(0)
	now := w.deps.Now()
	for _, run := range w.runs {
		for _, t := range run.things {
			if t.taken {
				continue
			}
			pending++
			if !t.next.After(now) {
				due = append(due, t)
			}
		}
	}
	w.stats.Pending.Store(pending)
	slices.SortFunc(due, func(a, b *thing) int {
		return cmp.Or(cmp.Compare(a.reason.Since, b.reason.Since), cmp.Compare(a.id, b.id))
	})
	var group errgroup.Group
	group.SetLimit(atOnce)
	for _, t := range due[:min(len(due), mostPosts)] {
		group.Go(func() error {
			w.try(ctx, t)
			return nil
		})
	}
	_ = group.Wait() // its functions return nil
}

// try posts one thing.
func (w *Watch) try(ctx context.Context, t *thing) {
	log := w.deps.Log.With().Str("run", t.reason.Run).Str("kind", t.reason.Kind).Str("id", t.id).Logger()
	if err := w.post(ctx, t.id, t.body); err != nil {
		if ctx.Err() != nil {
			return
		}
		w.stats.Failed.Add(1)
		t.next = w.deps.Now().Add(t.pause)
		log.Warn().Err(err).Dur("again_in", t.pause).Msg("webhook not taken")
		t.pause = min(2*t.pause, mostPause)
		return
	}
	t.taken = true
	w.stats.Taken.Add(1)
	w.stats.Pending.Add(-1)
	log.Info().Msg("webhook taken")
}
