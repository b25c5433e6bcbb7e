package serve

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

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
	// lockPatience is how long a lock that all requests need may be held.
	lockPatience = 4 * time.Second
)

// trouble is one part of the daemon that does not work, and what to do.
type trouble struct{ part, what, next string }

// troubles makes the body of an answer.
func troubles(first string, list []trouble) string {
	var b strings.Builder
	b.WriteString(first)
	for _, t := range list {
		fmt.Fprintf(&b, "\n%s: %s\nnext: %s", t.part, t.what, t.next)
	}
	return b.String()
}

// locks checks that the locks that requests and scrapes need can be taken.
type locks struct{ busy atomic.Bool }

// held reports whether they could not be taken in time. Only one check at a time waits for them.
func (l *locks) held(ctx context.Context, take func()) bool {
	if !l.busy.CompareAndSwap(false, true) {
		return true // an earlier check still waits
	}
	done := make(chan struct{})
	go func() {
		take()
		l.busy.Store(false)
		close(done)
	}()
	timer := time.NewTimer(lockPatience)
	defer timer.Stop()
	select {
	case <-done:
		return false
	case <-timer.C:
	case <-ctx.Done():
	}
	return true
}

// liveness returns the troubles that a restart of the daemon would repair: in its loops, its locks and its own NATS server. It has no trouble
// of another server: the daemon waits for that.
func (d *daemon) liveness(ctx context.Context, now time.Time) []trouble {
	var list []trouble
	if d.server != nil && !d.mendsItself() {
		if err := d.server.Healthy(ctx); err != nil {
			list = append(list, trouble{"nats server", err.Error(), "check that the disk has free space, then restart the daemon; acknowledged data is kept"})
		}
	}
	const restart = "restart the daemon; SIGQUIT prints its goroutines. Acknowledged data is kept"
	if d.locks.held(ctx, d.takeLocks) {
		list = append(list, trouble{"locks", fmt.Sprintf("held for longer than %s", lockPatience), restart})
		return list
	}
	for shard, worker := range d.waymark.Workers() {
		beat := worker.Stats().Beat.Load()
		if at := time.Unix(0, beat); beat != 0 && now.Sub(at) > workerSilence {
			list = append(list, trouble{fmt.Sprintf("fold worker of shard %d", shard), "has worked on the same batch since " + at.UTC().Format(time.RFC3339), restart})
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

// takeLocks takes and releases the locks of requests and scrapes.
func (d *daemon) takeLocks() {
	d.waymark.LiveRuns().Counts()
	d.waymark.Settings().Current()
	d.waymark.Heartbeats().Alive(workerSilence)
	d.waymark.Workers()
}

// readiness returns the reasons not to send requests here: a connection is down, or may not hear, the fleet's settings are
// missing, or a shard's log takes no writes.
func (d *daemon) readiness(ctx context.Context, now time.Time, fresh time.Duration) []trouble {
	list := d.liveness(ctx, now)
	if d.server != nil && d.server.Full() != "" {
		list = append(list, d.fullDisk())
	}
	for _, nc := range d.conns {
		if !nc.IsConnected() {
			list = append(list, trouble{"connection", fmt.Sprintf("%s to the nats server", strings.ToLower(nc.Status().String())), "check that the NATS servers run and can be reached from here; the daemon reconnects by itself"})
			break
		}
	}
	for _, unheard := range d.unheard {
		if e := unheard.Load(); e != nil {
			list = append(list, trouble{"subscription", e.What(), e.Hint() + "; then restart the daemon"})
		}
	}
	if len(list) > 0 {
		return list // without them there is no write to wait for
	}
	if err := d.waymark.Settings().Err(); errors.Is(err, kvstore.ErrNotFound) || errors.Is(err, kvstore.ErrStreamMissing) {
		settings := d.waymark.Settings().Current()
		list = append(list, trouble{
			"settings of fleet " + settings.Fleet + " are missing", err.Error(),
			fmt.Sprintf("restart the daemon with --shards %d and the fleet's --quota, --silence and --replicas, then set its retention and keys", settings.Shards),
		})
	}
	ctx, cancel := context.WithTimeout(ctx, proofPatience)
	defer cancel()
	for _, q := range d.waymark.Service().Quorum(ctx, fresh) {
		if q.Err == nil {
			continue
		}
		since := "; none was acknowledged since the daemon started"
		if !q.At.IsZero() {
			since = "; the last one was acknowledged at " + q.At.UTC().Format(time.RFC3339)
		}
		list = append(list, trouble{
			fmt.Sprintf("log of shard %d", q.Shard), q.Err.Error() + since,
			"check that more than half of the stream's replicas run and reach each other (nats stream report), and that the disk of each server has free space: " +
				"a server whose disk was full stores no message before it is restarted. The daemon continues by itself",
		})
	}
	return list
}
