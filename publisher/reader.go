package publisher

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/waymarkio/waymark/internal/base/encryption"
	"github.com/waymarkio/waymark/internal/base/keyring"
	"github.com/waymarkio/waymark/internal/nats/access"
	"github.com/waymarkio/waymark/internal/nats/fleetclient"
	"github.com/waymarkio/waymark/internal/nats/jsapi"
	"github.com/waymarkio/waymark/schema"
)

// Reader reads the runs of one fleet. It is not an executor: it has no name, sends no heartbeats and drives no run. It
// is safe for concurrent use.
type Reader struct {
	opts Config
	nc   *nats.Conn
	js   jetstream.JetStream
	// settings of the fleet as they were read last. Its number of shards never changes.
	settings atomic.Pointer[schema.FleetSettings]
	// closed is closed once the connection is closed; nil if the connection is the caller's.
	closed chan struct{}
	// keys verify the fleet's control events.
	keys *keyring.Ring
	// secrets are the keys of encrypted content; nil for none.
	secrets *encryption.Keys
	// denied receives the server's permission errors.
	denied *access.Watch

	// kept are blobs in memory; none for a reader that is not a [Fleet].
	kept blobCache
}

// reconnectWait is the wait between reconnects. They go on for ever; the default client would stop after sixty.
const reconnectWait = 250 * time.Millisecond

// NewReader finds the server or uses the given connection, and looks up the fleet. It needs no Executor;
// [Config] says which fields it uses. It returns [ErrConfig], [ErrNotProvisioned], [ErrNotPermitted] or [ErrUnavailable].
// Close the reader when you are done.
func NewReader(ctx context.Context, cfg Config) (*Reader, error) {
	if err := cfg.validateReader(); err != nil {
		return nil, err
	}
	return openReader(ctx, cfg.withDefaults(), "reader")
}

// openReader is [NewReader] with a complete configuration. name is the name of a connection that it dials.
func openReader(ctx context.Context, opts Config, name string) (*Reader, error) {
	r := &Reader{opts: opts, nc: opts.Conn, secrets: opts.Encryption.keys(opts.Fleet)}
	r.keys = keyring.New(opts.Fleet, r.readKeys, nil, nil)
	if r.nc == nil {
		if err := r.dial(ctx, name); err != nil {
			return nil, err
		}
	} else {
		r.denied = access.WatchOf(r.nc)
	}
	if prefix := r.nc.Opts.InboxPrefix; prefix != "" && schema.CheckReply(prefix+".x") != nil {
		err := configError("CustomInboxPrefix", fmt.Sprintf("%.120q", prefix), "use one that begins with "+schema.InboxPrefix+"_: the daemon answers only such inboxes")
		return nil, errors.Join(err, r.Close(ctx))
	}
	if err := r.lookup(ctx); err != nil {
		return nil, errors.Join(err, r.Close(ctx))
	}
	return r, nil
}

// dial finds the server and connects to it. ctx bounds only this connection, not later reconnects.
func (r *Reader) dial(ctx context.Context, name string) error {
	target, err := server(ctx, r.opts.URL)
	if err != nil {
		return err
	}
	r.closed = make(chan struct{})
	r.denied = access.NewWatch()
	dialing, end := context.WithCancelCause(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() { end(context.Cause(ctx)) })
	defer stop()
	// The caller's options override these.
	opts := append([]nats.Option{nats.MaxReconnects(-1), nats.ReconnectWait(reconnectWait)}, r.opts.Options...)
	opts = append(opts, nats.ReconnectBufSize(-1), func(o *nats.Options) error {
		before := o.ClosedCB
		o.ClosedCB = func(nc *nats.Conn) {
			if before != nil {
				before(nc)
			}
			end(nil)
			close(r.closed)
		}
		o.AsyncErrorCB = r.denied.Handler(o.AsyncErrorCB)
		if o.Name == "" {
			o.Name = "waymark " + name
		}
		return nil
	})
	if r.nc, err = target.Connect(dialing, opts...); err != nil {
		end(nil)
		return connectError(err, target)
	}
	return nil
}

// permitted returns the permission error that ended ctx instead of its consequences. ctx comes from
// access.Watch.Context.
func permitted(ctx context.Context, err error) error {
	cause := access.Cause(ctx, err)
	if e, ok := errors.AsType[*access.Refusal](cause); ok {
		return fmt.Errorf("%w: %w", ErrNotPermitted, e)
	}
	return err
}

// lookup reads the fleet's settings and checks that its event stream exists.
func (r *Reader) lookup(ctx context.Context) (err error) {
	if r.js, err = jetstream.New(r.nc); err != nil {
		return fmt.Errorf("JetStream: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, r.opts.RequestTimeout)
	defer cancel()
	ctx, done := r.denied.Context(ctx, "")
	defer done()
	// Credentials of another fleet reach settings without this fleet: the server then refuses the stream.
	if err = r.readSettings(ctx); err == nil || errors.Is(err, ErrNotProvisioned) {
		stream := schema.NamesOf(r.opts.Fleet, 0).EventStream()
		_, failed := r.js.Stream(ctx, stream)
		if errors.Is(failed, jetstream.ErrStreamNotFound) {
			err = r.notProvisioned("stream " + stream)
		} else if failed != nil {
			err = fmt.Errorf("looking fleet %s up: %w: %w", r.opts.Fleet, ErrUnavailable, failed)
		}
	}
	return lookupError(permitted(ctx, err))
}

// leaderSettings reads the fleet's settings from their leader. It returns [ErrNotProvisioned] if they are not stored:
// no other source has the number of shards, and whether control events are signed.
func (r *Reader) leaderSettings(ctx context.Context) (*schema.FleetSettings, error) {
	m, err := jsapi.Get(ctx, r.js, "KV_"+schema.FleetBucket, jsapi.GetRequest{LastFor: "$KV." + schema.FleetBucket + "." + r.opts.Fleet})
	switch {
	case errors.Is(err, jetstream.ErrStreamNotFound), errors.Is(err, jetstream.ErrMsgNotFound):
		return nil, r.notProvisioned("settings in bucket " + schema.FleetBucket)
	case errors.Is(err, jsapi.ErrAnswer):
		return nil, fmt.Errorf("settings of fleet %s: %w: %w", r.opts.Fleet, ErrBadAnswer, err)
	case err != nil:
		return nil, fmt.Errorf("looking fleet %s up: %w: %w", r.opts.Fleet, ErrUnavailable, err)
	case len(m.Data) == 0: // deleted
		return nil, r.notProvisioned("settings in bucket " + schema.FleetBucket)
	}
	s := new(schema.FleetSettings)
	if err := json.Unmarshal(m.Data, s); err != nil {
		return nil, fmt.Errorf("settings of fleet %s: %w: %w", r.opts.Fleet, ErrBadAnswer, err)
	}
	if s.Shards < 1 {
		return nil, fmt.Errorf("settings of fleet %s: %w: shards is %d", r.opts.Fleet, ErrBadAnswer, s.Shards)
	}
	r.settings.Store(s)
	return s, nil
}

// readKeys reads the fleet's keys from its settings.
func (r *Reader) readKeys(ctx context.Context) ([]schema.FleetKey, error) {
	s, err := r.leaderSettings(ctx)
	if err != nil {
		return nil, err
	}
	return s.Keys, nil
}

// readSettings reads the settings, with their keys, from their leader.
func (r *Reader) readSettings(ctx context.Context) error {
	read := time.Now()
	s, err := r.leaderSettings(ctx)
	if err != nil {
		return err
	}
	return r.keys.Set(s.Keys, read)
}

// shardOf names the shard of a run.
func (r *Reader) shardOf(run string) schema.Names {
	return schema.NamesOf(r.opts.Fleet, schema.ShardOf(run, r.settings.Load().Shards))
}

// notProvisioned names the missing part of the fleet, the server and the next step.
func (r *Reader) notProvisioned(missing string) error {
	return fmt.Errorf("%w: fleet %s has no %s on %s; start its daemon there (waymark serve --fleet %s), or restore its backup; "+
		"for another fleet set Fleet in the configuration, or WAYMARK_FLEET if the configuration names no server",
		ErrNotProvisioned, r.opts.Fleet, missing, r.nc.ConnectedUrlRedacted(), r.opts.Fleet)
}

// copies is the number of replicas of a log. An operator may have raised it since this fleet was connected. A leader
// that is cut off from the replicas answers with older data.
func (r *Reader) copies(ctx context.Context, names schema.Names) (int, error) {
	info, err := r.js.Stream(ctx, names.EventStream())
	if err != nil {
		return 0, fmt.Errorf("replicas of %s: %w: %w", names.EventStream(), ErrUnavailable, err)
	}
	return max(info.CachedInfo().Config.Replicas, 1), nil
}

// service is the client of the fleet's recovery service.
func (r *Reader) service() *fleetclient.Client {
	return &fleetclient.Client{
		Conn: r.nc, Fleet: r.opts.Fleet, Timeout: r.opts.RequestTimeout, Backoff: DefaultBackoff, MaxBackoff: DefaultMaxBackoff,
		Refusals: r.denied, Translate: translate,
	}
}

// Keys returns the keys that verify the fleet's control events, read at most schema.KeysFresh ago. Use it to fold
// records of [Reader.Events]: call it once a record is there. It returns [ErrUnavailable].
func (r *Reader) Keys(ctx context.Context) (*schema.Keys, error) {
	keys, err := r.keys.Keys(ctx)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	return keys, nil
}

// insist retries do while what it needs is unavailable, until Config.RequestTimeout is over; most bounds each try. about
// is part of the subjects whose refusal ends it.
func (r *Reader) insist(ctx context.Context, about string, most time.Duration, do func(try context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, r.opts.RequestTimeout)
	defer cancel()
	ctx, done := r.denied.Context(ctx, about)
	defer done()
	wait := pauses()
	for {
		try, cancel := context.WithTimeout(ctx, most)
		err := do(try)
		cancel()
		if err == nil || !unavailable(err) || !wait.Wait(ctx) {
			return permitted(ctx, err)
		}
	}
}

// Name of the fleet.
func (r *Reader) Name() string { return r.opts.Fleet }

// Conn returns the connection, for requests that this package does not wrap.
func (r *Reader) Conn() *nats.Conn { return r.nc }

// Close closes the connection, if NewReader dialled it.
func (r *Reader) Close(ctx context.Context) error {
	if r.closed == nil {
		return nil
	}
	if err := r.nc.Drain(); err != nil {
		r.nc.Close()
	}
	select {
	case <-r.closed:
		return nil
	case <-ctx.Done():
		r.nc.Close()
		<-r.closed
		return fmt.Errorf("closing fleet %s: %w", r.opts.Fleet, context.Cause(ctx))
	}
}
