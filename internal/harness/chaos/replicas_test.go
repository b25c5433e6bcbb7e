//go:build waymark_failpoints

package chaos_test

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	replicasPrefix = "REPLICAS.API"
)

func copyName(shard int) string { return fmt.Sprintf("STALE_COPY_%d", shard) }

// replicas answers the daemons' direct gets of the event stream like a cluster: sometimes from the real stream,
// sometimes from a replica with an older copy of the log. Everything else goes to the leader.
type replicas struct {
	w   *world
	sub *nats.Subscription
	// stale of ten direct gets go to the copy; 0 for none.
	stale atomic.Int64
	asked atomic.Int64
	shown atomic.Int64
	// frozen: there may be copies.
	frozen bool
}

func newReplicas(w *world) (*replicas, error) {
	r := &replicas{w: w}
	nc, err := w.connect()
	if err != nil {
		return nil, err
	}
	copies := map[string]string{}
	for i, names := range w.names {
		copies["$JS.API.DIRECT.GET."+names.EventStream()] = "$JS.API.DIRECT.GET." + copyName(i)
	}
	r.sub, err = nc.Subscribe(replicasPrefix+".>", func(m *nats.Msg) {
		subject := "$JS.API." + strings.TrimPrefix(m.Subject, replicasPrefix+".")
		if behind, ok := copies[subject]; ok && (r.asked.Add(1)*7)%10 < r.stale.Load() {
			subject = behind
			r.shown.Add(1)
		}
		_ = nc.PublishMsg(&nats.Msg{Subject: subject, Reply: m.Reply, Header: m.Header, Data: m.Data})
	})
	if err != nil {
		return nil, err
	}
	return r, nc.Flush()
}

// freeze makes a replica of each shard fall behind the log.
func (r *replicas) freeze(stale int64) error {
	if err := r.thaw(); err != nil {
		return err
	}
	r.frozen = true
	for i := range r.w.names {
		if err := r.copy(i); err != nil {
			return err
		}
	}
	r.stale.Store(stale)
	return nil
}

// copy makes a stream with a shard's current log.
func (r *replicas) copy(i int) error {
	w := r.w
	real, err := w.js.Stream(w.ctx, w.names[i].EventStream())
	if err != nil {
		return err
	}
	want := real.CachedInfo().State.LastSeq
	cfg := jetstream.StreamConfig{Name: copyName(i), Mirror: &jetstream.StreamSource{Name: w.names[i].EventStream()}, AllowDirect: true}
	stream, err := w.js.CreateStream(w.ctx, cfg)
	if err != nil {
		return err
	}
	err = w.eventually("the replica has the log", func() error {
		info, err := stream.Info(w.ctx)
		if err == nil && info.State.LastSeq < want {
			err = fmt.Errorf("it is at %d of %d", info.State.LastSeq, want)
		}
		return err
	})
	if err != nil {
		return err
	}
	cfg.Mirror, cfg.Subjects = nil, []string{fmt.Sprintf("stale.copy.%d", i)}
	_, err = w.js.UpdateStream(w.ctx, cfg)
	return err
}

// thaw lets the replicas catch up: they are not asked any more.
func (r *replicas) thaw() error {
	if !r.frozen {
		return nil
	}
	r.stale.Store(0)
	for i := range r.w.names {
		if err := r.w.js.DeleteStream(r.w.ctx, copyName(i)); err != nil && !errors.Is(err, jetstream.ErrStreamNotFound) {
			return err
		}
	}
	r.frozen = false
	return nil
}

func (r *replicas) close() { _ = r.sub.Unsubscribe() }
