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
	// endedFew and endedMany are the numbers of entries in an answer below and above which the next request uses a
	// larger or a smaller volume.
	endedFew  = 16
	endedMany = 256
)

// EndedQuery selects entries of the index of ended runs.
type EndedQuery struct {
	// Floor is the lowest position to return, and Before the first position above the range.
	Floor, Before schema.StreamSequence
	// Agent whose runs are returned; "" means all. Statuses to return; none means all.
	Agent    string
	Statuses []schema.Status
	// Match filters the entries that were read. Nil means all.
	Match func(*schema.Ended) bool
	// Limit is the number of entries to return; at least 1. There can be more if some are unreadable.
	Limit int
}

// EndedPage is the result of a call of [Checkpoints.Ended].
type EndedPage struct {
	// Runs found, those with the newest last event first. An unreadable entry has only run, agent, status and the
	// beginning of its volume as position.
	Runs []schema.Ended
	// Next is the Before of the following call; the list is complete if it is not above Floor.
	Next schema.StreamSequence
	// UpTo is at least the last revision of the answering replicas; 0 if there was no request. An entry with a later
	// revision may be missing.
	UpTo schema.Revision
}

// Ended returns runs that have ended, from the index. The work of one call is bounded, whatever the number of stored
// runs: a page can be shorter than the limit, even empty, although more follow. It asks the server for volumes of the
// log (schema.EndedVolume), smaller ones where there are many entries and larger ones where there are few, so that
// the server sends hardly any entries that the filter excludes. It may be stale, and contain runs that are no longer
// ended: compare with the checkpoints.
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
			// Only unreadable entries share a position; the next page begins below it.
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

// endedIn reads the entries of a volume that match the query, the newest first.
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
	// The request includes the index state, because an empty answer does not show its age.
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
		// The volume has more than fit, written by other clients or in a restored log. They are read by name.
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

// endedOf reads an entry. An unreadable one has the fields of its key and the beginning of its volume, and Format 0.
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

// PositionAt returns the stream sequence of the first event that the server stored at or after a time, or the one
// after the last event. It costs the same wherever that is.
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
