package inspector

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"sync/atomic"

	"github.com/nats-io/nats.go"

	"github.com/waymarkio/waymark/internal/base/encryption"
	"github.com/waymarkio/waymark/internal/look/inbox"
	"github.com/waymarkio/waymark/internal/look/story"
	"github.com/waymarkio/waymark/internal/nats/access"
	"github.com/waymarkio/waymark/internal/nats/fleetclient"
	"github.com/waymarkio/waymark/internal/nats/natsconn"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// Fleet is what the pages read and change.
type Fleet interface {
	story.Source
	inbox.Asker
	inbox.Fields
	// Get returns all that a run's events add up to.
	Get(ctx context.Context, run string) (*schema.State, error)
	// GetAt is Get of a run as it was at a point.
	GetAt(ctx context.Context, run string, point schema.Point) (*schema.State, error)
	// PlanOf returns what the next executor would do with a run in this state.
	PlanOf(ctx context.Context, state *schema.State) (*schema.Plan, error)
	// HasKeys reports whether there are keys of encrypted content.
	HasKeys() bool
	// CheckAnswer holds an answer against an encrypted question, as far as there are keys.
	CheckAnswer(ctx context.Context, run string, in publisher.Input) error
	// As calls use with a fleet handle of the executor name. It keeps no run: it releases each that it takes over.
	As(ctx context.Context, name string, use func(*publisher.Fleet) error) error
	// Observe calls changed with the run of each accepted event until stop is called, and refused if the server does not
	// permit it.
	Observe(changed func(run string), refused func(error)) (stop func(), err error)
	// Connected reports whether the server is there. It does not wait.
	Connected() bool
}

// remote is a fleet behind a connection.
type remote struct {
	*publisher.Reader
	service *fleetclient.Client
	keys    *encryption.Keys
	cfg     publisher.Config
	// status is the latest nats.Status: the connection's own methods wait for an attempt to connect again.
	status atomic.Int64
}

// Connect returns the fleet as a connection reaches it. The connection stays the caller's.
func Connect(ctx context.Context, cfg publisher.Config) (Fleet, error) {
	reader, err := publisher.NewReader(ctx, cfg)
	if err != nil {
		return nil, err
	}
	var keys *encryption.Keys
	if e := cfg.Encryption; e != nil {
		keys = &encryption.Keys{Fleet: reader.Name(), Current: e.Current, Key: e.Key}
	}
	f := &remote{Reader: reader, service: &fleetclient.Client{
		Conn: cfg.Conn, Fleet: reader.Name(), Timeout: cmp.Or(cfg.RequestTimeout, publisher.DefaultRequestTimeout), Backoff: publisher.DefaultBackoff, MaxBackoff: publisher.DefaultMaxBackoff,
		Refusals: access.WatchOf(cfg.Conn), Translate: func(e *schema.ServiceError) error { return e },
	}, keys: keys, cfg: cfg}
	changed := cfg.Conn.StatusChanged()
	f.status.Store(int64(cfg.Conn.Status()))
	go func() { // it ends with the connection
		for nats.Status(f.status.Load()) != nats.CLOSED {
			f.status.Store(int64(<-changed))
		}
	}()
	return f, nil
}

// HasKeys implements [Fleet].
func (f *remote) HasKeys() bool { return f.keys != nil }

// Ask implements [Fleet].
func (f *remote) Ask(ctx context.Context, verb, run string, request, reply any) error {
	if err := f.lost(); err != nil {
		return err
	}
	if run != "" {
		if err := schema.CheckName("run id", run); err != nil {
			return &schema.ServiceError{Code: schema.CodeNotFound, Message: err.Error()}
		}
	}
	request, err := f.keys.Request(ctx, run, request, func(ctx context.Context) ([]string, error) {
		head, err := f.Head(ctx, run)
		return head.KeyIDs, err
	})
	if err != nil {
		return fmt.Errorf("encrypting what is sent to run %s: %w", run, err)
	}
	return f.service.One(ctx, verb, run, request, reply)
}

// Observe implements [Fleet].
func (f *remote) Observe(changed func(run string), refused func(error)) (func(), error) {
	subject := schema.ObservedSubject(f.Name(), "*.*", "*")
	ctx, cancel := context.WithCancel(context.Background())
	refusal, done := f.service.Refusals.Context(ctx, subject)
	sub, err := f.Conn().Subscribe(subject, func(m *nats.Msg) {
		changed(m.Subject[strings.LastIndexByte(m.Subject, '.')+1:])
	})
	if err != nil {
		done()
		cancel()
		return nil, fmt.Errorf("observing events: %w", err)
	}
	stop := context.AfterFunc(refusal, func() {
		if ctx.Err() == nil {
			refused(context.Cause(refusal))
		}
	})
	return func() {
		stop()
		cancel()
		done()
		_ = sub.Unsubscribe() // a closed connection has no subscription to end
	}, nil
}

// Connected implements [Fleet].
func (f *remote) Connected() bool { return f.lost() == nil }

// lost returns the error of a request without a connection; nil with one.
func (f *remote) lost() error {
	if nats.Status(f.status.Load()) == nats.CONNECTED {
		return nil
	}
	return fmt.Errorf("%w: the connection is lost", natsconn.ErrUnreachable)
}
