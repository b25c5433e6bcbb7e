//go:build unix

package nemesis_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

// fault is a temporary fault. world.heal repairs its remaining effects.
type fault struct {
	name   string
	weight int
	// servers that it needs: 1 means any number, 3 a cluster.
	servers int
	strike  func(ctx context.Context, s *storm) error
}

// storm is a fault that is under way.
type storm struct {
	*world
	rnd *rand.Rand
}

// faults are all faults. WAYMARK_CHAOS_FAULTS chooses by name.
func faults() []fault {
	return []fault{
		{"daemon-kill", 4, 1, func(ctx context.Context, s *storm) error { return s.lives(ctx, one(s, s.daemons), kill, 0, 2000) }},
		{"daemon-kill-all", 2, 1, func(ctx context.Context, s *storm) error { return s.lives(ctx, s.daemons, kill, 0, 3000) }},
		{"daemon-stop", 3, 1, func(ctx context.Context, s *storm) error { return s.freeze(ctx, one(s, s.daemons), 5000, 12000, false) }},
		{"daemon-stop-kill", 2, 1, func(ctx context.Context, s *storm) error { return s.freeze(ctx, one(s, s.daemons), 1000, 8000, true) }},
		{"daemon-term", 2, 1, func(ctx context.Context, s *storm) error { return s.lives(ctx, one(s, s.daemons), terminate, 0, 1000) }},
		{"executor-kill", 4, 1, func(ctx context.Context, s *storm) error { return s.lives(ctx, one(s, s.executors), kill, 0, 2000) }},
		{"executor-stop", 4, 1, func(ctx context.Context, s *storm) error {
			return s.freeze(ctx, one(s, s.executors), 4000, 10000, false)
		}},
		{"executor-term", 2, 1, func(ctx context.Context, s *storm) error { return s.lives(ctx, one(s, s.executors), terminate, 0, 500) }},
		{"executor-cut-off", 3, 1, func(ctx context.Context, s *storm) error {
			w := Weather{Hold: [2]bool{true, true}}
			if s.rnd.IntN(2) == 0 {
				w = Weather{Cut: true} // noticed at once
			}
			return s.weather(ctx, one(s, s.executors), w, 3000, 12000)
		}},
		{"server-kill", 4, 1, func(ctx context.Context, s *storm) error { return s.lives(ctx, one(s, s.nodes), kill, 0, 2000) }},
		{"server-kill-all", 3, 1, func(ctx context.Context, s *storm) error { return s.lives(ctx, s.nodes, kill, 0, 1000) }},
		{"server-stop", 3, 1, func(ctx context.Context, s *storm) error { return s.freeze(ctx, one(s, s.nodes), 2000, 9000, false) }},
		// Longer than the SDK's deadlines.
		{"server-stop-long", 1, 1, func(ctx context.Context, s *storm) error {
			return s.freeze(ctx, one(s, s.nodes), 12000, 36000, false)
		}},
		{"server-stop-kill", 2, 1, func(ctx context.Context, s *storm) error { return s.freeze(ctx, one(s, s.nodes), 500, 5000, true) }},
		{"server-term", 2, 1, func(ctx context.Context, s *storm) error { return s.lives(ctx, one(s, s.nodes), terminate, 0, 1000) }},
		{"server-kill-loop", 2, 1, killLoop},
		{"leader-kill", 4, 3, func(ctx context.Context, s *storm) error { return s.withLeader(ctx, kill) }},
		{"leader-stop", 3, 3, func(ctx context.Context, s *storm) error {
			return s.withLeader(ctx, func(ctx context.Context, p *process) error { return s.freeze(ctx, []*process{p}, 3000, 9000, false) })
		}},
		{"leader-stepdown", 3, 3, stepDowns},
		{"leader-isolated", 4, 3, func(ctx context.Context, s *storm) error { return s.isolate(ctx, false) }},
		{"leader-isolated-with-clients", 4, 3, func(ctx context.Context, s *storm) error { return s.isolate(ctx, true) }},
		{"leader-isolated-then-killed", 2, 3, func(ctx context.Context, s *storm) error {
			if err := s.isolate(ctx, false); err != nil {
				return err
			}
			return s.withLeader(ctx, kill)
		}},
		{"second-during-catch-up", 3, 3, second},
		{"rolling-kill", 1, 3, rollingKill},
		{"acks-lost", 4, 1, func(ctx context.Context, s *storm) error {
			return s.weather(ctx, s.executors, Weather{Hold: [2]bool{false, true}}, 1000, 6000)
		}},
		{"half-open", 3, 1, func(ctx context.Context, s *storm) error {
			return s.weather(ctx, slices.Concat(s.executors, s.daemons), Weather{Hold: [2]bool{true, false}}, 1000, 7000)
		}},
		{"mid-message", 3, 1, func(ctx context.Context, s *storm) error {
			return s.weather(ctx, slices.Concat(s.executors, s.daemons), Weather{CutAfter: int64(20_000 + s.rnd.IntN(50_000))}, 2000, 6000)
		}},
		{"servers-away", 3, 1, func(ctx context.Context, s *storm) error {
			return s.weather(ctx, slices.Concat(s.executors, s.daemons), Weather{Cut: true}, 1000, 12000)
		}},
		{"packets-lost", 3, 1, lossy},
		{"bucket-deleted", 2, 1, dropBucket},
	}
}

// one chooses one of them.
func one(s *storm, list []*process) []*process { return []*process{list[s.rnd.IntN(len(list))]} }

// between waits for a random time, in milliseconds.
func (s *storm) between(ctx context.Context, least, most int) error {
	timer := time.NewTimer(time.Duration(least+s.rnd.IntN(max(1, most-least))) * time.Millisecond)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func kill(_ context.Context, p *process) error        { return p.kill() }
func terminate(ctx context.Context, p *process) error { return p.terminate(ctx) }

// lives ends processes, and waits for a moment. They are started again by heal.
func (s *storm) lives(ctx context.Context, list []*process, end func(context.Context, *process) error, least, most int) error {
	for _, p := range list {
		if err := end(ctx, p); err != nil {
			return err
		}
	}
	return s.between(ctx, least, most)
}

// freeze stops processes for a while, and then kills or resumes them.
func (s *storm) freeze(ctx context.Context, list []*process, least, most int, thenKill bool) error {
	for _, p := range list {
		if err := p.pause(); err != nil {
			return err
		}
	}
	if err := s.between(ctx, least, most); err != nil {
		return err
	}
	for _, p := range list {
		end := p.resume
		if thenKill {
			end = p.kill
		}
		if err := end(); err != nil {
			return err
		}
	}
	return nil
}

// killLoop kills one server again and again while it starts.
func killLoop(ctx context.Context, s *storm) error {
	p := one(s, s.nodes)[0]
	for range 3 + s.rnd.IntN(3) {
		if err := p.kill(); err != nil {
			return err
		}
		if err := p.start(); err != nil {
			return err
		}
		if err := s.between(ctx, 50, 1500); err != nil {
			return err
		}
	}
	return p.kill()
}

// leader is the server that leads the event stream. Each server is asked in turn: one that is cut off knows of none.
func (s *storm) leader(ctx context.Context) (i int, err error) {
	end := time.Now().Add(patience)
	for n := 0; time.Now().Before(end); n++ {
		if i, err = s.leaderBy(ctx, n%len(s.ports)); err == nil {
			return i, nil
		}
		if err := s.between(ctx, 50, 100); err != nil {
			return 0, err
		}
	}
	return 0, err
}

// leaderBy is the leader as one server knows it.
func (s *storm) leaderBy(ctx context.Context, server int) (int, error) {
	nc, err := nats.Connect("nats://127.0.0.1:"+strconv.Itoa(s.ports[server]), nats.UserInfo(s.user, s.password), nats.NoReconnect())
	if err != nil {
		return 0, err
	}
	defer closeConn(nc)
	js, err := jetstream.New(nc)
	if err != nil {
		return 0, err
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	stream, err := js.Stream(ctx, schema.NamesOf(schema.DefaultFleet, 0).EventStream())
	if err != nil {
		return 0, err
	}
	if c := stream.CachedInfo().Cluster; c != nil {
		if i := slices.Index(s.names, c.Leader); i >= 0 {
			return i, nil
		}
	}
	return 0, fmt.Errorf("server %d knows of no leader of the event stream", server)
}

func (s *storm) withLeader(ctx context.Context, do func(context.Context, *process) error) error {
	i, err := s.leader(ctx)
	if err != nil {
		return err
	}
	return do(ctx, s.nodes[i])
}

// stepDowns has the leaders of all streams step down each second.
func stepDowns(ctx context.Context, s *storm) error {
	for range 4 {
		list, err := streams(ctx, s.js)
		if err != nil {
			return err
		}
		for _, info := range list {
			request, cancel := context.WithTimeout(ctx, 2*time.Second)
			_, _ = s.js.Conn().RequestWithContext(request, "$JS.API.STREAM.LEADER.STEPDOWN."+info.Config.Name, nil) // it may have none right now
			cancel()
		}
		if err := s.between(ctx, 800, 1200); err != nil {
			return err
		}
	}
	return nil
}

// isolate cuts the leader off from the other servers, and its clients from it or from the others, by holding all
// data.
func (s *storm) isolate(ctx context.Context, withClients bool) error {
	leader, err := s.leader(ctx)
	if err != nil {
		return err
	}
	held := Weather{Hold: [2]bool{true, true}}
	if s.rnd.IntN(2) == 0 {
		held = Weather{Cut: true} // noticed at once
	}
	for i := range s.nodes {
		if i != leader {
			s.routes[i][leader].Set(held)
			s.routes[leader][i].Set(held)
		}
	}
	for n, name := range s.clients() {
		for i, p := range s.links[name] {
			// With clients: some are on its side alone. Without: all are on the others'.
			mine := withClients && n%2 == 0
			if (i == leader) != mine {
				p.Set(held)
			}
		}
	}
	return s.between(ctx, 6000, 14000)
}

// clients are the names of executors and daemons, in a fixed order.
func (s *storm) clients() []string {
	var names []string
	for _, p := range slices.Concat(s.executors, s.daemons) {
		names = append(names, p.name)
	}
	return names
}

// second kills a server, starts it again, and kills another while the first one catches up.
func second(ctx context.Context, s *storm) error {
	order := s.rnd.Perm(len(s.nodes))
	first, other := s.nodes[order[0]], s.nodes[order[1]]
	if err := first.kill(); err != nil {
		return err
	}
	if err := s.between(ctx, 2000, 5000); err != nil {
		return err
	}
	if err := first.start(); err != nil {
		return err
	}
	if err := s.between(ctx, 100, 1500); err != nil {
		return err
	}
	if err := other.kill(); err != nil {
		return err
	}
	return s.between(ctx, 500, 2500)
}

// rollingKill kills each server and starts it again, without waiting until it has caught up.
func rollingKill(ctx context.Context, s *storm) error {
	for _, i := range s.rnd.Perm(len(s.nodes)) {
		if err := s.nodes[i].kill(); err != nil {
			return err
		}
		if err := s.nodes[i].start(); err != nil {
			return err
		}
		if err := s.serving(i); err != nil {
			return err
		}
		if err := s.between(ctx, 0, 1000); err != nil {
			return err
		}
	}
	return nil
}

// weather sets that of some clients' links for a while.
func (s *storm) weather(ctx context.Context, list []*process, w Weather, least, most int) error {
	for _, p := range list {
		for _, link := range s.links[p.name] {
			link.Set(w)
		}
	}
	return s.between(ctx, least, most)
}

// lossy imitates links that lose every second packet: half of the data comes later.
func lossy(ctx context.Context, s *storm) error {
	w := Weather{StallEvery: 2, Stall: 200 * time.Millisecond, Delay: time.Millisecond}
	for _, list := range s.routes {
		for _, link := range list {
			if link != nil {
				link.Set(w)
			}
		}
	}
	return s.weather(ctx, slices.Concat(s.executors, s.daemons), w, 3000, 9000)
}

// dropBucket deletes the checkpoints of a shard: they are made from the log, and come back.
func dropBucket(ctx context.Context, s *storm) error {
	request, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	settings, _, err := kvstore.NewFleets(s.js).Get(request, schema.DefaultFleet)
	if err != nil {
		return err
	}
	shard := s.rnd.IntN(settings.Shards)
	if err := s.js.DeleteStream(request, "KV_"+schema.NamesOf(schema.DefaultFleet, shard).CheckpointBucket()); err != nil {
		return err
	}
	return s.between(ctx, 0, 3000)
}
