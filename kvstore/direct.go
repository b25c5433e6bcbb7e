package kvstore

import (
	"context"
	"fmt"
	"math"
	"slices"
	"sort"
	"strconv"
	"strings"

	"github.com/nats-io/nats.go"

	"github.com/waymarkio/waymark/internal/nats/jsapi"
	"github.com/waymarkio/waymark/schema"
)

const (
	// answerKeys is the number of messages that the server returns in one answer.
	answerKeys = 1024
	// answerBytes bounds one answer. Values may have a megabyte each, and a server cuts off a client for which more than
	// max_pending bytes wait, of all its answers.
	answerBytes = 1 << 20
)

// directEnd is the end of an answer with several messages.
type directEnd struct {
	// pending is how many more messages match but were left out because of the answer's bounds.
	pending uint64
	// upTo is the last sequence of the answering replica, if the answer has it.
	upTo schema.Revision
}

// direct asks any replica for several messages, and calls yield for each of the first answerBytes: at least one, if
// there is one. A truncated answer is an error, never a short list.
func (b *bucket) direct(ctx context.Context, req jsapi.GetRequest, yield func(entry)) (end directEnd, err error) {
	ctx, cancel := withDeadline(ctx)
	defer cancel()
	req.MaxBytes = answerBytes
	line, err := jsapi.Dial(b.js, b.stream, max(req.Batch, len(req.MultiLast))+1)
	if err != nil {
		return end, translate(err)
	}
	defer line.Close()
	err = line.Ask(ctx, 0, req, func(msg *nats.Msg, status string) (bool, error) {
		switch status {
		case "":
			e, err := b.entryOfDirect(msg)
			if err == nil {
				yield(e)
			}
			return false, err
		case jsapi.StatusEnd:
			pending, err := jsapi.Pending(msg)
			upTo, _ := strconv.ParseUint(jsapi.Last(msg.Header, jsapi.HeaderUpTo), 10, 64) // some answers have none
			end = directEnd{pending, schema.Revision(upTo)}
			return true, err
		case jsapi.StatusNotFound:
			return true, nil
		default:
			return true, fmt.Errorf("%w: stream %s answered %.80s", ErrUnavailable, b.stream, status)
		}
	})
	if err != nil {
		return directEnd{}, b.explain(ctx, err)
	}
	return end, nil
}

// some calls yield for the last messages of keys that fit into one answer, deletions included. left are the keys to ask
// for again, none if the answer is complete. Not from a sequence on: a value that was replaced since would be in neither
// answer.
func (b *bucket) some(ctx context.Context, keys []string, yield func(entry)) (left []string, upTo schema.Revision, err error) {
	subjects, seen := make([]string, len(keys)), make(map[string]bool)
	for i, key := range keys {
		subjects[i] = b.prefix + key
	}
	end, err := b.direct(ctx, jsapi.GetRequest{MultiLast: subjects}, func(e entry) {
		seen[e.key] = true
		yield(e)
	})
	if end.pending > 0 {
		left = slices.DeleteFunc(slices.Clone(keys), func(key string) bool { return seen[key] })
	}
	return left, end.upTo, err
}

// many calls yield for the last values of keys, without deletions, in any order. upTo is the lowest one of its answers.
func (b *bucket) many(ctx context.Context, keys []string, yield func(entry)) (upTo schema.Revision, err error) {
	for chunk := range slices.Chunk(keys, answerKeys) {
		for left := chunk; len(left) > 0 && err == nil; {
			var at schema.Revision
			left, at, err = b.some(ctx, left, func(e entry) {
				if !e.deleted {
					yield(e)
				}
			})
			if upTo == 0 || at < upTo {
				upTo = at
			}
		}
	}
	return upTo, err
}

// history reads the stored values of a key, oldest first, deletions included.
func (b *bucket) history(ctx context.Context, key string) (entries []entry, err error) {
	next := jsapi.GetRequest{Seq: 1, NextFor: b.prefix + key, Batch: MaxCheckpointsPerRun}
	for more := true; more && err == nil; {
		var end directEnd
		end, err = b.direct(ctx, next, func(e entry) {
			entries, next.Seq = append(entries, e), uint64(e.rev)+1
		})
		more = end.pending > 0
	}
	return entries, err
}

// runs returns the runs that have a key under a prefix, sorted. It may be stale: upTo is as of everyKey.
func (b *bucket) runs(ctx context.Context, prefix string) (runs []string, upTo schema.Revision, err error) {
	upTo, err = b.everyKey(ctx, prefix+"*", func(key string) {
		if run := strings.TrimPrefix(key, prefix); schema.ValidName(run) {
			runs = append(runs, run)
		}
	})
	if err != nil {
		return nil, 0, fmt.Errorf("list the runs under %.200q of %s: %w", prefix, b.name, err)
	}
	return runs, upTo, nil
}

// everyKey calls yield with the keys that match a filter, sorted, each once. Keys deleted between two pages move the
// border: a page must begin with the last key of the page before, or it is asked for again from an earlier offset. upTo
// is the lowest last revision of a page.
func (b *bucket) everyKey(ctx context.Context, filter string, yield func(key string)) (upTo schema.Revision, err error) {
	upTo = math.MaxUint64
	err = everyPage(func(offset int) ([]string, bool, error) {
		keys, more, at, err := b.subjectPage(ctx, filter, offset)
		upTo = min(upTo, at)
		return keys, more, err
	}, yield)
	return upTo, err
}

func everyPage(page func(offset int) (keys []string, more bool, err error), yield func(key string)) error {
	last, back := "", 1
	for offset := 0; ; {
		keys, more, err := page(offset)
		if err != nil {
			return err
		}
		if offset > 0 && (len(keys) == 0 || keys[0] > last) {
			offset, back = max(0, offset-back), 2*back
			continue
		}
		fresh := keys[sort.Search(len(keys), func(i int) bool { return keys[i] > last }):]
		for _, key := range fresh {
			yield(key)
		}
		if !more || len(fresh) == 0 {
			return nil
		}
		last, back = keys[len(keys)-1], 1
		offset += len(keys) - 1
	}
}

// subjectPage is one page of the keys that match a filter, sorted; more says that others follow. The server counts
// all matching subjects for every page, so each page costs about as much as all of them.
func (b *bucket) subjectPage(ctx context.Context, filter string, offset int) (keys []string, more bool, upTo schema.Revision, err error) {
	ctx, cancel := withDeadline(ctx)
	defer cancel()
	reply, err := jsapi.Request[struct {
		Total int `json:"total"`
		State struct {
			Last     schema.Revision   `json:"last_seq"`
			Subjects map[string]uint64 `json:"subjects"`
		} `json:"state"`
	}](ctx, b.js, "STREAM.INFO."+b.stream, struct {
		Filter string `json:"subjects_filter"`
		Offset int    `json:"offset,omitzero"`
	}{b.prefix + filter, offset})
	if err != nil {
		return nil, false, 0, translate(err)
	}
	keys = make([]string, 0, len(reply.State.Subjects))
	for subject := range reply.State.Subjects {
		keys = append(keys, strings.TrimPrefix(subject, b.prefix))
	}
	slices.Sort(keys)
	return keys, len(keys) > 0 && offset+len(keys) < reply.Total, reply.State.Last, nil
}
