package kvstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/waymarkio/waymark/internal/jsapi"
	"github.com/waymarkio/waymark/schema"
)

// Bounds on the work of one call of [Checkpoints.Ended].
const (
	// endedRequests is the number of requests, and endedExamined that of entries read.
	endedRequests = 32
	endedExamined = 4096
	// endedFew and endedMany are the entries of one answer below and above which the next one is asked for a larger or a
	// smaller volume.
	endedFew  = 16
	endedMany = 256
)

// EndedQuery chooses entries of the index of ended runs.
type EndedQuery struct {
	// Floor is the first position of the log that is of interest, and Before the first above it that is not any more.
	Floor, Before schema.StreamSequence
	// Agent whose runs are asked for; "" means all. Statuses that end a run; none means all.
	Agent    string
	Statuses []schema.Status
	// Match chooses among those that were read. Nil means all.
	Match func(*schema.Ended) bool
	// Limit is the number of entries to return; at least 1. There can be more when some cannot be read.
	Limit int
}

// EndedPage is what a call of [Checkpoints.Ended] found.
type EndedPage struct {
	// Runs found, those whose last event is the newest first. Of an entry that cannot be read all but the run, agent and
	// status is zero, and the position is the beginning of its volume.
	Runs []schema.Ended
	// Next is the Before of the following call; there is nothing more when it is not above Floor.
	Next schema.StreamSequence
	// UpTo is the last revision that the replicas which answered had, at least; 0 when nothing was asked. An entry that was put
	// at a later one may be missing.
	UpTo schema.Revision
}

// Ended returns runs that have ended, from the index. The work of one call is bounded, whatever the number of runs stored:
// a page can be shorter than the limit, even empty, with more to come. It asks the server for volumes of the log
// (schema.EndedVolume), smaller ones where there are many entries and larger ones where there are few, so that what the
// filter leaves out is hardly ever sent. It may be stale, and hold runs that are not ended any more: compare
// with the checkpoints.
func (c *Checkpoints) Ended(ctx context.Context, q EndedQuery) (EndedPage, error) {
	p := EndedPage{Next: q.Before}
	if q.Limit < 1 {
		return p, fmt.Errorf("list ended runs of %s: limit is %d, use 1 or more", c.bucket.name, q.Limit)
	}
	level, examined := 0, 0
	for range endedRequests {
		if p.Next <= q.Floor || examined >= endedExamined {
			break
		}
		start := (p.Next - 1) >> schema.EndedShifts[level] << schema.EndedShifts[level]
		found, upTo, err := c.endedIn(ctx, start, level, &q)
		if errors.Is(err, errTooMany) && level > 0 {
			level--
			continue
		}
		if err != nil {
			return p, fmt.Errorf("list ended runs of %s: %w", c.bucket.name, err)
		}
		if p.UpTo == 0 || upTo < p.UpTo {
			p.UpTo = upTo
		}
		examined += len(found)
		for i := range found {
			e := &found[i]
			if e.Format == 0 {
				e.Position = max(e.Position, q.Floor)
			}
			if e.Position >= p.Next || e.Position < q.Floor || q.Match != nil && !q.Match(e) {
				continue
			}
			p.Runs = append(p.Runs, *e)
			// Only entries that cannot be read share a position; the next page begins below it.
			if len(p.Runs) >= q.Limit && (i+1 == len(found) || found[i+1].Position < e.Position) {
				p.Next = e.Position
				return p, nil
			}
		}
		p.Next = max(start, q.Floor)
		switch {
		case len(found) < endedFew:
			level = min(level+1, len(schema.EndedShifts)-1)
		case len(found) > endedMany:
			level = max(level-1, 0)
		}
	}
	return p, nil
}

// endedIn reads what a volume has of the runs asked for, the newest first.
func (c *Checkpoints) endedIn(ctx context.Context, at schema.StreamSequence, level int, q *EndedQuery) ([]schema.Ended, schema.Revision, error) {
	agent, statuses := "*", []string{"*"}
	if q.Agent != "" {
		agent = schema.AgentToken(q.Agent)
	}
	if len(q.Statuses) > 0 {
		statuses = statuses[:0]
		for _, s := range q.Statuses {
			statuses = append(statuses, string(s))
		}
	}
	volume := c.bucket.prefix + schema.EndedVolume(at, level) + "." + agent + "."
	// The state of the index is asked for beside it, for an answer that found nothing does not say how old it is.
	subjects := []string{c.bucket.prefix + schema.IndexKey}
	for _, s := range statuses {
		subjects = append(subjects, volume+s+".*")
	}
	var found []schema.Ended
	take := func(e entry) {
		if ended, ok := endedOf(e); ok {
			found = append(found, ended)
		}
	}
	end, err := c.bucket.direct(ctx, jsapi.GetRequest{MultiLast: subjects}, take)
	if errors.Is(err, errTooMany) && level == 0 {
		// More than have room: other hands, or a log that was restored. They are read by their names.
		end.upTo, err = 0, c.eachOf(ctx, subjects[1:], take)
	}
	if err == nil && end.pending > 0 {
		err = fmt.Errorf("%w: stream %s left out %d messages of an answer", ErrUnavailable, c.bucket.stream, end.pending)
	}
	if err != nil {
		return nil, 0, err
	}
	slices.SortFunc(found, func(a, b schema.Ended) int {
		return cmp.Or(cmp.Compare(b.Position, a.Position), strings.Compare(a.Run, b.Run))
	})
	return found, end.upTo, nil
}

// eachOf reads the keys of subjects by name.
func (c *Checkpoints) eachOf(ctx context.Context, subjects []string, yield func(entry)) error {
	for _, subject := range subjects {
		for offset, more := 0, true; more; {
			keys, further, err := c.bucket.subjectPage(ctx, strings.TrimPrefix(subject, c.bucket.prefix), offset)
			if err != nil {
				return err
			}
			offset, more = offset+len(keys), further
			found, err := c.bucket.many(ctx, keys)
			if err != nil {
				return err
			}
			for _, e := range found {
				yield(e)
			}
		}
	}
	return nil
}

// endedOf reads an entry. Of one that cannot be read it is what its key says, at its volume's beginning, and Format is 0.
func endedOf(e entry) (schema.Ended, bool) {
	rest, ours := strings.CutPrefix(e.key, schema.EndedKeyPrefix)
	tokens := strings.Split(rest, ".")
	if !ours || e.deleted || len(tokens) != len(schema.EndedShifts)+3 {
		return schema.Ended{}, false
	}
	agent, status, run := tokens[len(tokens)-3], schema.Status(tokens[len(tokens)-2]), tokens[len(tokens)-1]
	if !schema.ValidName(run) || !status.Terminal() {
		return schema.Ended{}, false
	}
	var ended schema.Ended
	head := schema.Head{Run: run, Status: status}
	if err := json.Unmarshal(e.value, &ended); err == nil && ended.Format == schema.EndedFormat {
		head.Agent, head.Position.Stream = ended.Agent, ended.Position
		if ended.Run == run && ended.Status == status && schema.EndedKey(&head) == e.key {
			return ended, true
		}
	}
	var at uint64
	for i, token := range tokens[:len(schema.EndedShifts)] {
		n, err := strconv.ParseUint(token, 10, 63)
		if err != nil {
			return schema.Ended{}, false
		}
		at += n << schema.EndedShifts[len(schema.EndedShifts)-1-i]
	}
	if agent == schema.NoAgent {
		agent = ""
	}
	return schema.Ended{
		Position:   schema.StreamSequence(at),
		RunSummary: schema.RunSummary{Run: run, Agent: agent, Status: status},
	}, true
}

// PositionAt returns the stream sequence of the first event that the server stored at that time or later, or the one behind
// the last event. It costs the same wherever that is.
func (s *Shard) PositionAt(ctx context.Context, at time.Time) (schema.StreamSequence, error) {
	b := &bucket{js: s.js, stream: s.Names.EventStream()}
	var first schema.Revision
	_, err := b.direct(ctx, jsapi.GetRequest{Start: at.UTC(), Batch: 1}, func(e entry) { first = e.rev })
	if err != nil {
		return 0, fmt.Errorf("first event of %s at %s: %w", b.stream, at.Format(time.RFC3339), err)
	}
	if first != 0 {
		return schema.StreamSequence(first), nil
	}
	u, err := s.Usage(ctx)
	return u.Last + 1, err
}
