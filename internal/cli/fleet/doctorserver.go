package fleet

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/waymarkio/waymark/internal/base/output"
	"github.com/waymarkio/waymark/internal/cli/base"
	"github.com/waymarkio/waymark/internal/look/failure"
	"github.com/waymarkio/waymark/internal/nats/access"
	"github.com/waymarkio/waymark/internal/nats/natsconn"
	"github.com/waymarkio/waymark/internal/nats/natsd"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

// Thresholds of the doctor.
const (
	// fullWarn and fullFail are percentages of a limit.
	fullWarn, fullFail = 80, 97
	// clockWarn and clockFail are differences of clocks.
	clockWarn, clockFail = 2 * time.Second, 30 * time.Second
	// backupWarn is the maximum age of a fleet's last backup, and of a fleet without a backup.
	backupWarn = 7 * 24 * time.Hour
	// foundWithin is how soon a server should detect a dead connection: as soon as the embedded one does.
	foundWithin = natsd.DefaultPing * 3
)

// credentials checks that the server accepts no client without credentials, and that no other machine can read the connection.
func (d *doctor) credentials(context.Context) (f base.Finding) {
	const do = "configure accounts with credentials on the server"
	local := base.IsLoopback(d.cl.NATS.ConnectedAddr())
	_, err := d.cl.NATS.TLSConnectionState()
	switch authed := d.cl.NATS.AuthRequired(); {
	case !authed && !local:
		return fault(do, "%s accepts any client that can reach it, without credentials", d.cl.Target.Address())
	case !authed:
		return warning(do, "the server accepts any client on this machine, without credentials")
	case err != nil && !local:
		return warning("configure TLS on the server, and use --tls-ca", "the connection to %s is not encrypted", d.cl.Target.Address())
	}
	return f
}

// durability checks that acknowledged messages are on disk, and how soon a server detects a dead route or client. For an
// external server only the monitoring address says so.
func (d *doctor) durability(ctx context.Context) base.Finding {
	if d.Monitor == "" && d.cl.Target.Origin == natsconn.OriginLocal {
		return ok("the local server syncs every message before it acknowledges it")
	}
	if d.Monitor == "" {
		return base.Find("", base.Unknown, "ask again with --monitor http://HOST:8222", "only the server's monitoring address reports its sync interval")
	}
	var info struct {
		Pings     int64 `json:"ping_interval"`
		Most      int64 `json:"ping_max"`
		JetStream struct {
			Config struct {
				Always   bool  `json:"sync_always"`
				Interval int64 `json:"sync_interval"`
			} `json:"config"`
		} `json:"jetstream"`
	}
	if err := monitored(ctx, d.Monitor, &info); err != nil {
		return base.Find("", base.Unknown, "check the address, and that the server has http_port or https_port set", "%s", err)
	}
	found, sync := time.Duration(info.Pings*(info.Most+1)), info.JetStream.Config
	if found > foundWithin {
		d.add("pings", warning(`set ping_interval: "5s" and ping_max: 2 in the server's configuration`,
			"a dead client is detected after %s: until then, requests sent to it are lost", found))
	}
	const do, what = "set sync_interval: always in the jetstream block of the server's configuration", "files are synced every %s: a power cut %sloses messages acknowledged since"
	switch every := time.Duration(sync.Interval); {
	case sync.Always:
		return ok("sync_interval is always, and a dead connection is detected within %s", found)
	case d.settings.Replicas > 1:
		return warning(do, what, every, "of all nodes ")
	default:
		return fault(do, what, every, "")
	}
}

// monitored reads what a server's monitoring address says about the server.
func monitored(ctx context.Context, monitor string, into any) error {
	address := strings.TrimSuffix(monitor, "/") + "/varz"
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return err
	}
	answer, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = answer.Body.Close() }() // it was read
	if err := json.UnmarshalRead(http.MaxBytesReader(nil, answer.Body, 1<<20), into); err != nil {
		return fmt.Errorf("%s: %w", address, err)
	}
	return nil
}

func (d *doctor) flags(context.Context) (f base.Finding) {
	var wrong []error
	for i := range d.list {
		switch err := d.list[i].Err; {
		case errors.As(err, new(*kvstore.ConfigError)):
			wrong = append(wrong, err)
		case err != nil && !errors.Is(err, kvstore.ErrStreamMissing):
			f = unknown(err)
		}
	}
	if len(wrong) > 0 {
		e := failure.ExplainStorage(errors.Join(wrong...))
		return fault(e.Hint, "%s", e.What)
	}
	return f
}

// room checks the streams' byte limits, without the daemon's reserve in them. A stream that discards old messages is never full.
func (d *doctor) room(context.Context) (f base.Finding) {
	var full []string
	fullest := int64(0)
	for i := range d.list {
		s := &d.list[i]
		if s.Info == nil || s.Info.Config.Discard == jetstream.DiscardOld {
			continue
		}
		limit := s.Info.Config.MaxBytes
		if strings.HasPrefix(s.Stream, "KV_") {
			limit -= d.settings.ReserveBytes
		}
		if percent := int64(s.Info.State.Bytes) * 100 / max(limit, 1); limit > 0 && percent >= fullWarn { //nolint:gosec // a size on disk
			full, fullest = append(full, fmt.Sprintf("%s is at %d %% of %s", s.Stream, percent, output.Bytes(limit))), max(fullest, percent)
		}
	}
	raise := "start the daemon with " + d.a.Prompt.Command("serve") + " --quota SIZE"
	if len(d.settings.Keys) > 0 { // its accounts have limits, too
		raise = "waymark fleet add " + d.settings.Fleet + " --dir DIR --offline --quota SIZE, reload the servers, and again without --offline"
	}
	switch do := "remove runs, or raise the quota: " + raise; {
	case fullest >= fullFail:
		return fault(do, "%s", base.Names("stream", full))
	case fullest >= fullWarn:
		return warning(do, "%s", base.Names("stream", full))
	}
	return f
}

// account checks the limits of the account.
func (d *doctor) account(ctx context.Context) base.Finding {
	info, err := d.js.AccountInfo(ctx)
	if err != nil {
		return unknown(err)
	}
	stored, reserved, limit := int64(info.Store), int64(info.ReservedStore), info.Limits.MaxStore //nolint:gosec // sizes on disk
	d.growth = max(0, reserved-stored)
	if limit <= 0 {
		return ok("the account has no limit of its own")
	}
	percent := max(stored, reserved) * 100 / limit
	f := ok("%d %% of %s are used or reserved", percent, output.Bytes(limit))
	if percent >= fullWarn {
		f.Result, f.Do = base.Warning, "raise the account's max_file, or lower the fleets' quotas"
	}
	return f
}

// creation checks that this key may make streams: the server refuses a request without a stream's name, and makes nothing.
func (d *doctor) creation(ctx context.Context) (f base.Finding) {
	subject := "$JS.API.STREAM.CREATE." + schema.NamesOf(d.cl.Fleet, 0).EventStream()
	if _, err := d.cl.NATS.RequestWithContext(ctx, subject, []byte("{}")); err != nil && context.Cause(ctx) == nil {
		return unknown(err)
	}
	return f
}

// reservation checks the account's limits against what a new fleet of one shard reserves.
func (d *doctor) reservation(ctx context.Context) base.Finding {
	info, err := d.js.AccountInfo(ctx)
	if err != nil {
		return unknown(err)
	}
	limits, streams := info.Limits, access.Streams(1)
	need, free := kvstore.Storage(1, kvstore.DefaultQuotaBytes, kvstore.DefaultReserveBytes), limits.MaxStore-int64(info.ReservedStore) //nolint:gosec // a size on disk
	switch quota := kvstore.LargestQuota(max(free, 0), 1); {
	case limits.MaxMemory >= 0 && limits.MaxMemory < access.FollowMemory:
		return fault("raise max_memory of the account to 64Mi", "the account may use %s of memory, and readers need %s", output.Bytes(limits.MaxMemory), output.Bytes(access.FollowMemory))
	case limits.MaxStreams >= 0 && limits.MaxStreams-info.Streams < streams:
		return fault("raise max_streams of the account", "the account may have %d more streams, and a fleet has %d", limits.MaxStreams-info.Streams, streams)
	case limits.MaxStore < 0:
		return ok("the account has no limit; each server needs %s in its max_file_store for each shard, or a smaller --quota", output.Bytes(need))
	case free >= need:
		return ok("%s are free, and a shard reserves %s", output.Bytes(free), output.Bytes(need))
	case quota < kvstore.MinQuotaBytes:
		return fault("raise max_file of the account", "%s are free, and the smallest fleet reserves %s", output.Bytes(free), output.Bytes(kvstore.LeastRoom(1)))
	default:
		return warning("raise max_file of the account, or use --quota "+base.ByteSize(quota).Flag(), "%s are free, and a shard reserves %s", output.Bytes(free), output.Bytes(need))
	}
}

// disk checks the free space of the local server's disk.
func (d *doctor) disk(context.Context) base.Finding {
	if d.cl.Target.Origin != natsconn.OriginLocal {
		return unknown(errors.New("the server does not use this state directory: check the disk on its machine"))
	}
	dir, err := d.a.StateDirectory()
	if err != nil {
		return unknown(err)
	}
	free, total, err := natsd.DiskRoom(dir)
	if err != nil {
		return unknown(err)
	}
	return diskRoom(free, total, d.growth)
}

// diskRoom checks a disk's free space, in bytes, against what the streams may still store: on a large disk, a few percent are plenty.
func diskRoom(free, total, growth int64) base.Finding {
	detail := fmt.Sprintf("%s of %s are free", output.Bytes(free), output.Bytes(total))
	switch least := failure.LeastRoom(total); {
	case free < least:
		return fault(fmt.Sprintf("free at least %s: a daemon that ran out of space continues by itself then", output.Bytes(least)), "%s", detail)
	case free < growth:
		return warning("free space, or lower the quota", "%s, and the streams may grow by %s", detail, output.Bytes(growth))
	}
	return ok("%s", detail)
}

// backup checks the age of the fleet's last backup, or of a fleet without one.
func (d *doctor) backup(ctx context.Context) base.Finding {
	now := d.a.Now()
	last, err := kvstore.LastBackup(ctx, d.js, d.settings.Fleet)
	began, f := now, ok("the last one, %s of %s, was started %s", last.ID, output.Bytes(last.Bytes), output.Ago(last.Began, now))
	if err == nil {
		began, err = time.Parse(time.RFC3339Nano, last.Began)
	} else if errors.Is(err, kvstore.ErrNotFound) {
		for i := range d.list {
			if s := &d.list[i]; s.Truth && s.Info != nil && s.Info.Created.Before(began) {
				began = s.Info.Created
			}
		}
		err, f = nil, ok("no backup was recorded, and the fleet is %s old", output.Plural(int(now.Sub(began)/(24*time.Hour)), "day"))
	}
	switch {
	case err != nil:
		return unknown(err)
	case now.Sub(began) > backupWarn:
		f.Result, f.Do = base.Warning, d.a.Prompt.Command("backup DIR")
	}
	return f
}

// keys checks that forged control events are refused, and that the answering daemon can sign.
func (d *doctor) keys(context.Context) base.Finding {
	signs := func(k schema.FleetKey) bool { return k.Key == d.reply.Signer && k.Until == "" }
	const none = "none: control events are not signed, so any client that may publish events can forge them"
	switch keys := d.settings.Keys; {
	case len(keys) == 0 && d.cl.NATS.AuthRequired() && d.cl.Target.Origin != natsconn.OriginLocal:
		return warning("as the fleet's daemon: "+d.a.Prompt.Command("fleet keys add"), none)
	case len(keys) == 0:
		return ok(none)
	case !slices.ContainsFunc(keys, signs):
		return fault("start it with a key that "+d.a.Prompt.Command("fleet keys")+" lists", "the daemon %s has none of the fleet's %d, or a retired one", d.reply.Replica, len(keys))
	}
	return ok("the daemon %s signs with %s", d.reply.Replica, d.reply.Signer)
}
