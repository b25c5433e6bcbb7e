package publisher

import (
	"cmp"
	"context"
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/waymarkio/waymark/publisher/internal/send"
	"github.com/waymarkio/waymark/schema"
)

// Fleet is an executor's connection to one fleet: it starts, resumes and claims runs, and reads them as its [Reader]. It may be used
// from several goroutines.
type Fleet struct {
	*Reader

	cfg Config
	// instance distinguishes this start of the process; empty without heartbeats.
	instance string
	// redactor is nil without redaction.
	redactor *redactor
	hooks    send.Hooks

	// life ends, with ErrStopped as its cause, when the fleet is closed.
	life context.Context //nolint:containedctx // the life of the handle itself
	end  context.CancelCauseFunc
	// background are the goroutines that read runs because of a notice; looks bounds how many read at once.
	background sync.WaitGroup
	looks      chan struct{}
	// waitPoll is how often a waiting call polls.
	waitPoll time.Duration
	// outwait is how long after a takeover the previous executor may still begin a call.
	outwait time.Duration
	// proofAge is the maximum age of the proof of an epoch when a guarded tool begins.
	proofAge time.Duration
	hand     hand
	presence presence
	// works of the active runs; heartbeats report the overdue ones.
	works  works
	lacked lackedKeys
	calls  calls
	// versions of the agents of its executors.
	versions agentVersions

	mu      sync.Mutex
	stopped bool
	// alive: heartbeats and notices have begun. beaten is closed after the last heartbeat; nil without heartbeats.
	alive   bool
	beaten  chan struct{}
	notices *nats.Subscription
	// changes delivers notices that the fleet's settings changed.
	changes *nats.Subscription
	// heard is the connection, counted from 1, on which Start has read the settings. Notices are lost before the first Start
	// or Claim, and between two connections.
	heard atomic.Uint64
}

// Connect finds the server (see [Config]) or uses the given connection, and looks up the fleet. It returns [ErrConfig],
// [ErrNotProvisioned], [ErrNotPermitted] or [ErrUnavailable]. Close the fleet when you are done.
func Connect(ctx context.Context, cfg Config) (*Fleet, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	f := &Fleet{
		cfg: cfg.withDefaults(), looks: make(chan struct{}, maxLooks), waitPoll: waitPoll, outwait: beginWithin + beginGrace, proofAge: beginWithin,
	}
	f.works.now = f.cfg.Now
	f.versions = agentVersions{loops: make(map[string]schema.Version), build: cmp.Or(f.cfg.Build, builtFrom())}
	f.presence = presence{Fleet: f, news: make(chan struct{}, 1)}
	if f.cfg.Heartbeat >= 0 {
		public, private, err := ed25519.GenerateKey(nil)
		if err != nil {
			return nil, fmt.Errorf("key of the instance: %w", err)
		}
		f.instance, f.presence.key = schema.InstanceOf(public), private
	}
	f.redactor = newRedactor(cfg.Redaction)
	f.life, f.end = context.WithCancelCause(context.Background())
	reader, err := openReader(ctx, f.cfg, f.cfg.Executor)
	if err != nil {
		return nil, err
	}
	f.Reader = reader
	f.kept.most, f.kept.blobs = min(MaxKeptBlobs, f.cfg.MaxBlob), make(map[string][]byte)
	if f.secrets != nil {
		if id, err := f.secrets.Check(ctx, f.secrets.Current); err != nil {
			return nil, errors.Join(fmt.Errorf("%w: Encryption.Current: key %s: %w", ErrConfig, id, err), reader.Close(ctx))
		}
	}
	if f.hooks = send.HooksOf(ctx); f.hooks.NoOutwait {
		f.outwait = 0
	}
	return f, nil
}

// Executor returns the name of this process.
func (f *Fleet) Executor() string { return f.cfg.Executor }

// Instance distinguishes this start of the process from other starts under its name, so that no start takes another
// one's runs for its own. Its key signs the heartbeats, so that no other process can send them. Without heartbeats it is
// empty, and runs name no instance.
func (f *Fleet) Instance() string { return f.instance }

// Close announces that the executor leaves, and closes the connection if Connect dialled it. It does not end runs; runs
// that are still active are orphaned at once. Finish them with [Run.End] or [Run.Interrupt] before.
func (f *Fleet) Close(ctx context.Context) error {
	f.mu.Lock()
	if f.stopped {
		f.mu.Unlock()
		return nil
	}
	f.stopped = true
	f.mu.Unlock()
	f.end(ErrStopped)
	return errors.Join(f.depart(), f.Reader.Close(ctx))
}

func (f *Fleet) isStopped() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.stopped
}

// RunSpec describes a new run.
type RunSpec struct {
	// ID of the run: [A-Za-z0-9][A-Za-z0-9_-]{0,63}. Required.
	ID string
	// Agent's name; empty means the one of Config. One of the two is required.
	Agent string
	// Task of the run, in words.
	Task string
	// ThreadID groups the runs of one conversation.
	ThreadID string
	// Model, ModelTier and Provider that the run starts with.
	Model, ModelTier, Provider string
	// Priority, 0 to 9: each step lets a submitted or left run be claimed as if it had waited a minute longer.
	Priority int
	// Labels to find the run by.
	Labels map[string]string
	// Parent names the call of another run that started this one; nil means none.
	Parent *schema.Parent
	// Complete, MaxTurns and MaxTokens are the run's [Contract], for every executor that works on it. They are
	// recorded.
	Complete  string
	MaxTurns  int32
	MaxTokens int64
	// ResumedFrom names the run that this one continues (fork, hand-off).
	ResumedFrom string
	// Handoff is the accepted offer that the run carries out; nil means none. [Fleet.AcceptHandoff] sets it.
	Handoff *schema.HandoffSource
	// State is the initial application state of the run, by key; see [Run.SetState].
	State map[string]any
	// Source holds details of the framework that the run comes from.
	Source json.RawMessage
	// state is State in its recorded form, offer the data of the accepted offer.
	state []schema.InitialValue
	offer []byte
	// base of a fork and the run's state there; nil for none.
	base      *schema.Base
	baseState *schema.State
	// submitted: another program does its work.
	submitted bool
}

// Start publishes run.started and returns the handle of the new run, in epoch 1. It returns [ErrRunExists] if the id is
// taken, [ErrPaused] if a pause selects the run, and the errors of publishing. After [ErrUnresolved] or [ErrUnavailable] it returns no handle: resume the run,
// or start it under another id.
func (f *Fleet) Start(ctx context.Context, spec RunSpec) (*Run, error) {
	spec, err := f.named(spec)
	if err != nil {
		return nil, err
	}
	if !spec.submitted { // another process is to be its executor
		if err := f.appear(); err != nil {
			return nil, fmt.Errorf("start of run %s: %w", spec.ID, err)
		}
	}
	if err := f.startPaused(ctx, &spec); err != nil {
		return nil, fmt.Errorf("start of run %s: %w", spec.ID, err)
	}
	_, done := f.hand.begin(spec.ID)
	defer done()
	return f.begin(ctx, f.shardOf(spec.ID), spec)
}

// startPaused returns [ErrPaused] if a pause selects a new run that is to begin at once.
func (f *Fleet) startPaused(ctx context.Context, spec *RunSpec) error {
	settings, connection := f.settings.Load(), f.nc.Stats().Reconnects+1
	live := schema.Live{Run: spec.ID, Agent: spec.Agent, ModelTier: spec.ModelTier, Labels: spec.Labels}
	if spec.submitted || f.heard.Load() == connection && len(schema.PausesOf(settings.Pauses, &live)) == 0 {
		return nil
	}
	// The end of the pause may not have been heard.
	if err := f.insist(ctx, schema.FleetBucket, f.cfg.TryTimeout, func(try context.Context) (err error) {
		settings, err = f.leaderSettings(try)
		return err
	}); err != nil {
		return err
	}
	f.heard.Store(connection)
	if pauses := schema.PausesOf(settings.Pauses, &live); len(pauses) > 0 {
		return fmt.Errorf("%w %s: %s; submit it, or end the pause: waymark %s", ErrPaused, pauses[0].When(), pauses[0].Reason, pauses[0].EndsWith())
	}
	return nil
}

// named validates the names in a spec, and fills in the agent.
func (f *Fleet) named(spec RunSpec) (RunSpec, error) {
	if err := schema.CheckName("run id", spec.ID); err != nil {
		return spec, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	if spec.Agent == "" {
		spec.Agent = f.cfg.Agent
	}
	if err := schema.CheckName("agent", spec.Agent); err != nil {
		return spec, fmt.Errorf("start of run %s: %w: %w", spec.ID, ErrConfig, err)
	}
	spec.state = nil
	for _, key := range slices.Sorted(maps.Keys(spec.State)) {
		value, err := stateJSON(key, spec.State[key])
		if err != nil {
			return spec, fmt.Errorf("start of run %s: %w", spec.ID, err)
		}
		spec.state = append(spec.state, schema.InitialValue{Key: key, Value: value})
	}
	if err := spec.contract().validate("RunSpec"); err != nil {
		return spec, fmt.Errorf("start of run %s: %w", spec.ID, err)
	}
	return spec, nil
}

// begin starts a run in its shard.
func (f *Fleet) begin(ctx context.Context, names schema.Names, spec RunSpec) (*Run, error) {
	r := newRun(f, names, spec.ID)
	r.ledger.do(func(l *ledger) { l.start(spec.baseState) })
	data := f.started(&spec)
	if spec.baseState != nil {
		data.Version, _ = spec.baseState.Version()
	} else if !spec.submitted {
		data.Version = f.versions.of(spec.Agent)
	}
	if _, err := r.publish(ctx, draft{data: data}); err != nil {
		return nil, err
	}
	return r, nil
}

// started is the data of a run's start.
func (f *Fleet) started(spec *RunSpec) *schema.RunStartedData {
	return &schema.RunStartedData{
		Agent: spec.Agent, Executor: f.cfg.Executor, Instance: f.instance, Task: spec.Task, ThreadID: spec.ThreadID, Model: spec.Model,
		ModelTier: spec.ModelTier, Priority: spec.Priority, Provider: spec.Provider, Labels: maps.Clone(spec.Labels), Parent: spec.Parent,
		MaxTurns: spec.MaxTurns, MaxTokens: spec.MaxTokens, CompletionTool: spec.Complete, ResumedFrom: spec.ResumedFrom, Handoff: spec.Handoff, Offer: spec.offer, Base: spec.base,
		State: spec.state, Source: []byte(spec.Source),
	}
}
