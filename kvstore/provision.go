package kvstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/waymarkio/waymark/internal/nats/jsapi"
	"github.com/waymarkio/waymark/schema"
)

// provisionTries bounds how often Provision starts over because another replica changed the settings.
const provisionTries = 8

// Provision creates what a fleet needs on JetStream, verifies every flag of existing streams, applies changed
// settings, and stores them. Many daemons may call it at once, and it is idempotent.
//
// It returns [*ConfigError] (joined, if there are several) for a flag that another client changed; [ErrStreamMissing]
// for a provisioned fleet whose events, segments or blobs are gone, which is an alarm and never repaired by creating
// them again; [ErrSettingsMissing] for streams with content without the fleet's settings; [ErrFull] if the server cannot
// reserve the quota; [ErrSettings] for a configuration out of range,
// or for another number of shards than the fleet has.
func Provision(ctx context.Context, js jetstream.JetStream, cfg FleetConfig) error {
	if err := cfg.Validate(); err != nil {
		return err
	}
	_, err := provision(ctx, js, cfg.Fleet, func(*schema.FleetSettings) FleetConfig { return cfg })
	return err
}

// Change changes the configuration of an existing fleet by the function change, and returns the new settings. It
// returns the errors of [Provision], and [ErrNotFound] for a fleet that does not exist.
//
// The caller announces the change to the fleet's daemons and executors, on schema.SettingsSubject; they also read the
// settings from time to time.
func Change(ctx context.Context, js jetstream.JetStream, fleet string, change func(*FleetConfig)) (schema.FleetSettings, error) {
	if _, _, err := NewFleets(js).Get(ctx, fleet); err != nil {
		return schema.FleetSettings{}, err
	}
	return provision(ctx, js, fleet, func(s *schema.FleetSettings) FleetConfig {
		cfg := FleetConfig{Fleet: fleet}
		if s.Format != 0 {
			cfg = ConfigOf(s)
		}
		change(&cfg)
		return cfg
	})
}

// provision provisions a fleet with the configuration from want, given the stored settings; zero for a new fleet.
func provision(ctx context.Context, js jetstream.JetStream, fleet string, want func(*schema.FleetSettings) FleetConfig) (schema.FleetSettings, error) {
	p := provisioner{js: js, fleets: NewFleets(js)}
	if err := CheckServer(js.Conn()); err != nil {
		return schema.FleetSettings{}, err
	}
	for range provisionTries {
		s, err := p.fleet(ctx, fleet, want)
		if !errors.Is(err, ErrConflict) {
			return s, err
		}
	}
	return schema.FleetSettings{}, fmt.Errorf("provision fleet %s: its settings keep changing: %w", fleet, ErrConflict)
}

type provisioner struct {
	js     jetstream.JetStream
	fleets *Fleets
}

// resource is one stream of a fleet.
type resource struct {
	want jetstream.StreamConfig
	// old is the configuration under earlier settings; nil if there were none.
	old *jetstream.StreamConfig
	// truth: the stream must not be created again once it existed.
	truth bool
	// existed: the fleet's settings say so.
	existed bool
	// reserve is how far the byte limit may be raised, old and new.
	reserve, oldReserve int64
	// fresh: the fleet has no settings yet. A start that failed on a full server may have created the stream with
	// another quota.
	fresh bool
	// shared by all fleets: each fleet may request more replicas, none fewer.
	shared bool
}

// limits are the byte limits that the stream may have with so much stored: a daemon raises that of a log for its
// control events, and lowers it while the shard's checkpoints have no room; see [Shard.Throttle].
func (r *resource) limits(used int64) limits {
	l := limits{low: r.want.MaxBytes, high: max(r.want.MaxBytes+r.reserve, used)}
	if r.reserve > 0 && (r.old == nil || r.old.MaxBytes == r.want.MaxBytes) {
		l.low = 1
	}
	return l
}

// LeastServer is the first NATS server version that knows all flags of the streams. An older one drops them silently, or
// makes some of the streams.
const LeastServer = "2.15.2"

// CheckServer returns [ErrServer] for a server that is too old, or that takes no message as large as a checkpoint.
func CheckServer(nc *nats.Conn) error {
	if err := CheckVersion(nc); err != nil {
		return err
	}
	if most := nc.MaxPayload(); most < minPayload {
		return fmt.Errorf("%w: its max_payload is %d, and %d is needed: set max_payload: 1MB in its configuration", ErrServer, most, minPayload)
	}
	return nil
}

// CheckVersion is CheckServer for a client that stores nothing: its account may have a small max_payload.
func CheckVersion(nc *nats.Conn) error {
	if have := nc.ConnectedServerVersion(); older(have, LeastServer) {
		return fmt.Errorf("%w: nats-server %s is needed or newer, and %s is version %.40q", ErrServer, LeastServer, nc.ConnectedUrlRedacted(), have)
	}
	return nil
}

// older compares versions such as 2.15.2; an unreadable one counts as older.
func older(have, want string) bool {
	numbers := func(s string) (n [3]int) {
		s, _, _ = strings.Cut(s, "-")
		for i, part := range strings.SplitN(s, ".", 3) {
			v, err := strconv.Atoi(part)
			if err != nil {
				return [3]int{}
			}
			n[i] = v
		}
		return n
	}
	h, w := numbers(have), numbers(want)
	return slices.Compare(h[:], w[:]) < 0
}

func (p *provisioner) fleet(ctx context.Context, fleet string, want func(*schema.FleetSettings) FleetConfig) (schema.FleetSettings, error) {
	var none schema.FleetSettings
	old, rev, err := p.fleets.Get(ctx, fleet)
	known := err == nil
	if err != nil && !errors.Is(err, ErrNotFound) && !errors.Is(err, ErrStreamMissing) {
		return none, err
	}
	cfg := want(&old)
	if known {
		if cfg.Shards != 0 && cfg.Shards != old.Shards {
			return none, fmt.Errorf("provision fleet %s with %d shards: %w: it has %d, and a fleet keeps its number of shards: start a second fleet for new runs",
				fleet, cfg.Shards, ErrSettings, old.Shards)
		}
		cfg.Shards = old.Shards
	}
	if err := cfg.Validate(); err != nil {
		return none, err
	}
	if !known {
		if cfg.Shards, err = p.checkRemains(ctx, fleet, cfg.Shards); err != nil {
			return none, fmt.Errorf("provision fleet %s: %w", cfg.Fleet, err)
		}
	}
	cfg = cfg.Defaults()
	for _, want := range sharedStreams(cfg.Replicas) {
		if err := p.ensure(ctx, resource{want: want, shared: true}); err != nil {
			return none, fmt.Errorf("provision fleet %s: %w", cfg.Fleet, err)
		}
	}
	next := withConfig(&old, cfg)
	if !known {
		if next.Keys, err = firstKeys(p.js); err != nil {
			return none, fmt.Errorf("provision fleet %s: %w", cfg.Fleet, err)
		}
	}
	list := resources(&next, &old, known)
	var errs []error
	for i := range list {
		list[i].fresh = !known
	}
	if !known {
		errs = append(errs, p.resize(ctx, list))
	}
	errs = append(errs, p.ensureAll(ctx, list))
	if err := errors.Join(errs...); err != nil {
		return none, fmt.Errorf("provision fleet %s: %w", cfg.Fleet, err)
	}
	if known && reflect.DeepEqual(&next, &old) {
		return next, nil
	}
	if err := p.fleets.put(ctx, &next, rev); err != nil || !known {
		return next, err
	}
	// A daemon that raised a quota in the meantime wrote the configuration that it had read before: see
	// [Shard.LiftQuota].
	if err := p.ensureAll(ctx, list); err != nil {
		return none, fmt.Errorf("provision fleet %s: %w", cfg.Fleet, err)
	}
	return next, nil
}

// ensureAll creates and verifies all streams. It ends with ctx, and on a server without room: the remaining streams
// would all fail with the same error.
func (p *provisioner) ensureAll(ctx context.Context, list []resource) error {
	var errs []error
	for _, r := range list {
		err := p.ensure(ctx, r)
		if errs = append(errs, err); ctx.Err() != nil || errors.Is(err, ErrFull) {
			break
		}
	}
	return errors.Join(errs...)
}

// resize gives streams of an earlier failed start, which left no room for the others, their new limits: their
// reservations would prevent the creation of the others.
func (p *provisioner) resize(ctx context.Context, list []resource) error {
	var errs []error
	for _, r := range list {
		info, err := p.info(ctx, r.want.Name)
		switch {
		case errors.Is(err, ErrStreamMissing):
		case err != nil:
			errs = append(errs, err)
		default:
			errs = append(errs, p.verify(ctx, r, info))
		}
		if ctx.Err() != nil {
			break
		}
	}
	return errors.Join(errs...)
}

// resources lists a fleet's streams in the order of creation: derived ones come last, so that they never exist
// without their source.
func resources(next, old *schema.FleetSettings, known bool) []resource {
	var list []resource
	add := func(truth bool, of func(*schema.FleetSettings) jetstream.StreamConfig) *resource {
		r := resource{want: of(next), truth: truth, existed: known}
		if known {
			c := of(old)
			r.old = &c
		}
		list = append(list, r)
		return &list[len(list)-1]
	}
	for i := range next.Shards {
		n := schema.NamesOf(next.Fleet, i)
		r := add(true, func(s *schema.FleetSettings) jetstream.StreamConfig { return eventStream(n, s) })
		r.reserve, r.oldReserve = next.ReserveBytes, old.ReserveBytes
		add(true, func(s *schema.FleetSettings) jetstream.StreamConfig { return segmentStream(n, s) })
	}
	add(true, func(s *schema.FleetSettings) jetstream.StreamConfig { return blobStream(next.Fleet, s) })
	add(false, func(s *schema.FleetSettings) jetstream.StreamConfig { return deadLetterStream(next.Fleet, s) })
	for i := range next.Shards {
		n := schema.NamesOf(next.Fleet, i)
		add(false, func(s *schema.FleetSettings) jetstream.StreamConfig { return checkpointStream(n, s) })
	}
	return list
}

// Remains returns [ErrSettingsMissing] or [ErrStreamMissing] if a fleet without settings has streams with content, and
// nil for a new fleet.
func Remains(ctx context.Context, js jetstream.JetStream, fleet string) error {
	p := provisioner{js: js}
	_, err := p.checkRemains(ctx, fleet, 0)
	return err
}

// checkRemains guards a fleet without settings, and returns its number of shards, 0 for the default. Settings are stored
// after the streams were created and before anything is written: streams with content had other settings, which are
// never replaced by defaults. Only the caller can name their number of shards. A stream that is missing while others have
// content is lost, too. And a restore stores the settings last: with a restored stream, it has not ended.
func (p *provisioner) checkRemains(ctx context.Context, fleet string, shards int) (int, error) {
	have := make(map[string]*jetstream.StreamInfo)
	all := p.js.ListStreams(ctx)
	for info := range all.Info() {
		have[info.Config.Name] = info
	}
	if err := all.Err(); err != nil {
		return 0, fmt.Errorf("streams of the account: %w", translate(err))
	}
	shown := 0
	for i := range MaxShards {
		if n := schema.NamesOf(fleet, i); have[n.EventStream()] != nil || have[bucketPrefix+n.SegmentBucket()] != nil {
			shown = i + 1
		}
	}
	used, missing := "", ""
	s := schema.FleetSettings{Fleet: fleet, Shards: shown}
	for _, r := range resources(&s, &s, true) {
		info := have[r.want.Name]
		switch {
		case !r.truth:
		case info == nil:
			missing = cmp.Or(missing, r.want.Name)
		case info.Config.Metadata[RestoredMetadata] != "":
			return 0, fmt.Errorf("%w: %s was restored from backup %.40s, and that restore has not ended: repeat waymark restore with the same backup",
				ErrStreamMissing, r.want.Name, info.Config.Metadata[RestoredMetadata])
		case isUsed(info):
			used = cmp.Or(used, r.want.Name)
		}
	}
	switch {
	case used == "": // a new fleet, or one whose provisioning was interrupted
		return shards, nil
	case shards != shown:
		return 0, fmt.Errorf("%w: %s has content, and the fleet had %d shards", ErrSettingsMissing, used, shown)
	case missing != "":
		return 0, fmt.Errorf("%w: %s, although %s has content: restore it from a backup", ErrStreamMissing, missing, used)
	}
	return shards, nil
}

// isUsed reports whether a message was ever stored, be it gone by now.
func isUsed(info *jetstream.StreamInfo) bool {
	return info.State.LastSeq >= max(info.Config.FirstSeq, 1)
}

func (p *provisioner) info(ctx context.Context, stream string) (*jetstream.StreamInfo, error) {
	return streamInfo(ctx, p.js, stream)
}

// ensure creates or verifies one stream.
func (p *provisioner) ensure(ctx context.Context, r resource) error {
	info, err := p.info(ctx, r.want.Name)
	if errors.Is(err, ErrStreamMissing) {
		if r.truth && r.existed {
			return fmt.Errorf("%w: %s existed, and its data cannot be derived: restore it from a backup, it is not created again",
				ErrStreamMissing, r.want.Name)
		}
		return p.create(ctx, r)
	}
	if err != nil {
		return err
	}
	return p.verify(ctx, r, info)
}

func (p *provisioner) create(ctx context.Context, r resource) error {
	ctx, cancel := withDeadline(ctx)
	defer cancel()
	want := r.want
	if strings.HasPrefix(want.Name, bucketPrefix) {
		want.FirstSeq = firstRevision(time.Now())
	}
	s, err := p.js.CreateStream(ctx, want)
	if errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) {
		// Another replica was faster; its stream is verified like any other.
		if s, err = p.js.Stream(ctx, r.want.Name); err == nil {
			return p.verify(ctx, r, s.CachedInfo())
		}
	}
	if err != nil {
		if err = translate(err); errors.Is(err, ErrFull) {
			return fmt.Errorf("create stream %s with %d bytes: %w: the server cannot reserve that much: use a smaller quota, or give JetStream more room",
				r.want.Name, r.want.MaxBytes, err)
		}
		return fmt.Errorf("create stream %s: %w", r.want.Name, err)
	}
	// A server that does not know a flag drops it silently.
	have := s.CachedInfo().Config
	if c := compare(&have, nil, &r.want, limits{}); len(c.foreign) > 0 {
		e := configError(jsapi.Subject(p.js, ""), &have, &r.want, c.foreign, !r.truth)
		e.Command, e.Hint = "", "the server does not know these flags: use nats-server 2.15.2 or newer"
		return e
	}
	return nil
}

// judge compares a stream with its expected configuration, and returns the flags that new settings change.
func (p *provisioner) judge(r *resource, info *jetstream.StreamInfo) (pending []flag, err error) {
	have := info.Config
	if r.shared {
		r.want.Replicas = max(r.want.Replicas, have.Replicas)
		old := r.want
		old.Replicas = have.Replicas
		r.old = &old
	}
	if r.fresh && !isUsed(info) {
		old := r.want
		old.MaxBytes = have.MaxBytes
		// No daemon raised the limit of an empty stream: it has another quota.
		r.old, r.reserve = &old, 0
	}
	want := r.want
	used := int64(info.State.Bytes) //nolint:gosec // a size on disk
	lift := r.limits(used)
	old := r.old
	if old != nil && old.MaxBytes > 0 && have.MaxBytes > 0 && (have.MaxBytes >= old.MaxBytes || r.oldReserve > 0) && have.MaxBytes <= max(old.MaxBytes+r.oldReserve, used) {
		// A limit raised or lowered by the daemon under the earlier settings counts as theirs.
		o := *old
		o.MaxBytes, old = have.MaxBytes, &o
	}
	c := compare(&have, old, &want, lift)
	if len(c.foreign) > 0 {
		return nil, configError(jsapi.Subject(p.js, ""), &have, &want, c.foreign, !r.truth)
	}
	return c.pending, nil
}

// verify compares a stream with its expected configuration, and applies new settings.
func (p *provisioner) verify(ctx context.Context, r resource, info *jetstream.StreamInfo) error {
	pending, err := p.judge(&r, info)
	if err != nil || len(pending) == 0 {
		return err
	}
	return p.change(ctx, r, &info.Config, &r.want, pending, int64(info.State.Bytes)) //nolint:gosec // a size on disk
}

// change applies new settings to a stream.
func (p *provisioner) change(ctx context.Context, r resource, have, want *jetstream.StreamConfig, pending []flag, used int64) error {
	ctx, cancel := withDeadline(ctx)
	defer cancel()
	next := *have
	for _, f := range pending {
		if f.name == "persist_mode" && !r.truth {
			if err := p.js.DeleteStream(ctx, want.Name); err != nil && !errors.Is(err, jetstream.ErrStreamNotFound) {
				return fmt.Errorf("rebuild stream %s: %w", want.Name, translate(err))
			}
			return p.create(ctx, resource{want: *want})
		}
		f.set(&next, want)
	}
	if next.MaxBytes > 0 {
		next.MaxBytes = max(next.MaxBytes, used)
	}
	if _, err := p.js.UpdateStream(ctx, next); err != nil {
		return fmt.Errorf("update stream %s: %w", want.Name, translate(err))
	}
	return nil
}
