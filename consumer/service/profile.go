package service

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/waymarkio/waymark/consumer/reader"
	"github.com/waymarkio/waymark/internal/eventlog"
	"github.com/waymarkio/waymark/schema"
)

// profilesKept bounds the cached profiles. Each takes at most 150 KiB, and has no content of its run.
const profilesKept = 64

// profilePart is how many records a profile reads between two saves of its progress.
const profilePart = 8192

// profiles caches the profiles that were requested last.
type profiles struct {
	// part replaces profilePart in tests; 0 for profilePart.
	part int64

	mu   sync.Mutex
	list []*keptProfile
}

// keptProfile is the profile of a run up to a record.
type keptProfile struct {
	run  string
	used time.Time

	// lock guards the rest. Reading a long run takes a while: other requests for its profile wait, as long as their context.
	lock chan struct{}
	// head is the head after the last record of the profile.
	head    schema.Head
	profile schema.Profile
}

// of returns the cached profile of a run, or a new one.
func (k *profiles) of(run string, now time.Time) *keptProfile {
	k.mu.Lock()
	defer k.mu.Unlock()
	i := slices.IndexFunc(k.list, func(p *keptProfile) bool { return p.run == run })
	if i < 0 {
		if len(k.list) >= profilesKept {
			oldest := slices.MinFunc(k.list, func(a, b *keptProfile) int { return a.used.Compare(b.used) })
			k.list = slices.DeleteFunc(k.list, func(p *keptProfile) bool { return p == oldest })
		}
		i = len(k.list)
		k.list = append(k.list, &keptProfile{run: run, lock: make(chan struct{}, 1)})
	}
	k.list[i].used = now
	return k.list[i]
}

// forget drops the profile of a run.
func (k *profiles) forget(run string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.list = slices.DeleteFunc(k.list, func(p *keptProfile) bool { return p.run == run })
}

// runs drops the profiles that were not used since a time, and returns the runs of the others.
func (k *profiles) runs(since time.Time) (list []string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.list = slices.DeleteFunc(k.list, func(p *keptProfile) bool { return p.used.Before(since) })
	for _, p := range k.list {
		list = append(list, p.run)
	}
	return list
}

// errOtherRun reports that the records differ from those of the cached profile: the log was damaged since.
var errOtherRun = errors.New("the run is another one than the profile's")

// upTo continues the profile up to a snapshot, in parts: after a timeout the next request continues with the last finished part. The chain
// of digests proves that the snapshot continues the run of the profile.
func (p *keptProfile) upTo(ctx context.Context, rd *reader.Reader, r *reader.Snapshot, part int64) error {
	for p.head.Records < r.Head.Records {
		if err := p.next(ctx, rd, r, min(p.head.Records+part, r.Head.Records)); err != nil {
			return err
		}
	}
	if p.head.Records > r.Head.Records || r.Complete() && p.head.Digest != r.Head.Digest {
		return errOtherRun
	}
	return nil
}

// next continues the profile up to a record. If it fails, the profile is unchanged.
func (p *keptProfile) next(ctx context.Context, rd *reader.Reader, r *reader.Snapshot, through int64) error {
	var profile schema.Profile
	var head schema.Head
	err := rd.Records(ctx, r, p.head.Records+1, through, func(h *schema.Head) error {
		if h.Digest != p.head.Digest {
			return errOtherRun
		}
		profile = p.profile.Clone()
		return nil
	}, func(seen *reader.Seen) error {
		profile.Apply(seen.Head, &seen.Verdict)
		if seen.Number == through {
			head = seen.Head.Clone()
		}
		return ctx.Err()
	})
	if err == nil && head.Records != through {
		err = errOtherRun
	}
	if err == nil {
		p.profile, p.head = profile, head
	}
	return err
}

// profile answers with a run's profile in a few hundred buckets. The first request reads all records of the run, later ones the new records.
func (s *Service) profile(ctx context.Context, t *task) error {
	var req schema.ProfileRequest
	if err := t.decode(&req); err != nil {
		return err
	}
	if req.Buckets < 0 || req.Buckets > schema.MaxBuckets {
		return badField("/buckets", fmt.Errorf("buckets is %d, at most %d are possible", req.Buckets, schema.MaxBuckets))
	}
	r, err := s.whole(ctx, t.run)
	if err != nil {
		s.profiles.forget(t.run)
		return err
	}
	// Requests that wait for a long profile must leave workers for other requests.
	if !s.streams.TryAcquire(1) {
		return schema.Fail(schema.CodeOverloaded, "Ask again later.", "%d long answers are under way", s.cfg.Streams)
	}
	defer s.streams.Release(1)
	p := s.profiles.of(t.run, s.now())
	select {
	case p.lock <- struct{}{}:
		defer func() { <-p.lock }()
	case <-ctx.Done():
		return ctx.Err()
	}
	if p.head.Run == "" {
		p.begin(s.cfg.Fleet)
	}
	part := cmp.Or(s.profiles.part, profilePart)
	err = p.upTo(ctx, s.reader, r, part)
	if errors.Is(err, errOtherRun) {
		p.begin(s.cfg.Fleet)
		err = p.upTo(ctx, s.reader, r, part)
	}
	if errors.Is(err, errOtherRun) {
		err = fmt.Errorf("run %s: %w: %w", t.run, err, eventlog.ErrStale)
	}
	if err != nil {
		return err
	}
	return t.whole(&schema.ProfileReply{
		Run: t.run, Records: p.head.Records, Digest: p.head.Digest, Model: p.profile.Model, Provider: p.profile.Provider,
		Total: p.profile.Total(), Buckets: p.profile.Buckets(cmp.Or(req.Buckets, schema.MaxBuckets)), Complete: r.Complete(),
	})
}

// begin resets the profile to the state before the first record.
func (p *keptProfile) begin(fleet string) {
	p.head, p.profile = schema.NewHead(fleet, p.run), schema.Profile{}
}
