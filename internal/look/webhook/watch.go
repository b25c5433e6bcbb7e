package webhook

import (
	"cmp"
	"context"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"
	standard "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/waymarkio/waymark/internal/look/standstill"
	"github.com/waymarkio/waymark/schema"
)

const (
	// every is the interval of looks.
	every = time.Second
	// firstPause is the pause after a failure; it doubles up to mostPause.
	firstPause, mostPause = time.Second, 5 * time.Minute
	// readsAtOnce and postsAtOnce bound the concurrent work, and mostPosts the posts that begin in a second.
	readsAtOnce, postsAtOnce, mostPosts = 8, 16, 64
	// maxWhy bounds the stored text of a failure, in bytes.
	maxWhy = 200
)

// Config of a watch. All fields are required.
type Config struct {
	// URL of the posts, and Secret that signs them, see [ParseSecret].
	URL    string
	Secret *standard.Webhook
	// Fleet and Name of the daemon, the source of the events.
	Fleet, Name string
}

// Candidate is a run that may need a person.
type Candidate struct {
	Run   string
	Shard int
	// Since when, RFC 3339: older ones are read first.
	Since string
	// Changed is a fingerprint of the reasons: it changes with each reason that begins or ends.
	Changed string
}

// Deps are the dependencies of a watch. All fields are required but those about ends.
type Deps struct {
	// Candidates are the runs of this daemon's shards that may need a person; false if it does not know them now.
	Candidates func() ([]Candidate, bool)
	// Reasons why a run stands still now. It returns an error for an unreadable run, or if its state is unknown at
	// the moment.
	Reasons func(ctx context.Context, c Candidate) ([]standstill.Reason, error)
	// Detail adds the content of the calls that reasons are about. A post goes without it if it cannot be read.
	Detail func(ctx context.Context, r []standstill.Reason)
	// Ends are the next ends of a shard that this daemon folds, none for any other, and Shards are their number. Without
	// them no ends are posted.
	Ends   func(ctx context.Context, shard int) (Page, error)
	Shards int
	Now    func() time.Time
	Log    zerolog.Logger
}

// Stats counts posts. Every field may be read at any time.
type Stats struct {
	// Taken is accepted by the receiver, and Failed refused or not delivered. Each try counts.
	Taken, Failed atomic.Int64
	// Unread counts failed reads of runs. Each is repeated.
	Unread atomic.Int64
	// Pending are the items that need a person and that the receiver has not accepted.
	Pending atomic.Int64
	// Failing is the pending item whose posts have failed for longest; nil if there is none.
	Failing atomic.Pointer[Failing]
	// EndsFailing are, for each shard, the end whose posts have failed for longest; nil for none.
	EndsFailing []atomic.Pointer[Failing]
	// GivenUp counts ends that the receiver refused while it accepted others.
	GivenUp atomic.Int64
}

// Failing is an item whose posts fail: since when, and the last error.
type Failing struct {
	Since time.Time
	Why   string
}

// failed is an item after another failed post; before is nil for the first.
func failed(before *Failing, now time.Time, err error) *Failing {
	if before != nil {
		now = before.Since
	}
	why := err.Error()
	return &Failing{Since: now, Why: strings.ToValidUTF8(why[:min(len(why), maxWhy)], "")}
}

// Older returns the one of two items that has failed for longer; nil stands for none.
func Older(a, b *Failing) *Failing {
	if a == nil || b != nil && b.Since.Before(a.Since) {
		return b
	}
	return a
}

// Watch posts the reasons why runs need a person. See the package.
type Watch struct {
	cfg    Config
	deps   Deps
	client *http.Client
	stats  Stats
	// accepted is the latest accepted end of any shard.
	accepted atomic.Pointer[schema.RunSummary]

	// Only Run uses the following fields. Reads and posts send their results to it through done, which has room for
	// all of them.
	runs    map[string]*watched
	unread  []*watched
	due     []*thing
	reading int
	posting int
	begun   int
	done    chan func()
	work    sync.WaitGroup
}

// watched is a run that may need a person.
type watched struct {
	Candidate
	retry
	// read: things match Changed. busy: the run is being read.
	read, busy bool
	things     map[string]*thing
}

// thing is one reason, while it lasts.
type thing struct {
	of *watched
	retry
	id, kind, since string
	taken, busy     bool
	// failing is nil before the first failed post.
	failing *Failing
}

// retry is when a failed action is tried again.
type retry struct {
	next  time.Time
	pause time.Duration
}

// failed sets the next try, and returns the pause before it.
func (r *retry) failed(now time.Time) time.Duration {
	r.pause = min(max(2*r.pause, firstPause), mostPause)
	r.next = now.Add(r.pause)
	return r.pause
}

// New returns a watch. Call Run to start it. It returns [ErrConfig].
func New(cfg Config, deps Deps) (*Watch, error) {
	if err := checkURL(cfg.URL); err != nil {
		return nil, err
	}
	w := &Watch{
		cfg: cfg, deps: deps, client: newClient(), runs: make(map[string]*watched), done: make(chan func(), readsAtOnce+postsAtOnce),
	}
	w.stats.EndsFailing = make([]atomic.Pointer[Failing], deps.Shards)
	return w, nil
}

// Stats returns the counters.
func (w *Watch) Stats() *Stats { return &w.stats }

// Run posts until ctx ends, and returns nil.
func (w *Watch) Run(ctx context.Context) error {
	tick := time.NewTicker(every)
	defer tick.Stop()
	defer w.client.CloseIdleConnections()
	defer w.work.Wait()
	for shard := range w.deps.Shards {
		w.work.Go(func() { (&ends{Watch: w, shard: shard}).follow(ctx) })
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			w.look()
		case done := <-w.done:
			done()
		}
		w.begin(ctx)
	}
}

// look lists the runs, and queues the runs to read and the things to post. It waits for neither.
func (w *Watch) look() {
	w.unread, w.due, w.begun = w.unread[:0], w.due[:0], 0
	candidates, known := w.deps.Candidates()
	if !known {
		return // the known things may be over
	}
	there := make(map[string]bool, len(candidates))
	for _, c := range candidates {
		there[c.Run] = true
		switch r := w.runs[c.Run]; {
		case r == nil:
			w.runs[c.Run] = &watched{Candidate: c, things: make(map[string]*thing)}
		case r.Changed != c.Changed:
			r.Candidate, r.read, r.retry = c, false, retry{}
		}
	}
	pending, now := int64(0), w.deps.Now()
	var failing *Failing
	for run, r := range w.runs {
		if !there[run] {
			delete(w.runs, run)
			continue
		}
		if !r.read && !r.busy && !r.next.After(now) {
			w.unread = append(w.unread, r)
		}
		for _, t := range r.things {
			if t.taken {
				continue
			}
			pending++
			failing = Older(failing, t.failing)
			if !t.busy && !t.next.After(now) {
				w.due = append(w.due, t)
			}
		}
	}
	w.stats.Pending.Store(pending)
	w.stats.Failing.Store(failing)
	slices.SortFunc(w.unread, func(a, b *watched) int { return cmp.Or(cmp.Compare(a.Since, b.Since), cmp.Compare(a.Run, b.Run)) })
	// Things without a try yet do not wait for failing ones.
	slices.SortFunc(w.due, func(a, b *thing) int {
		return cmp.Or(cmp.Compare(a.pause, b.pause), cmp.Compare(a.since, b.since), cmp.Compare(a.id, b.id))
	})
}

// begin begins as much of the queued work as the limits allow.
func (w *Watch) begin(ctx context.Context) {
	for w.reading < readsAtOnce && len(w.unread) > 0 {
		r := w.unread[0]
		w.unread = w.unread[1:]
		r.busy = true
		w.reading++
		w.read(ctx, r)
	}
	for w.posting < postsAtOnce && w.begun < mostPosts && len(w.due) > 0 {
		t := w.due[0]
		w.due = w.due[1:]
		t.busy = true
		w.posting++
		w.begun++
		w.try(ctx, t)
	}
}

// read reads why a run needs a person. Known reasons keep their state.
func (w *Watch) read(ctx context.Context, r *watched) {
	c := r.Candidate
	w.work.Go(func() {
		reasons, err := w.reasons(ctx, c)
		w.done <- func() {
			w.reading--
			r.busy = false
			if err != nil {
				w.unreadable(&r.retry, c.Run, err)
				return
			}
			r.read, r.retry = r.Changed == c.Changed, retry{}
			before := r.things
			r.things = make(map[string]*thing, len(reasons))
			for i := range reasons {
				id := reasons[i].ID
				if r.things[id] = before[id]; before[id] == nil {
					r.things[id] = &thing{of: r, id: id, kind: reasons[i].Kind, since: reasons[i].Since}
				}
			}
		}
	})
}

// try posts a thing, if it still needs a person.
func (w *Watch) try(ctx context.Context, t *thing) {
	c := t.of.Candidate
	w.work.Go(func() {
		reasons, unread := w.reasons(ctx, c)
		at := slices.IndexFunc(reasons, func(r standstill.Reason) bool { return r.ID == t.id })
		var refused error
		if at >= 0 {
			w.deps.Detail(ctx, reasons[at:at+1])
			if why := reasons[at].NoArguments; why != "" {
				w.deps.Log.Warn().Str("reason", why).Str("run", c.Run).Str("id", t.id).Msg("webhook posted without the arguments of the call")
			}
			refused = w.postReason(ctx, &reasons[at])
		}
		w.done <- func() {
			w.posting--
			t.busy = false
			log := w.deps.Log.With().Str("run", c.Run).Str("kind", t.kind).Str("id", t.id).Logger()
			switch now := w.deps.Now(); {
			case unread != nil:
				w.unreadable(&t.retry, c.Run, unread)
			case at < 0:
				delete(t.of.things, t.id)
			case refused != nil:
				w.stats.Failed.Add(1)
				t.failing = failed(t.failing, now, refused)
				log.Warn().Err(refused).Dur("again_in", t.failed(now)).Msg("webhook not accepted")
			default:
				t.taken = true
				w.stats.Taken.Add(1)
				w.stats.Pending.Add(-1)
				log.Info().Msg("webhook accepted")
			}
		}
	})
}

// reasons are the current reasons why a run needs a person.
func (w *Watch) reasons(ctx context.Context, c Candidate) ([]standstill.Reason, error) {
	ctx, cancel := context.WithTimeout(ctx, postTimeout)
	defer cancel()
	all, err := w.deps.Reasons(ctx, c)
	return slices.DeleteFunc(all, func(r standstill.Reason) bool { return !r.NeedsPerson() }), err
}

// unreadable repeats a read later. One failure is normal, because the run may be changing.
func (w *Watch) unreadable(r *retry, run string, err error) {
	level := zerolog.DebugLevel
	if r.pause != 0 {
		level = zerolog.WarnLevel
	}
	w.stats.Unread.Add(1)
	w.deps.Log.WithLevel(level).Err(err).Str("run", run).Dur("again_in", r.failed(w.deps.Now())).Msg("run not read for the webhook")
}
