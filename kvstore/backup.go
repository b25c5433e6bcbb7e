package kvstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/errgroup"

	"github.com/waymarkio/waymark/internal/nats/jsapi"
	"github.com/waymarkio/waymark/schema"
)

// BackupFormat is the format version of stored records of backups.
const BackupFormat = 1

// RestoredMetadata is the member of a stream's metadata with the id of the backup from which the stream was restored.
const RestoredMetadata = "waymark.restored"

// BackupRecord says that a backup of a fleet was taken.
type BackupRecord struct {
	// Format is [BackupFormat].
	Format int `json:"format"`
	// ID of the backup, from its manifest.
	ID string `json:"id"`
	// Began and Ended by the clock of the machine that took it, RFC 3339.
	Began string `json:"began"`
	Ended string `json:"ended"`
	// Bytes of its files.
	Bytes int64 `json:"bytes"`
	// By is the person or host that took it.
	By string `json:"by"`
	// Earlier are the backups before it, the last first.
	Earlier []BackupRecord `json:"earlier,omitzero"`
	Extra   jsontext.Value `json:",embed"`
}

// keptBackups bounds the backups that are remembered.
const keptBackups = 100

func backupKey(fleet string) (string, error) {
	if err := schema.CheckName("fleet", fleet); err != nil {
		return "", err
	}
	return "backup." + fleet, nil
}

// PutBackup records the last backup of a fleet, in the bucket of the leases. Of two backups that end at once, either
// may be recorded.
func PutBackup(ctx context.Context, js jetstream.JetStream, fleet string, r BackupRecord) error {
	key, err := backupKey(fleet)
	if err != nil {
		return err
	}
	last, err := LastBackup(ctx, js, fleet)
	if err == nil {
		r.Earlier = append([]BackupRecord{last}, last.Earlier...)[:min(len(last.Earlier)+1, keptBackups)]
		r.Earlier[0].Earlier = nil
	}
	r.Format = BackupFormat
	value, err := json.Marshal(r, json.Deterministic(true))
	if err != nil {
		return fmt.Errorf("record of the backup of fleet %s: %w", fleet, err)
	}
	b := newBucket(js, schema.LeaseBucket)
	if _, err := b.publish(ctx, b.message(key, value, nil, false, 0)); err != nil {
		return fmt.Errorf("record of the backup of fleet %s: %w", fleet, err)
	}
	return nil
}

// LastBackup returns the record of the last backup of a fleet. It returns [ErrNotFound] if none was recorded,
// [ErrCorrupt] or schema.ErrFormat.
func LastBackup(ctx context.Context, js jetstream.JetStream, fleet string) (BackupRecord, error) {
	var r BackupRecord
	key, err := backupKey(fleet)
	if err != nil {
		return r, err
	}
	b := newBucket(js, schema.LeaseBucket)
	e, err := b.getFresh(ctx, key)
	if err != nil {
		return r, fmt.Errorf("record of the last backup of fleet %s: %w", fleet, err)
	}
	if r, err = decodeFormat[BackupRecord](e.value, BackupFormat); err != nil {
		return r, fmt.Errorf("record of the last backup of fleet %s: %w", fleet, err)
	}
	return r, nil
}

// PauseFor is how long a pause of purges and removals lasts, unless a backup renews it.
const PauseFor = 30 * time.Second

// Pause asks the daemons of a fleet to purge and remove nothing until a time, by the clock of the machine that takes a
// backup. A time that is over ends the pause.
func Pause(ctx context.Context, js jetstream.JetStream, fleet string, until time.Time) error {
	b := newBucket(js, schema.LeaseBucket)
	if _, err := b.publish(ctx, b.message("pause."+fleet, []byte(schema.FormatTime(until)), nil, false, 0)); err != nil {
		return fmt.Errorf("pause of purges of fleet %s: %w", fleet, err)
	}
	return nil
}

// Paused reports whether a backup of the shard's fleet asks for a pause of purges and removals. It may be wrong if clocks
// differ, or no server answers: a backup checks that nothing left the streams.
func (s *Shard) Paused(ctx context.Context, now time.Time) bool {
	b := newBucket(s.js, schema.LeaseBucket)
	e, err := b.getFresh(ctx, "pause."+s.Names.Fleet)
	if err != nil {
		return false
	}
	left := schema.ParseTime(string(e.value)).Sub(now)
	return left > 0 && left <= 2*PauseFor
}

// StreamOf returns the configuration that this version gives a stream of the fleet, and how it differs from have, the
// stream's configuration in a backup. The description, the metadata, the first sequence and a byte limit within the
// reserve are those of have; used is the size of the stream's content. The placement is left out: it names servers of
// the old cluster. It returns [ErrStreamMissing] for a stream that does not belong to the fleet.
func StreamOf(settings *schema.FleetSettings, have *jetstream.StreamConfig, used int64) (jetstream.StreamConfig, []Difference, error) {
	list := resources(settings, settings, false)
	i := slices.IndexFunc(list, func(r resource) bool { return r.want.Name == have.Name })
	if i < 0 {
		return jetstream.StreamConfig{}, nil, fmt.Errorf("%w: fleet %s has no stream %.80q", ErrStreamMissing, settings.Fleet, have.Name)
	}
	want := list[i].want
	lift := list[i].limits(used)
	var differences []Difference
	for _, f := range compare(have, nil, &want, lift).foreign {
		differences = append(differences, Difference{Flag: f.name, Want: f.show(&want), Have: f.show(have)})
	}
	if want.MaxBytes > 0 && have.MaxBytes >= want.MaxBytes && have.MaxBytes <= lift.high {
		want.MaxBytes = have.MaxBytes
	}
	want.Description, want.Metadata, want.FirstSeq = have.Description, have.Metadata, have.FirstSeq
	return want, differences, nil
}

// Adoptable reports, before a stream is restored, what [Adopt] would refuse: settings out of range, a server with too
// small a max_payload, and shared streams with another configuration.
func Adoptable(ctx context.Context, js jetstream.JetStream, settings schema.FleetSettings) error {
	if err := CheckSettings(&settings); err != nil {
		return err
	}
	p := provisioner{js: js, fleets: NewFleets(js)}
	if err := CheckServer(js.Conn()); err != nil {
		return err
	}
	for _, want := range sharedStreams(settings.Replicas) {
		info, err := p.info(ctx, want.Name)
		if errors.Is(err, ErrStreamMissing) {
			continue
		}
		if err == nil {
			_, err = p.judge(&resource{want: want, shared: true}, info)
		}
		if err != nil {
			return fmt.Errorf("adopt fleet %s: stream %s: %w", settings.Fleet, want.Name, err)
		}
	}
	return nil
}

// Adopt registers a fleet whose events, segments and blobs were restored: it stores the settings, which mark the
// fleet as provisioned. The next [Provision] creates the derived streams. It returns [ErrExists] for a registered
// fleet, [ErrStreamMissing] if one of the restored streams is missing, [ErrSettings].
func Adopt(ctx context.Context, js jetstream.JetStream, settings schema.FleetSettings) error {
	if err := CheckSettings(&settings); err != nil {
		return err
	}
	p := provisioner{js: js, fleets: NewFleets(js)}
	if err := CheckServer(js.Conn()); err != nil {
		return err
	}
	for _, r := range resources(&settings, &settings, true) {
		if !r.truth {
			continue
		}
		if _, err := p.info(ctx, r.want.Name); err != nil {
			return fmt.Errorf("adopt fleet %s: %w", settings.Fleet, err)
		}
	}
	for _, want := range sharedStreams(settings.Replicas) {
		if err := p.ensure(ctx, resource{want: want, shared: true}); err != nil {
			return fmt.Errorf("adopt fleet %s: %w", settings.Fleet, err)
		}
	}
	settings.Format = schema.SettingsFormat
	err := p.fleets.put(ctx, &settings, 0)
	if errors.Is(err, ErrConflict) {
		return fmt.Errorf("adopt fleet %s: %w: %w", settings.Fleet, ErrExists, err)
	}
	return err
}

// Vacate deletes the streams and then the settings of a fleet in which no event was ever stored, such as one that a
// daemon made after the store was lost: a restore can take its place. It deletes nothing, and returns [ErrExists] if
// anything is stored, or [ErrHeld] as a [*HeldError] if a daemon holds the lease of a shard.
func Vacate(ctx context.Context, js jetstream.JetStream, settings schema.FleetSettings) (err error) {
	p := provisioner{js: js, fleets: NewFleets(js)}
	list := resources(&settings, &settings, true)
	defer func() {
		if err != nil {
			err = fmt.Errorf("vacate fleet %s: %w", settings.Fleet, err)
		}
	}()
	if err := p.vacant(ctx, list, &settings); err != nil {
		return err
	}
	if err := p.unled(ctx, &settings); err != nil {
		return err
	}
	// Executors may still publish: the logs lose their subjects, and are checked again.
	defer func() {
		if err != nil {
			err = errors.Join(err, p.subjects(context.WithoutCancel(ctx), &settings, schema.Names.EventSubjects))
		}
	}()
	if err := p.subjects(ctx, &settings, schema.Names.EventStream); err != nil {
		return err
	}
	if err := p.vacant(ctx, list, &settings); err != nil {
		return err
	}
	for _, r := range list {
		if err := js.DeleteStream(ctx, r.want.Name); err != nil && !errors.Is(err, jetstream.ErrStreamNotFound) {
			return fmt.Errorf("stream %s: %w", r.want.Name, translate(err))
		}
	}
	return p.fleets.bucket.remove(ctx, settings.Fleet)
}

// Remove deletes the streams of a fleet with all that they store, its leases and the record of its backups, and then its
// settings: after a failure, it continues. It deletes nothing, and returns [ErrHeld] as a [*HeldError], if a daemon holds
// the lease of a shard.
func Remove(ctx context.Context, js jetstream.JetStream, settings schema.FleetSettings) error {
	p := provisioner{js: js, fleets: NewFleets(js)}
	if err := p.unled(ctx, &settings); err != nil {
		return fmt.Errorf("remove fleet %s: %w", settings.Fleet, err)
	}
	fleet, rest, leases := settings.Fleet, 0, bucketPrefix+schema.LeaseBucket
	drop := func(stream string) error {
		if err := js.DeleteStream(ctx, stream); err != nil && !errors.Is(err, jetstream.ErrStreamNotFound) {
			return fmt.Errorf("stream %s: %w", stream, translate(err))
		}
		return nil
	}
	for _, r := range resources(&settings, &settings, true) {
		if err := drop(r.want.Name); err != nil {
			return err
		}
	}
	all := p.js.ListStreams(ctx)
	for range all.Info() {
		rest++
	}
	if err := all.Err(); err != nil {
		return fmt.Errorf("streams of the account: %w", translate(err))
	}
	if rest <= len(sharedStreams(1)) { // it was the account's only fleet
		if err := drop(leases); err != nil {
			return err
		}
		return drop(p.fleets.bucket.stream)
	}
	for _, keys := range []string{"*." + fleet, "*." + fleet + ".*"} {
		if _, err := purge(ctx, p.js, leases, jsapi.PurgeRequest{Filter: "$KV." + schema.LeaseBucket + "." + keys}); err != nil {
			return fmt.Errorf("leases of fleet %s: %w", fleet, translate(err))
		}
	}
	return p.fleets.bucket.remove(ctx, fleet)
}

// vacant returns [ErrExists] if an event was ever stored in the fleet.
func (p *provisioner) vacant(ctx context.Context, list []resource, settings *schema.FleetSettings) error {
	for _, r := range list {
		info, err := p.info(ctx, r.want.Name)
		if err == nil && r.truth && isUsed(info) {
			err = p.barriersOnly(ctx, info)
		}
		if err != nil && !errors.Is(err, ErrStreamMissing) {
			return err
		}
	}
	for i := range settings.Shards {
		checkpoints := newBucket(p.js, schema.NamesOf(settings.Fleet, i).CheckpointBucket())
		mark, _, err := getWatermark(ctx, &checkpoints, schema.WatermarkKey)
		switch {
		case err == nil && mark.Totals.Events > 0:
			return fmt.Errorf("%w: shard %d has folded %d events", ErrExists, i, mark.Totals.Events)
		case err != nil && !errors.Is(err, ErrNotFound) && !errors.Is(err, ErrStreamMissing):
			return err
		}
	}
	return nil
}

// unled returns [ErrHeld] if a daemon renews the lease of a shard. The lease of a daemon that crashed passes within its
// time to live.
func (p *provisioner) unled(ctx context.Context, settings *schema.FleetSettings) error {
	group, ctx := errgroup.WithContext(ctx)
	for i := range settings.Shards {
		lease, err := NewLease(p.js, LeaseConfig{Name: FoldLease(schema.NamesOf(settings.Fleet, i)), Holder: "restore", TTL: MinLeaseTTL})
		if err != nil {
			return err
		}
		group.Go(func() error {
			again := time.NewTicker(MinLeaseTTL)
			defer again.Stop()
			for {
				err := lease.Acquire(ctx, time.Now(), 0)
				switch {
				case err == nil:
					return lease.Release(ctx)
				case errors.Is(err, ErrStreamMissing): // no daemon has run
					return nil
				case !errors.Is(err, ErrHeld) || lease.fresh:
					return err
				}
				select {
				case <-again.C:
				case <-ctx.Done():
					return translate(context.Cause(ctx))
				}
			}
		})
	}
	return group.Wait()
}

// subjects gives the log of each shard the subject.
func (p *provisioner) subjects(ctx context.Context, settings *schema.FleetSettings, of func(schema.Names) string) error {
	for i := range settings.Shards {
		n := schema.NamesOf(settings.Fleet, i)
		info, err := p.info(ctx, n.EventStream())
		if err == nil {
			info.Config.Subjects = []string{of(n)}
			_, err = p.js.UpdateStream(ctx, info.Config)
		}
		if err = translate(err); err != nil && !errors.Is(err, ErrStreamMissing) {
			return fmt.Errorf("subjects of stream %s: %w", n.EventStream(), err)
		}
	}
	return nil
}

// barriersOnly returns [ErrExists] unless a stream's only messages are the daemon's barriers.
func (p *provisioner) barriersOnly(ctx context.Context, info *jetstream.StreamInfo) error {
	stream, err := p.js.Stream(ctx, info.Config.Name)
	if err == nil {
		info, err = stream.Info(ctx, jetstream.WithSubjectFilter(">"))
	}
	if err != nil {
		return translate(err)
	}
	for subject := range info.State.Subjects {
		if !strings.HasSuffix(subject, "."+schema.BarrierRun) {
			return fmt.Errorf("%w: stream %s has %d messages", ErrExists, info.Config.Name, info.State.Msgs)
		}
	}
	return nil
}
