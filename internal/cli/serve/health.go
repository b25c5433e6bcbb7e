package serve

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/waymarkio/waymark/internal/cli/base"
	"github.com/waymarkio/waymark/internal/nats/natsd"
	"github.com/waymarkio/waymark/kvstore"
)

const (
	// proofFresh is the greatest age of an acknowledged write that proves to a probe that a shard takes writes, and proofScraped to a scrape: an
	// idle daemon stays idle. A new write may take proofPatience, which is less than a probe waits.
	proofFresh    = 10 * time.Second
	proofScraped  = time.Minute
	proofPatience = 4 * time.Second
	// workerSilence is how long a fold worker may take for one batch. The slowest known one, of runs that are folded again from
	// their first events, takes seconds.
	workerSilence = 5 * time.Minute
)

// troubles makes the body of an answer.
func troubles(first string, list []base.Finding) string {
	var b strings.Builder
	b.WriteString(first)
	for _, t := range list {
		fmt.Fprintf(&b, "\n%s: %s\nnext: %s", t.Check, t.Detail, t.Do)
	}
	return b.String()
}

// liveness returns what a restart of the daemon would repair: in its loops, its locks and its own NATS server. It returns no failure of another
// server: the daemon waits for that.
func (d *daemon) liveness(ctx context.Context, now time.Time) []base.Finding {
	var list []base.Finding
	if d.server != nil && !d.mendsItself() {
		if err := d.server.Healthy(ctx); err != nil {
			list = append(list, base.Find("nats server", base.Failed, "check that the disk has free space, then restart the daemon; acknowledged data is kept", "%s", err))
		}
	}
	// The locks of requests and scrapes: while one is held, the probe waits, and fails when it gives up.
	d.waymark.LiveRuns().Counts()
	d.waymark.Settings().Current()
	d.waymark.Heartbeats().Alive(workerSilence)
	for shard, worker := range d.waymark.Workers() {
		beat := worker.Stats().Beat.Load()
		if at := time.Unix(0, beat); beat != 0 && now.Sub(at) > workerSilence {
			list = append(list, base.Find(fmt.Sprintf("fold worker of shard %d", shard), base.Failed,
				"restart the daemon; SIGQUIT prints its goroutines. Acknowledged data is kept", "has worked on the same batch since %s", at.UTC().Format(time.RFC3339)))
		}
	}
	return list
}

// mendsItself reports whether the daemon's own server ran out of room and the daemon will notice when the disk has room again. A restart does not
// help before.
func (d *daemon) mendsItself() bool {
	if d.server.Full() == "" {
		return false
	}
	_, _, err := natsd.DiskRoom(d.server.StateDir())
	return err == nil
}

// readiness returns the reasons not to send requests here, in the words of waymark doctor, and warnings: a connection is
// down, or may not hear; the fleet's settings or a stream are missing; a server is down; a shard's log takes no writes.
func (d *daemon) readiness(ctx context.Context, now time.Time, fresh time.Duration) []base.Finding {
	list := d.liveness(ctx, now)
	if d.server != nil && d.server.Full() != "" {
		list = append(list, d.fullDisk())
	}
	for _, nc := range d.conns {
		if !nc.IsConnected() {
			list = append(list, base.Unusable(ctx, nc, d.target.Address())...)
			break
		}
	}
	for _, unheard := range d.unheard {
		if e := unheard.Load(); e != nil {
			list = append(list, base.Find("subscription", base.Failed, e.Hint()+"; then restart the daemon", "%s", e.What()))
		}
	}
	if len(list) > 0 {
		return list // without them there is no write to wait for
	}
	ctx, cancel := context.WithTimeout(ctx, proofPatience)
	defer cancel()
	settings := d.waymark.Settings().Current()
	streams := make(chan []kvstore.Inspected, 1)
	go func() { streams <- d.waymark.Service().Streams(ctx) }()
	var closed []int
	var why string
	for _, q := range d.waymark.Service().Quorum(ctx, fresh) {
		if q.Err == nil {
			continue
		}
		closed, why = append(closed, q.Shard), q.Err.Error()+"; none was acknowledged since the daemon started"
		if !q.At.IsZero() {
			why = q.Err.Error() + "; the last one was acknowledged at " + q.At.UTC().Format(time.RFC3339)
		}
	}
	inspected := <-streams
	list = base.Streams(inspected)
	err := d.waymark.Settings().Err()
	switch {
	case base.AnyFailed(list): // the rest are its consequences
	case errors.Is(err, kvstore.ErrNotFound), errors.Is(err, kvstore.ErrStreamMissing):
		return []base.Finding{base.Find("settings", base.Failed, fmt.Sprintf("restart the daemon with --shards %d and the fleet's --quota, --silence and --replicas, "+
			"then set its retention and keys", settings.Shards), "settings of fleet %s are missing: %s", settings.Fleet, err)}
	case len(closed) > 0:
		if silent := base.Silent(inspected, d.target.Address()); len(silent) > 0 {
			return silent
		}
		return append([]base.Finding{base.Find("writes", base.Failed, base.WritesDo, "the log of %s acknowledges no write: %s", base.Names("shard", closed), why)}, list...)
	}
	return list
}
