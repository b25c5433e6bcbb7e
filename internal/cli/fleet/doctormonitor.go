package fleet

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/waymarkio/waymark/internal/base/output"
	"github.com/waymarkio/waymark/internal/nats/natsconn"
	"github.com/waymarkio/waymark/internal/nats/natsd"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

// durability checks that acknowledged messages are on disk. For an external server only the monitoring address has the
// sync interval.
func (d *doctor) durability(ctx context.Context, monitor string, settings *schema.FleetSettings) {
	const name = "durability"
	const do = "set sync_interval: always in the jetstream block of the server's configuration"
	switch {
	case monitor == "" && d.cl.Target.Origin == natsconn.OriginLocal:
		d.add(name, checkOK, "", "the local server syncs every message before it acknowledges it")
		return
	case monitor == "":
		d.add(name, checkUnknown, "ask again with --monitor http://HOST:8222", "only the server's monitoring address reports its sync interval")
		return
	}
	always, interval, err := syncOf(ctx, monitor)
	switch {
	case err != nil:
		d.add(name, checkUnknown, "check the address, and that the server has http_port or https_port set", "%s", err)
	case always:
		d.add(name, checkOK, "", "sync_interval is always")
	case settings.Replicas > 1:
		d.add(name, checkWarning, do, "files are synced every %s: a power cut of all nodes loses messages acknowledged since", interval)
	default:
		d.add(name, checkFailed, do, "files are synced every %s: a power cut loses messages acknowledged since", interval)
	}
}

// slowSyncMS is the time of a small durable write, in milliseconds, from which on a fleet should have several shards:
// its executors then wait for the disk, not for the CPU.
const slowSyncMS = 1

// syncs reports the cost of a durable write, and how executors share it.
func (d *doctor) syncs(ms float64, settings *schema.FleetSettings) {
	const name = "durable write"
	how := "the servers sync the messages of all executors together"
	if settings.Replicas == 1 {
		how = "the messages of one shard are synced one after the other, those of several at once; runs are spread over " + output.Plural(settings.Shards, "shard")
	}
	switch {
	case ms == 0:
		d.add(name, checkUnknown, "", "not measured yet, or the answering daemon folds no shard; %s", how)
	case settings.Replicas == 1 && settings.Shards < kvstore.LoneShards && ms >= slowSyncMS:
		d.add(name, checkWarning, fmt.Sprintf("start new runs in a second fleet with %d shards (docs/deploy.md, A fleet that is too small)", kvstore.LoneShards), "%.1f ms for a small message; %s", ms, how)
	default:
		d.add(name, checkOK, "", "%.1f ms for a small message; %s", ms, how)
	}
}

// syncOf reads a server's sync interval from its monitoring address.
func syncOf(ctx context.Context, monitor string) (always bool, interval time.Duration, err error) {
	var info struct {
		Config *struct {
			SyncAlways   bool  `json:"sync_always"`
			SyncInterval int64 `json:"sync_interval"`
		} `json:"config"`
	}
	if err := monitored(ctx, monitor, "jsz", "?config=true", &info); err != nil {
		return false, 0, err
	}
	if info.Config == nil {
		return false, 0, fmt.Errorf("%s does not report JetStream's configuration", monitor)
	}
	return info.Config.SyncAlways, time.Duration(info.Config.SyncInterval), nil
}

// foundWithin is how soon a server should detect a dead connection: as soon as the embedded one does.
const foundWithin = natsd.DefaultPing * 3

// pings checks how soon a server detects a dead route or client, if its monitoring address is known.
func (d *doctor) pings(ctx context.Context, monitor string) {
	if monitor == "" {
		return
	}
	var info struct {
		Interval int64 `json:"ping_interval"`
		Most     int64 `json:"ping_max"`
	}
	const name = "pings"
	err := monitored(ctx, monitor, "varz", "", &info)
	found := time.Duration(info.Interval * (info.Most + 1))
	switch {
	case err != nil || found <= 0:
		d.add(name, checkUnknown, "check the address, and that the server has http_port or https_port set", "the server's ping interval is unknown: %v", err)
	case found > foundWithin:
		d.add(name, checkWarning, `set ping_interval: "5s" and ping_max: 2 in the server's configuration`,
			"a dead client is detected after %s: until then, requests sent to it are lost", found)
	default:
		d.add(name, checkOK, "", "a dead connection is detected within %s", found)
	}
}

// monitored reads a page of a server's monitoring address.
func monitored(ctx context.Context, monitor, page, query string, into any) error {
	address, err := url.JoinPath(monitor, page)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address+query, nil)
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
