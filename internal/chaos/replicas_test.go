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
	copyName       = "STALE_COPY"
)

// replicas answers the daemons' direct gets of the event stream as a cluster does: now from the real stream, now from a
// replica that has what the log had some time ago. Everything else goes to the leader.
type replicas struct {
	w   *world
	sub *nats.Subscription
	// stale of ten direct gets go to the copy; 0 for none.
	stale atomic.Int64
	asked atomic.Int64
	shown atomic.Int64
}

func newReplicas(w *world) (*replicas, error) {
	r := &replicas{w: w}
	nc, err := w.connect()
	if err != nil {
		return nil, err
	}
	real := "$JS.API.DIRECT.GET." + w.names.EventStream()
	r.sub, err = nc.Subscribe(replicasPrefix+".>", func(m *nats.Msg) {
		subject := "$JS.API." + strings.TrimPrefix(m.Subject, replicasPrefix+".")
		if n := r.stale.Load(); subject == real && (r.asked.Add(1)*7)%10 < n {
			subject = "$JS.API.DIRECT.GET." + copyName
			r.shown.Add(1)
		}
		_ = nc.PublishMsg(&nats.Msg{Subject: subject, Reply: m.Reply, Header: m.Header, Data: m.Data})
	})
	if err != nil {
		return nil, err
	}
	return r, nc.Flush()
}

// freeze lets a replica fall behind what the log has now.
func (r *replicas) freeze(stale int64) error {
	if err := r.thaw(); err != nil {
		return err
	}
	w := r.w
	real, err := w.js.Stream(w.ctx, w.names.EventStream())
	if err != nil {
		return err
	}
	want := real.CachedInfo().State.LastSeq
	cfg := jetstream.StreamConfig{Name: copyName, Mirror: &jetstream.StreamSource{Name: w.names.EventStream()}, AllowDirect: true}
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
	cfg.Mirror, cfg.Subjects = nil, []string{"stale.copy"}
	if _, err = w.js.UpdateStream(w.ctx, cfg); err == nil {
		r.stale.Store(stale)
	}
	return err
}

// thaw lets the replica catch up: it is not asked any more.
func (r *replicas) thaw() error {
	if r.stale.Load() == 0 {
		return nil
	}
	err := r.w.js.DeleteStream(r.w.ctx, copyName)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		err = nil
	}
	if err == nil {
		r.stale.Store(0)
	}
	return err
}

func (r *replicas) close() { _ = r.sub.Unsubscribe() }
