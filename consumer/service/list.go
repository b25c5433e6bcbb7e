package service

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/waymarkio/waymark/consumer/reader"
	"github.com/waymarkio/waymark/internal/base/pause"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

const (
	// maxPlace is the size of a place in a list, as a request names it.
	maxPlace = 64 << 10
	// maxEndedSince bounds the runs that end while a client pages through the live runs: a page must read all of
	// them.
	maxEndedSince = 1 << 14
	// maxChildrenRead bounds the checkpoints that one page of a run's children reads.
	maxChildrenRead = 2048
	// staleTries is how often a replica that lags behind the daemon is asked again, and staleWait the first pause.
	staleTries = 8
	staleWait  = 5 * time.Millisecond
)

// list answers with a page of runs from their checkpoints. They may be a moment old, but never come from a daemon
// that was cut off from the majority of the servers.
func (s *Service) list(ctx context.Context, t *task, req *schema.ListRequest) (*schema.ListReply, error) {
	l, err := s.newListing(req)
	if err != nil {
		return nil, err
	}
	if err := reached(ctx, l.shards); err != nil {
		return nil, err
	}
	if err := l.read(ctx); err != nil {
		return nil, err
	}
	// A server with a full or failing disk may have none of the checkpoints that its index names.
	none := l.lost && l.first && l.place.Over && len(l.lines) == 0
	reply := &schema.ListReply{Runs: []schema.RunSummary{}, Incomplete: l.incomplete || none}
	place := l.begin
	// A page that does not fit into one message ends earlier.
	room := t.svc.nc.MaxPayload()/2 - replyOverhead
	whole := true
	for i := range l.lines {
		room -= summarySize(&l.lines[i].RunSummary)
		if room < 0 && i > 0 {
			whole = false
			break
		}
		if !l.lines[i].Status.Terminal() {
			l.lines[i].Overdue = len(s.cfg.Heartbeats.Overdue(l.lines[i].Run))
		}
		reply.Runs = append(reply.Runs, l.lines[i].RunSummary)
		l.lines[i].passed(&place)
	}
	if whole {
		place = l.place
	}
	if !place.Over {
		reply.Next = placeText(&place)
	}
	return reply, nil
}

// summary is a checkpoint's line in a list.
func (s *Service) summary(h *schema.Head) schema.RunSummary {
	sum := schema.SummaryOf(h)
	if len(s.pausesOf(h)) > 0 {
		sum.Status = schema.StatusPaused
	}
	sum.Quarantined = h.Quarantined(s.cfg.MaxClaims)
	return sum
}

// summarySize is the approximate size of a line in JSON. A page uses half of a message, so an estimate is enough.
func summarySize(sum *schema.RunSummary) int64 {
	n := 512 + len(sum.Run) + len(sum.Agent) + len(sum.Executor) + len(sum.Parent) + len(sum.ResumedFrom) + len(sum.HandoffOf)
	for k, v := range sum.Labels {
		n += len(k) + len(v) + 6
	}
	return int64(n)
}

// listPlace is a place in a list: where a page ends and the next one begins. It is opaque to clients.
//
// The list has two parts. The first has the live runs, the last started first, and those that ended after the
// position up to which each shard was folded when the list began (its Top). The second has those that ended before,
// the last ended first, in the order of their entries in the index. No run moves from the first part to the second,
// and the order of the first never changes: so a list has every run once.
type listPlace struct {
	// Filter is a digest of the request's filter.
	Filter string `json:"f"`
	// Started and Run are the last listed run of the first part. An empty Run means none.
	Started int64  `json:"t,omitzero"`
	Run     string `json:"r,omitzero"`
	// Ended: the first part is finished.
	Ended bool `json:"e,omitzero"`
	// Shards are the places in the second part.
	Shards []shardPlace `json:"s,omitzero"`
	// Since and Until are those of the first page.
	Since string `json:"a,omitzero" check:"time"`
	Until string `json:"z,omitzero" check:"time"`
	// Child is the last run that was read in a list of a run's children.
	Child string `json:"c,omitzero"`
	// Over: the list is finished.
	Over bool `json:"o,omitzero"`
}

// shardPlace is a place among the ended runs of a shard.
type shardPlace struct {
	// Top is the position of the shard's watermark when the list began, and Mark its revision: entries of runs of the
	// second part were put before it.
	Top  schema.StreamSequence `json:"t"`
	Mark schema.Revision       `json:"m"`
	// Before is above the revision of the next entry to list; 0 if there is no more.
	Before schema.Revision `json:"b,omitzero"`
	// Floor and Until are the first positions in the log that the list has, and has not any more; 0 for none.
	Floor schema.StreamSequence `json:"f,omitzero"`
	Until schema.StreamSequence `json:"u,omitzero"`
}

// over reports whether the shard has no more ended runs to list.
func (p *shardPlace) over() bool { return p.Before == 0 }

// placeText is a place in a list as text, which is opaque to clients.
func placeText(place any) string {
	b, err := json.Marshal(place)
	if err != nil {
		return "" // it has only numbers, names and times
	}
	return base64.RawURLEncoding.EncodeToString(b)
}

// readPlace reads a place that a client returns.
func readPlace(text string, into any) error {
	b, err := base64.RawURLEncoding.DecodeString(text[:min(len(text), maxPlace)])
	if err == nil {
		err = json.Unmarshal(b, into)
	}
	if err == nil {
		err = schema.Check(into)
	}
	if err != nil {
		return badField("/after", errors.New("not a place of a list: use next of the previous page"))
	}
	return nil
}

// continues reads the place of a further page.
func (l *listing) continues(filter string) error {
	if err := readPlace(l.req.After, &l.place); err != nil {
		return err
	}
	switch p := &l.place; {
	case p.Filter != filter:
		return badField("/after", errors.New("a place of another list: send the same filter as for the previous page"))
	case len(p.Shards) != len(l.shards):
		return badField("/after", fmt.Errorf("a place of %d shards, the fleet has %d", len(p.Shards), len(l.shards)))
	}
	return nil
}

// filterDigest is the digest of a request without its page.
func filterDigest(req *schema.ListRequest) (string, error) {
	same := *req
	same.After, same.Limit = "", 0
	// A client that filters by age sends another time with each page; that of the first page is used.
	for _, at := range []*string{&same.Since, &same.Until} {
		if *at != "" {
			*at = "given"
		}
	}
	b, err := json.Marshal(&same, json.Deterministic(true))
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:6]), nil
}

// listing is a page of a list while it is built.
type listing struct {
	svc *Service
	req *schema.ListRequest
	// shards of the fleet when the page began.
	shards []*reader.Source
	// pauses of the fleet when the page began.
	pauses []schema.Pause
	// since and until are the request's, zero for none.
	since, until time.Time
	// begin is where the page begins, and place where it is now. first: the list begins with it.
	begin, place listPlace
	first        bool
	// newest is, by shard, the revision that a replica must have to be used.
	newest     []schema.Revision
	lines      []listLine
	incomplete bool
	// lost: a checkpoint that the index names is not there.
	lost bool
}

// listLine is one line, and the place after it.
type listLine struct {
	schema.RunSummary
	started int64
	// shard and revision of a line of the second part; the revision is 0 in the others.
	shard    int
	revision schema.Revision
	child    bool
}

// passed moves a place after the line.
func (l *listLine) passed(p *listPlace) {
	switch {
	case l.child:
		p.Child = l.Run
	case l.revision != 0:
		p.Ended = true
		p.Shards[l.shard].Before = l.revision
	default:
		p.Started, p.Run = l.started, l.Run
	}
}

// newListing checks a request.
func (s *Service) newListing(req *schema.ListRequest) (*listing, error) {
	l := &listing{svc: s, req: req, shards: s.routing.shards, pauses: s.liveRuns.Pauses()}
	l.newest = make([]schema.Revision, len(l.shards))
	req.Limit = cmp.Or(req.Limit, schema.DefaultList)
	for path, run := range map[string]string{"/parent": req.Parent, "/related": req.Related} {
		if run != "" && (req.Since != "" || req.Until != "") {
			return nil, badField(path, errors.New("children are listed without since and until"))
		}
	}
	filter, err := filterDigest(req)
	if err != nil {
		return nil, err
	}
	if req.After == "" {
		l.first, l.place = true, listPlace{Filter: filter, Shards: make([]shardPlace, len(l.shards))}
		l.place.Since, l.place.Until = req.Since, req.Until
	} else if err := l.continues(filter); err != nil {
		return nil, err
	}
	l.since, l.until = schema.ParseTime(l.place.Since), schema.ParseTime(l.place.Until)
	return l, nil
}

// read reads the page.
func (l *listing) read(ctx context.Context) error {
	family := l.req.Parent != "" || l.req.Related != ""
	if err := l.placeShards(ctx, family); err != nil {
		return err
	}
	if family {
		l.begin = l.place
		return l.readChildren(ctx)
	}
	l.begin = l.place
	l.begin.Shards = slices.Clone(l.place.Shards)
	if !l.place.Ended {
		if err := l.readLive(ctx); err != nil {
			return err
		}
	}
	if l.place.Ended && len(l.lines) < l.req.Limit && l.wantsEnded() {
		if err := l.readEnded(ctx); err != nil {
			return err
		}
	}
	l.place.Over = l.place.Ended && (!l.wantsEnded() || !slices.ContainsFunc(l.place.Shards, func(p shardPlace) bool { return !p.over() }))
	return nil
}

// wantsEnded reports whether the index of ended runs is needed. Ended runs with held calls or offers are in the live
// index, too.
func (l *listing) wantsEnded() bool {
	if len(l.req.Completion) > 0 && len(l.completing()) == 0 {
		return false
	}
	return !l.req.Quarantined && !l.req.Held && !l.req.Offered && (len(l.req.Status) == 0 || slices.ContainsFunc(l.req.Status, schema.Status.Terminal))
}

// completing are the statuses of runs that can have one of the requested completions.
func (l *listing) completing() []schema.Status {
	list := []schema.Status{schema.StatusCompleted}
	if slices.Contains(l.req.Completion, schema.CompletionLimit) {
		list = append(list, schema.StatusFailed)
	}
	return slices.DeleteFunc(list, func(s schema.Status) bool { return len(l.req.Status) > 0 && !slices.Contains(l.req.Status, s) })
}

// placeShards sets the revisions that replicas must have, and at the beginning of a list its places.
func (l *listing) placeShards(ctx context.Context, family bool) error {
	for i, src := range l.shards {
		l.newest[i] = l.svc.liveRuns.Revision(i)
		if !family && !l.wantsEnded() {
			continue
		}
		mark, rev, err := src.Store.Checkpoints.Watermark(ctx)
		if err != nil && !errors.Is(err, kvstore.ErrNotFound) && !errors.Is(err, kvstore.ErrCorrupt) {
			return err
		}
		switch {
		case errors.Is(err, kvstore.ErrCorrupt):
			l.incomplete = true
		case err != nil || mark.RebuildTo > 0:
			// No fold worker has begun a new shard, or one has just begun to index its empty log: it has no runs.
			usage, err := src.Store.Usage(ctx)
			if err != nil {
				return err
			}
			l.incomplete = l.incomplete || usage.Last > 0 || l.newest[i] > 0
		}
		l.newest[i] = max(l.newest[i], rev)
		if family || !l.first {
			continue
		}
		if l.place.Shards[i], err = l.beginShard(ctx, src, mark.Position.Stream, rev); err != nil {
			return err
		}
	}
	return nil
}

// beginShard is the place of a shard at the beginning of a list, with the position and the revision of its watermark.
func (l *listing) beginShard(ctx context.Context, src *reader.Source, top schema.StreamSequence, mark schema.Revision) (p shardPlace, err error) {
	p = shardPlace{Top: top, Mark: mark, Before: mark}
	if !l.since.IsZero() {
		if p.Floor, err = src.Store.PositionAt(ctx, l.since); err != nil {
			return p, err
		}
	}
	if !l.until.IsZero() {
		if p.Until, err = src.Store.PositionAt(ctx, l.until); err != nil {
			return p, err
		}
		before, err := src.Store.Checkpoints.EndedSince(ctx, p.Until)
		if err != nil {
			return p, err
		}
		p.Before = min(p.Before, before)
	}
	return p, nil
}

// matches reports whether a line passes the request's filter, except for its times.
func (l *listing) matches(r *schema.RunSummary) bool {
	run := schema.Live{Run: r.Run, Agent: r.Agent, ModelTier: r.ModelTier, Labels: r.Labels}
	if !r.Status.Terminal() && len(schema.PausesOf(l.pauses, &run)) > 0 {
		r.Status = schema.StatusPaused
	}
	scope := schema.Scope{Agent: l.req.Agent, ModelTier: l.req.ModelTier, Labels: l.req.Labels}
	return (len(l.req.Status) == 0 || slices.Contains(l.req.Status, r.Status)) &&
		(len(l.req.Completion) == 0 || slices.Contains(l.req.Completion, r.Completion)) && scope.Selects(&run)
}

func (l *listing) matchesHead(h *schema.Head) bool {
	sum := schema.RunSummary{Run: h.Run, Status: h.Status, Completion: h.Completion(), Agent: h.Agent, ModelTier: h.ModelTier, Labels: h.Labels}
	return l.matches(&sum) && (!l.req.Quarantined || h.Quarantined(l.svc.cfg.MaxClaims)) &&
		(!l.req.Held || len(h.HeldCalls()) > 0) && (!l.req.Offered || h.Offered())
}

func (l *listing) matchesLive(e *schema.Live, started time.Time) bool {
	sum := schema.SummaryOfLive(e)
	return l.matches(&sum) && (!l.req.Quarantined || e.Quarantined(l.svc.cfg.MaxClaims)) && (!l.req.Held || e.Attention != "") && (!l.req.Offered || len(e.Offers) > 0) &&
		(l.since.IsZero() || !started.Before(l.since)) && (l.until.IsZero() || started.Before(l.until))
}

// checkpoints reads checkpoints of the first of some runs of a shard, from a replica that is not behind the daemon.
func (l *listing) checkpoints(ctx context.Context, shard int, runs []string) ([]kvstore.Stored, error) {
	wait := staleWait
	for range staleTries {
		list, upTo, err := l.shards[shard].Store.Checkpoints.Of(ctx, runs)
		if err != nil {
			return nil, err
		}
		if upTo == 0 || upTo >= l.newest[shard] {
			l.lost = l.lost || slices.ContainsFunc(list, func(s kvstore.Stored) bool { return errors.Is(s.Err, kvstore.ErrNotFound) })
			return list, nil
		}
		if err := pause.For(ctx, wait); err != nil {
			return nil, err
		}
		wait *= 2
	}
	return nil, fmt.Errorf("list runs: a replica of %s lags behind: %w", l.shards[shard].Store.Names.CheckpointBucket(), kvstore.ErrUnavailable)
}

// runIn is a run of a shard.
type runIn struct {
	run   string
	shard int
}

// stored reads the checkpoints of n runs: of the first one, and of others while they are few bytes. A page ends before
// the first run that is not among them.
func (l *listing) stored(ctx context.Context, n int, at func(int) runIn) (map[runIn]*kvstore.Stored, error) {
	runs := make([][]string, len(l.shards))
	for i := range n {
		runs[at(i).shard] = append(runs[at(i).shard], at(i).run)
	}
	found := make(map[runIn]*kvstore.Stored, n)
	for shard := range runs {
		list, err := l.checkpoints(ctx, shard, runs[shard])
		if err != nil {
			return nil, err
		}
		for i := range list {
			found[runIn{list[i].Run, shard}] = &list[i]
		}
	}
	return found, nil
}

// readChildren reads a page of a run's children.
func (l *listing) readChildren(ctx context.Context) error {
	of := cmp.Or(l.req.Related, l.req.Parent)
	var children []runIn
	for i, src := range l.shards {
		runs, err := src.Store.Checkpoints.Children(ctx, of)
		if err != nil {
			return err
		}
		for _, run := range runs {
			if run > l.place.Child {
				children = append(children, runIn{run, i})
			}
		}
	}
	slices.SortFunc(children, func(a, b runIn) int { return cmp.Or(cmp.Compare(a.run, b.run), cmp.Compare(a.shard, b.shard)) })
	examined := 0
	for len(children) > 0 && len(l.lines) < l.req.Limit && examined < maxChildrenRead {
		n := min(len(children), max(2*(l.req.Limit-len(l.lines)), 16), maxChildrenRead-examined)
		found, err := l.stored(ctx, n, func(i int) runIn { return children[i] })
		if err != nil {
			return err
		}
		for i := range n {
			if len(l.lines) == l.req.Limit {
				return nil
			}
			c := children[i]
			stored := found[c]
			if stored == nil {
				return nil
			}
			l.place.Child = c.run
			switch {
			case errors.Is(stored.Err, kvstore.ErrNotFound): // named before its first checkpoint
			case stored.Err != nil:
				l.lines = append(l.lines, listLine{RunSummary: schema.RunSummary{Run: c.run}, child: true})
			case l.matchesHead(&stored.Checkpoint.Head) && l.cameOf(&stored.Checkpoint.Head):
				l.lines = append(l.lines, listLine{RunSummary: l.svc.summary(&stored.Checkpoint.Head), child: true})
			}
		}
		examined += n
		children = children[n:]
	}
	l.place.Over = len(children) == 0
	return nil
}

// cameOf reports whether the run is a child, of the requested kind, of the requested run.
func (l *listing) cameOf(h *schema.Head) bool {
	if l.req.Parent != "" && (h.Parent == nil || h.Parent.Run != l.req.Parent) {
		return false
	}
	of := l.req.Related
	return of == "" || h.Parent != nil && h.Parent.Run == of || h.ResumedFrom == of || h.Handoff != nil && h.Handoff.Run == of
}
