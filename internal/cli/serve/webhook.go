package serve

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/rs/zerolog"

	"github.com/waymarkio/waymark/consumer"
	"github.com/waymarkio/waymark/internal/base/encryption"
	"github.com/waymarkio/waymark/internal/cli/base"
	"github.com/waymarkio/waymark/internal/look/failure"
	"github.com/waymarkio/waymark/internal/look/inbox"
	"github.com/waymarkio/waymark/internal/look/standstill"
	"github.com/waymarkio/waymark/internal/look/webhook"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// watchPeople returns the watch that posts the reasons for which runs need a person.
func (c Cmd) watchPeople(ctx context.Context, a *base.App, d *consumer.Daemon, nc *nats.Conn, log zerolog.Logger) (*webhook.Watch, error) {
	content, err := publisher.NewReader(ctx, publisher.Config{Conn: nc, Fleet: a.Fleet})
	if err != nil {
		return nil, err
	}
	text, err := os.ReadFile(c.Secret)
	if err != nil {
		return nil, failure.New(failure.NotFound, "create one with: (umask 077; echo whsec_$(head -c 32 /dev/urandom | base64) > FILE)", "--webhook-secret: %v", err)
	}
	secret, err := webhook.ParseSecret(string(text))
	if err != nil {
		return nil, failure.New(failure.Usage, "the receiver needs the same secret", "--webhook-secret %s: %v", c.Secret, err)
	}
	if mode, exposed := encryption.Exposed(c.Secret); exposed {
		log.Warn().Str("file", c.Secret).Stringer("mode", mode).Str("hint", "restrict it to the daemon: chmod 600 "+c.Secret).
			Msg("every user of this machine can read the secret of the webhook, and sign posts with it")
	}
	shards := 0
	if c.WebhookEnds {
		shards = len(d.Workers())
	}
	for shard := range shards {
		// The first cursor is stored before a request is answered, so that no end comes before it.
		if _, _, _, err := d.Checkpoints(shard).Unposted(ctx); err != nil {
			log.Warn().Err(err).Int("shard", shard).Msg("ends of runs not posted, trying again")
		}
	}
	watch, err := webhook.New(webhook.Config{URL: c.Webhook, Secret: secret, Fleet: a.Fleet, Name: c.Name}, webhook.Deps{
		Candidates: func() ([]webhook.Candidate, bool) { return c.candidates(d) },
		Reasons: func(ctx context.Context, w webhook.Candidate) ([]standstill.Reason, error) {
			return c.reasons(ctx, d, w)
		},
		Detail: func(ctx context.Context, r []standstill.Reason) { inbox.AddCalls(ctx, content, r) },
		Ends:   endsToPost(d), Shards: shards, Now: a.Now, Log: log,
	})
	if err != nil {
		return nil, failure.New(failure.Usage, "use an address such as https://example.com/waymark", "--webhook: %v", err)
	}
	return watch, nil
}

// posts returns the state of the daemon's posts; nil without --webhook.
func (d *daemon) posts() *schema.FleetWebhook {
	if d.webhook == nil {
		return nil
	}
	stats := d.webhook.Stats()
	state, oldest := &schema.FleetWebhook{Pending: stats.Pending.Load()}, stats.Failing.Load()
	for i := range stats.EndsFailing {
		oldest = webhook.Older(oldest, stats.EndsFailing[i].Load())
	}
	if oldest != nil {
		state.FailingSince, state.Why = schema.FormatTime(oldest.Since), oldest.Why
	}
	return state
}

// endsToPost returns how the ends to post of a shard are read. An idle shard is not asked.
func endsToPost(d *consumer.Daemon) func(ctx context.Context, shard int) (webhook.Page, error) {
	idle := make([]atomic.Uint64, len(d.Workers()))
	return func(ctx context.Context, shard int) (page webhook.Page, err error) {
		worker := d.Workers()[shard]
		folded := worker.Stats().Position.Load()
		if !worker.Leads() || idle[shard].Load() == folded+1 {
			return page, nil
		}
		runs, next, rev, err := d.Checkpoints(shard).Unposted(ctx)
		if err != nil {
			return page, err
		}
		if len(runs) == 0 {
			idle[shard].Store(folded + 1)
		}
		for i := range runs {
			page.Ends = append(page.Ends, runs[i].RunSummary)
		}
		page.Accepted = func(ctx context.Context) error { return d.Checkpoints(shard).Posted(ctx, next, rev) }
		return page, nil
	}
}

// candidates lists the runs that may need a person, of the shards that this daemon folds.
func (c Cmd) candidates(d *consumer.Daemon) (list []webhook.Candidate, known bool) {
	leads := make(map[int]bool) // filled first: Each holds the lock of the live runs
	for shard, f := range d.Workers() {
		leads[shard] = f.Leads()
	}
	known = d.LiveRuns().Each(func(shard int, l *schema.Live, _ time.Time) {
		quarantined := l.Quarantined(c.MaxClaims)
		if l.Attention == "" && !quarantined || !leads[shard] {
			return
		}
		list = append(list, webhook.Candidate{Run: l.Run, Shard: shard, Since: l.Since, Changed: fmt.Sprint(l.Attention, quarantined, l.Epoch)})
	})
	return list, known
}

var (
	errNotFolded = errors.New("another daemon folds its shard, or will")
	errBehind    = errors.New("its checkpoint and its entry in the live index differ at the moment")
)

// reasons returns the reasons why a run stands still. They come from a checkpoint that agrees with the live index: one of the two is updated first
// when the run changes.
func (c Cmd) reasons(ctx context.Context, d *consumer.Daemon, w webhook.Candidate) ([]standstill.Reason, error) {
	worker := d.Workers()[w.Shard]
	if !worker.Leads() || !d.LiveRuns().Synced() {
		return nil, errNotFolded
	}
	checkpoint, _, err := d.Checkpoints(w.Shard).Get(ctx, w.Run)
	if err != nil {
		return nil, err
	}
	h := &checkpoint.Head
	live, there := d.LiveRuns().Get(w.Run)
	now := schema.LiveOf(h)
	if there != h.InLiveIndex() || there && !live.Same(&now) {
		return nil, errBehind
	}
	return standstill.Of(h, h.Quarantined(c.MaxClaims), len(h.PausedBy(d.LiveRuns().Pauses())) > 0, nil, d.LiveRuns().FullFor(w.Run)...), nil
}
