package service

import (
	"crypto/rand"
	stdjson "encoding/json" // the types of NATS micro use it
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"

	"github.com/waymarkio/waymark/schema"
)

// subscriptions are those of a service that listens.
type subscriptions []*nats.Subscription

// drain stops receiving. Messages that arrived are still delivered.
func (subs subscriptions) drain() error {
	var errs []error
	for _, sub := range subs {
		if err := sub.Drain(); err != nil && !errors.Is(err, nats.ErrConnectionClosed) && !errors.Is(err, nats.ErrBadSubscription) {
			errs = append(errs, fmt.Errorf("drain the subscription to %s: %w", sub.Subject, err))
		}
	}
	return errors.Join(errs...)
}

// subject is where requests of the endpoint arrive.
func (e *endpoint) subject(fleet string) string {
	if e.whole {
		return schema.ServiceSubject(e.verb, fleet, "")
	}
	return schema.ServiceSubject(e.verb, fleet, "*")
}

// listen subscribes to the endpoints' subjects, and to those by which NATS tools discover services.
//
// It implements the discovery protocol of NATS micro itself: that package answers to any reply subject, with the
// daemon's permissions.
func (s *Service) listen() (subs subscriptions, err error) {
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("service of fleet %s: %w", s.cfg.Fleet, err), subs.drain())
		}
	}()
	endpoints := s.endpoints()
	for _, e := range endpoints {
		sub, err := s.nc.QueueSubscribe(e.subject(s.cfg.Fleet), Name, func(m *nats.Msg) { s.accept(e, m) })
		if err != nil {
			return subs, err
		}
		subs = append(subs, sub)
	}
	found := newDiscovered(s, endpoints)
	for verb, answer := range map[micro.Verb]func() any{micro.PingVerb: found.ping, micro.InfoVerb: found.info, micro.StatsVerb: found.stats} {
		for _, subject := range []string{
			micro.APIPrefix + "." + verb.String(), micro.APIPrefix + "." + verb.String() + "." + Name,
			micro.APIPrefix + "." + verb.String() + "." + Name + "." + found.identity.ID,
		} {
			sub, err := s.nc.Subscribe(subject, func(m *nats.Msg) { s.describe(m, answer) })
			if err != nil {
				return subs, err
			}
			subs = append(subs, sub)
		}
	}
	return subs, nil
}

// describe answers one request of a tool that discovers services.
func (s *Service) describe(m *nats.Msg, answer func() any) {
	if m.Reply == "" {
		return
	}
	if err := schema.CheckReply(m.Reply); err != nil {
		s.refusals.Info().Str("verb", m.Subject).Str("code", string(schema.CodeForbidden)).Str("detail", err.Error()).Msg("request refused")
		return
	}
	body, err := stdjson.Marshal(answer())
	if err == nil {
		err = m.Respond(body)
	}
	if err != nil {
		s.log.Warn().Err(err).Str("verb", m.Subject).Msg("discovery not answered")
	}
}

// discovered is the answer to such a request.
type discovered struct {
	identity  micro.ServiceIdentity
	fleet     string
	started   time.Time
	endpoints []*endpoint
}

func newDiscovered(s *Service, endpoints []*endpoint) *discovered {
	return &discovered{
		identity: micro.ServiceIdentity{
			Name: Name, ID: rand.Text(), Version: s.cfg.Version,
			Metadata: map[string]string{"fleet": s.cfg.Fleet, "replica": s.cfg.Name, "shards": strconv.Itoa(len(s.routing.shards))},
		},
		fleet: s.cfg.Fleet, started: s.now().UTC(), endpoints: endpoints,
	}
}

func (d *discovered) ping() any {
	return micro.Ping{ServiceIdentity: d.identity, Type: micro.PingResponseType}
}

func (d *discovered) info() any {
	all := make([]micro.EndpointInfo, 0, len(d.endpoints))
	for _, e := range d.endpoints {
		all = append(all, micro.EndpointInfo{Name: e.verb, Subject: e.subject(d.fleet), QueueGroup: Name, Metadata: e.metadata(d.fleet)})
	}
	return micro.Info{
		ServiceIdentity: d.identity, Type: micro.InfoResponseType, Endpoints: all,
		Description: "Waymark: recovery of runs and what is known of them",
	}
}

func (d *discovered) stats() any {
	all := make([]*micro.EndpointStats, 0, len(d.endpoints))
	for _, e := range d.endpoints {
		all = append(all, &micro.EndpointStats{Name: e.verb, Subject: e.subject(d.fleet), QueueGroup: Name, NumRequests: int(e.count.Load())})
	}
	return micro.Stats{ServiceIdentity: d.identity, Type: micro.StatsResponseType, Started: d.started, Endpoints: all}
}
