package kvstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/waymarkio/waymark/internal/nats/jsapi"
	"github.com/waymarkio/waymark/schema"
)

// Bounds on the work of one call of [Checkpoints.Ended].
const (
	// endedRequests is the number of requests, and endedExamined that of bytes read, endedCost for an entry included.
	endedRequests = 32
	endedExamined = 4 << 20
	endedCost     = 512
	// endedBatch and endedMost are the least and the most entries that a request asks for.
	endedBatch = 128
	endedMost  = 1024
	// endedWiden is the largest factor by which a request's range of revisions grows where there are few entries.
	endedWiden = 8
	// endedLag is the number of entries that a lagging replica may lack.
	endedLag = 64
	// endedClocks is how far the clocks of two servers may differ.
	endedClocks = time.Minute
)

// EndedQuery selects entries of the index of ended runs.
type EndedQuery struct {
	// From is the lowest revision to return, and Before the first revision above the range.
	From, Before schema.Revision
	// Since ends the page at the first entry that was put before it: older entries are not read. Zero means none.
	Since time.Time
	// Agent and Status of the runs to return; "" means all.
	Agent  string
	Status schema.Status
	// Match filters the entries that were read. Nil means all.
	Match func(*schema.Ended) bool
	// Limit is the number of entries to return; at least 1.
	Limit int
}

// EndedRun is an entry of the index of ended runs. An unreadable one has only run, agent and status, and Format 0.
type EndedRun struct {
	schema.Ended
	Revision schema.Revision
}

// EndedPage is the result of a call of [Checkpoints.Ended].
type EndedPage struct {
	// Runs found, the last put first.
	Runs []EndedRun
	// Next is the Before of the following call; 0 if the list is complete.
	Next schema.Revision
}

// Ended returns runs that have ended, from the index. The work of one call is bounded, whatever the number of stored
// runs: a page can be shorter than the limit, even empty, although more follow. It asks the server for the entries in
// ranges of revisions, wider ones where there are few entries, so that the server sends hardly any entries that the
// filter excludes. Any replica may answer; the leader confirms that it left out none. It may contain runs that are no
// longer ended: compare with the checkpoints.
func (c *Checkpoints) Ended(ctx context.Context, q EndedQuery) (EndedPage, error) {
	var p EndedPage
	if q.Limit < 1 {
		return p, fmt.Errorf("list ended runs of %s: limit is %d, use 1 or more", c.bucket.name, q.Limit)
	}
	first, last, err := c.span(ctx)
	if err != nil {
		return p, err
	}
	from := max(q.From, first)
	p.Next = min(q.Before, last+1)
	batch := min(max(q.Limit, endedBatch), endedMost)
	width := schema.Revision(batch) //nolint:gosec // small
	for examined, requests := 0, 0; requests < endedRequests && examined < endedExamined; requests++ {
		if p.Next <= from {
			p.Next = 0
			return p, nil
		}
		start := p.Next - min(width, p.Next-from)
		found, end, err := c.endedIn(ctx, start, p.Next, batch, &q)
		if err != nil {
			return p, fmt.Errorf("list ended runs of %s: %w", c.bucket.name, err)
		}
		if end < p.Next {
			width = endedWidth(end-start, len(found), min(batch, len(found)))
			continue
		}
		for _, f := range slices.Backward(found) {
			examined += len(f.value) + endedCost
			if f.stored.Before(q.Since) {
				p.Next = 0
				return p, nil
			}
			e, ok := endedOf(f)
			if !ok || q.Match != nil && !q.Match(&e.Ended) {
				continue
			}
			p.Runs = append(p.Runs, e)
			if len(p.Runs) >= q.Limit {
				p.Next = e.Revision
				return p, nil
			}
		}
		p.Next = start
		batch = min(2*batch, endedMost)
		width = endedWidth(max(end-start, width), len(found), batch)
	}
	return p, nil
}

// endsPage is the number of ends that are read together to be posted.
const endsPage = 64

// Unposted returns the next ended runs behind the cursor, in the order of their puts, and the cursor behind them with the
// revision of the stored one, for [Checkpoints.Posted]. It leaves out accepted ends that a rebuild put again. Without a
// cursor it stores one: earlier ends are not posted.
func (c *Checkpoints) Unposted(ctx context.Context) (runs []EndedRun, next schema.Posted, rev schema.Revision, err error) {
	_, last, err := c.span(ctx)
	if err != nil {
		return nil, next, 0, err
	}
	stored, err := c.bucket.getFresh(ctx, schema.PostedKey)
	if errors.Is(err, ErrNotFound) {
		return nil, next, 0, c.Posted(ctx, schema.Posted{Revision: last}, 0)
	}
	if err == nil {
		err = json.Unmarshal(stored.value, &next)
	}
	if err != nil {
		return nil, next, 0, fmt.Errorf("cursor of posted ends of %s: %w", c.bucket.name, err)
	}
	found, end, err := c.endedIn(ctx, next.Revision+1, last+1, endsPage, &EndedQuery{})
	if err != nil {
		return nil, next, 0, fmt.Errorf("ends of %s to post: %w", c.bucket.name, err)
	}
	for _, f := range found {
		if e, ok := endedOf(f); ok && (!e.Rebuilt || e.Position > next.Position) {
			runs = append(runs, e)
		}
	}
	// A put can fail while a later one is stored: lower positions may follow.
	for i := range runs {
		next.Position = max(next.Position, runs[i].Position)
	}
	next.Revision = end - 1
	if len(found) > 0 {
		next.Revision = max(next.Revision, found[len(found)-1].rev)
	}
	return runs, next, stored.rev, nil
}

// Posted stores the cursor, if it is at a revision.
func (c *Checkpoints) Posted(ctx context.Context, at schema.Posted, rev schema.Revision) error {
	value, err := json.Marshal(at)
	if err == nil {
		_, err = c.bucket.put(ctx, schema.PostedKey, value, rev)
	}
	if err != nil {
		return fmt.Errorf("put cursor of posted ends of %s: %w", c.bucket.name, err)
	}
	return nil
}

// endedWidth is the width of a range of revisions whose entries fill most of an answer, judged by a range's number of
// entries.
func endedWidth(width schema.Revision, found, batch int) schema.Revision {
	want := batch * 3 / 4
	//nolint:gosec // small
	return max(min(width*schema.Revision(want)/schema.Revision(max(found, 1)), width*endedWiden), schema.Revision(want), 1)
}

// endedIn reads the entries with an agent and a status in a range of revisions, the oldest first. end is where the
// answer ends: below before if there are more entries than one answer has.
func (c *Checkpoints) endedIn(ctx context.Context, start, before schema.Revision, batch int, q *EndedQuery) (found []entry, end schema.Revision, err error) {
	agent := "*"
	if q.Agent != "" {
		agent = schema.AgentToken(q.Agent)
	}
	filter := c.bucket.prefix + schema.EndedKeyPrefix + agent + "." + cmp.Or(string(q.Status), "*") + ".*"
	seen := start - 1
	take := func(e entry) {
		if seen = e.rev; e.rev < before && !e.deleted {
			found = append(found, e)
		}
	}
	answer, err := c.bucket.direct(ctx, jsapi.GetRequest{Seq: uint64(start), NextFor: filter, Batch: batch}, take)
	if err != nil || seen < before && answer.pending > 0 {
		return found, seen, err
	}
	// An answer that ends within the range is complete if the leader has no further entry there.
	for lacking := 0; seen+1 < before; lacking++ {
		e, err := c.bucket.nextFresh(ctx, filter, seen+1)
		if errors.Is(err, ErrNotFound) || err == nil && e.rev >= before {
			break
		}
		if err == nil && lacking == endedLag {
			err = fmt.Errorf("%w: a replica of stream %s lags behind", ErrUnavailable, c.bucket.stream)
		}
		if err != nil {
			return nil, 0, err
		}
		take(e)
	}
	return found, before, nil
}

// EndedSince returns the first revision at or after which all entries are of runs whose last event is at or after a
// position of the log. It relies on the order of the puts, which is that of the log: a run whose entry was put later,
// because its checkpoint was lost, counts as ended then.
func (c *Checkpoints) EndedSince(ctx context.Context, at schema.StreamSequence) (schema.Revision, error) {
	low, last, err := c.span(ctx)
	if err != nil {
		return 0, err
	}
	for high := last + 1; low < high; {
		middle := low + (high-low)/2
		e, err := c.bucket.nextFresh(ctx, c.bucket.prefix+schema.EndedKeyPrefix+"*.*.*", middle)
		if err != nil && !errors.Is(err, ErrNotFound) {
			return 0, fmt.Errorf("search the ended runs of %s: %w", c.bucket.name, err)
		}
		if err == nil {
			if run, ok := endedOf(e); !ok || run.Position < at {
				low = e.rev + 1
				continue
			}
		}
		high = middle
	}
	return low, nil
}

// EndedClock is the Since of a query for runs that ended at or after a time: no clock of a server differs by more.
func EndedClock(at time.Time) time.Time { return at.Add(-endedClocks) }

// endedOf reads an entry.
func endedOf(e entry) (EndedRun, bool) {
	rest, ours := strings.CutPrefix(e.key, schema.EndedKeyPrefix)
	tokens := strings.Split(rest, ".")
	if !ours || e.deleted || len(tokens) != 3 {
		return EndedRun{}, false
	}
	agent, status, run := tokens[0], schema.Status(tokens[1]), tokens[2]
	if !schema.ValidName(run) || !status.Terminal() {
		return EndedRun{}, false
	}
	var ended schema.Ended
	if err := json.Unmarshal(e.value, &ended); err == nil && ended.Format == schema.EndedFormat && ended.Run == run && ended.Status == status &&
		schema.AgentToken(ended.Agent) == agent {
		return EndedRun{ended, e.rev}, true
	}
	if agent == schema.NoAgent {
		agent = ""
	}
	return EndedRun{schema.Ended{RunSummary: schema.RunSummary{Run: run, Agent: agent, Status: status}}, e.rev}, true
}
