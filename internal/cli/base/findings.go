package base

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/waymarkio/waymark/internal/base/output"
	"github.com/waymarkio/waymark/internal/nats/access"
	"github.com/waymarkio/waymark/kvstore"
)

// Results of a check, the worst first.
const (
	Failed  = "FAILED"
	Warning = "warning"
	Unknown = "unknown"
	Good    = "ok"
)

// Results are all of them.
var Results = []string{Failed, Warning, Unknown, Good}

// Next steps that doctor and the daemon share.
const (
	LostDo   = "do not restart the daemon; if the store of the NATS server was lost, restore a backup"
	WritesDo = "check that more than half of the stream's replicas run and reach each other (nats stream report), and that the disk of each NATS server has " +
		"free space: restart a server whose disk was full, it stores no message before. The daemon continues by itself"
	jetStreamDo = "check that the server's configuration has a jetstream block and that its disk has free space; restart one whose disk was full"
)

// Finding is the result of a check. Doctor, the daemon's log and its health checks use the same words.
type Finding struct {
	Check  string `json:"check"`
	Result string `json:"result"`
	Detail string `json:"detail"`
	// Do is the command to run or the setting to change; empty if there is nothing to do.
	Do string `json:"do,omitzero"`
}

// Find makes a finding.
func Find(check, result, do, format string, args ...any) Finding {
	return Finding{Check: check, Result: result, Detail: fmt.Sprintf(format, args...), Do: do}
}

// AnyFailed reports whether a check failed.
func AnyFailed(list []Finding) bool {
	return slices.ContainsFunc(list, func(f Finding) bool { return f.Result == Failed })
}

// Fit checks that a server can have a fleet, as far as the client's key can tell.
func Fit(nc *nats.Conn) error {
	if nc.Opts.InboxPrefix == access.InboxPrefix(access.Observer) {
		return kvstore.CheckVersion(nc)
	}
	return kvstore.CheckServer(nc)
}

// Unusable finds why JetStream cannot be used at an address: the first cause only, because the rest are its
// consequences. It returns nothing if it finds no cause.
func Unusable(ctx context.Context, nc *nats.Conn, address string) []Finding {
	if !nc.IsConnected() {
		return []Finding{Find("connection", Failed, "check that the NATS servers run and can be reached from here; the daemon reconnects by itself",
			"%s to the nats server at %s", strings.ToLower(nc.Status().String()), address)}
	}
	if err := Fit(nc); err != nil {
		return []Finding{Find("server", Failed, "run nats-server "+kvstore.LeastServer+" or newer with max_payload: 1MB", "%s", err)}
	}
	js, err := jetstream.New(nc)
	if err == nil {
		_, err = js.AccountInfo(ctx)
	}
	switch {
	case errors.Is(err, jetstream.ErrJetStreamNotEnabled):
		return []Finding{Find("jetstream", Failed, jetStreamDo, "JetStream is off at %s", address)}
	case errors.Is(err, jetstream.ErrJetStreamNotEnabledForAccount):
		return []Finding{Find("jetstream", Failed, "set jetstream: enabled for the account, and reload the NATS servers", "JetStream is off for this account at %s", address)}
	case js == nil:
		return nil
	}
	list := kvstore.Inspect(ctx, js, nil)
	if found := slices.DeleteFunc(Streams(list), func(f Finding) bool { return f.Result != Failed }); len(found) > 0 {
		return found
	}
	return Silent(list, address)
}

// Silent finds that no stream answers.
func Silent(list []kvstore.Inspected, address string) []Finding {
	for i := range list {
		if s := &list[i]; s.Info != nil || errors.Is(s.Err, kvstore.ErrStreamMissing) {
			return nil
		}
	}
	return []Finding{Find("jetstream", Failed, jetStreamDo, "JetStream does not answer at %s: %s", address, list[0].Err)}
}

// smallLag is how many messages a replica may be behind while they are written: the slowest is behind at each look.
const smallLag = 100

// Streams finds servers that are down or behind, each with the number of its streams, and then streams that are missing
// or have no leader.
func Streams(list []kvstore.Inspected) (found []Finding) {
	type server struct {
		down, stuck, behind int
		lag                 uint64
		seen                time.Duration
	}
	servers := make(map[string]*server)
	var lost, derived, leaderless []string
	for i := range list {
		s := &list[i]
		switch {
		case errors.Is(s.Err, kvstore.ErrStreamMissing) && s.Truth:
			lost = append(lost, s.Stream)
		case errors.Is(s.Err, kvstore.ErrStreamMissing):
			derived = append(derived, s.Stream)
		}
		if s.Info == nil || s.Info.Cluster == nil {
			continue
		}
		all, led := s.Info.Cluster.Replicas, s.Info.Cluster.Leader != ""
		down := slices.DeleteFunc(slices.Clone(all), func(r *jetstream.PeerInfo) bool { return !r.Offline })
		peers := len(all) + 1
		if !led {
			leaderless, peers = append(leaderless, s.Stream), len(all) // the one that answered is listed
		}
		for _, r := range all {
			on := cmp.Or(servers[r.Name], new(server))
			servers[r.Name] = on
			switch {
			case r.Offline && 2*len(down) >= peers:
				on.stuck++
				fallthrough
			case r.Offline:
				if on.down++; on.seen == 0 || r.Active > 0 && r.Active < on.seen {
					on.seen = r.Active
				}
			case led && !r.Current && (r.Lag > smallLag || r.Lag == 0): // without a leader, none is current
				on.behind, on.lag = on.behind+1, max(on.lag, r.Lag)
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(servers)) {
		on, since := servers[name], ""
		if on.seen > 0 {
			since = fmt.Sprintf(", last seen %s ago", on.seen.Round(time.Second))
		}
		down := fmt.Sprintf("server %s is down%s: %s a replica there", name, since, output.Plural(on.down, "stream has", "streams have"))
		switch {
		case on.stuck > 0:
			found = append(found, Find("servers", Failed, "start nats-server on "+name+" again", "%s, and %d of them take no write", down, on.stuck))
		case on.down > 0:
			found = append(found, Find("servers", Warning, "start nats-server on "+name+" again", "%s", down))
		case on.behind > 0:
			found = append(found, Find("servers", Warning, "wait until it has caught up; if it does not, see its log and its disk",
				"server %s is behind in %s, by at most %s", name, output.Plural(on.behind, "stream"), output.Plural(on.lag, "message")))
		}
	}
	switch {
	case len(lost) > 0:
		lost = append(lost, derived...)
		found = append(found, Find("streams", Failed, LostDo, "%s %s missing", Names("stream", lost), output.InNumber(len(lost), "is", "are")))
	case len(derived) > 0:
		found = append(found, Find("streams", Warning, "restart the daemon: it makes derived streams again",
			"%s %s missing", Names("stream", derived), output.InNumber(len(derived), "is", "are")))
	}
	if len(leaderless) > 0 && !AnyFailed(found) {
		found = append(found, Find("streams", Failed, "check that the NATS servers reach each other; see: nats server report jetstream",
			"%s %s no leader, so that writes fail", Names("stream", leaderless), output.InNumber(len(leaderless), "has", "have")))
	}
	return found
}

// Names lists a few of many: streams a, b, c and 5 more.
func Names[T any](noun string, list []T) string {
	const most = 3
	text := make([]string, 0, most)
	for _, one := range list[:min(len(list), most)] {
		text = append(text, fmt.Sprint(one))
	}
	more := ""
	if n := len(list) - most; n > 0 {
		more = fmt.Sprintf(" and %d more", n)
	}
	return output.InNumber(len(list), noun, noun+"s") + " " + strings.Join(text, ", ") + more
}
