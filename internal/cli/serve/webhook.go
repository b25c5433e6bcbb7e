package serve

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/rs/zerolog"

	"github.com/waymarkio/waymark/consumer"
	"github.com/waymarkio/waymark/internal/cli/base"
	"github.com/waymarkio/waymark/internal/cli/failure"
	"github.com/waymarkio/waymark/internal/webhook"
	"github.com/waymarkio/waymark/schema"
)

// watchPeople returns the watch that posts the reasons for which runs need a person.
func (c Cmd) watchPeople(a *base.App, d *consumer.Daemon, log zerolog.Logger) (*webhook.Watch, error) {
	text, err := os.ReadFile(c.Secret)
	if err != nil {
		return nil, failure.New(failure.NotFound, "make one with: echo whsec_$(head -c 32 /dev/urandom | base64) > FILE", "--webhook-secret: %v", err)
	}
	secret, err := webhook.ParseSecret(string(text))
	if err != nil {
		return nil, failure.New(failure.Usage, "the receiver needs the same secret", "--webhook-secret %s: %v", c.Secret, err)
	}
	watch, err := webhook.New(webhook.Config{URL: c.Webhook, Secret: secret, Fleet: a.Fleet, Name: c.Name}, webhook.Deps{
		Candidates: func() ([]webhook.Candidate, bool) { return c.candidates(d) },
		Head: func(ctx context.Context, w webhook.Candidate) (*schema.Head, error) {
			checkpoint, err := d.Checkpoint(ctx, w.Shard, w.Run)
			if err != nil {
				return nil, err
			}
			return &checkpoint.Head, nil
		},
		Now: a.Now, Log: log,
	})
	if err != nil {
		return nil, failure.New(failure.Usage, "use an address such as https://example.com/waymark", "--webhook: %v", err)
	}
	return watch, nil
}

// candidates lists the runs that wait or are quarantined, in the shards that this daemon folds.
func (c Cmd) candidates(d *consumer.Daemon) (list []webhook.Candidate, known bool) {
	leads := make(map[int]bool) // asked first: Each holds the lock of the live runs
	for shard, f := range d.Workers() {
		leads[shard] = f.Leads()
	}
	known = d.LiveRuns().Each(func(shard int, l *schema.Live, _ time.Time) {
		quarantined := l.Quarantined(c.MaxClaims)
		if l.Status != schema.StatusWaiting && !quarantined || !leads[shard] {
			return
		}
		list = append(list, webhook.Candidate{
			Run: l.Run, Shard: shard, Quarantined: quarantined, Changed: fmt.Sprint(l.Epoch, l.Status, l.Stalled, l.Since, l.ExpiresAt),
		})
	})
	return list, known
}
