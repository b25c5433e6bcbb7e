package service

import (
	"fmt"

	"github.com/go-json-experiment/json"

	"github.com/waymarkio/waymark/schema"
)

const (
	// joinTries bounds the tries to make a page that fits: its size is only estimated before it is encoded.
	joinTries = 8
	// pageSlack is how much larger a page may be than its parts.
	pageSlack = 512
	// foldedPerReply is the ratio of a folded run to a reply up to which the whole state is tried: a compacted run
	// may fit.
	foldedPerReply = 2
)

// joined sends the view state: the whole state if it fits into a message, else its newest turns, or those of an
// earlier page. records is the number of records in the state.
func (v *view) joined(records int64, build func(*schema.StateView) any) error {
	limit := v.task.replyLimit(v.maxBytes)
	state := v.state.State.View()
	if state.Older != nil {
		state.Older.Request.MaxBytes = v.maxBytes
	}
	if n := state.Entries(); v.before > n {
		return badField("/before", fmt.Errorf("before is %d, the run has %d turns, calls and messages there", v.before, n))
	}
	if v.before == 0 && v.state.Bytes() <= foldedPerReply*limit {
		body, err := encode(build(state))
		if err != nil {
			return err
		}
		if int64(len(body)) <= limit {
			return v.task.only(body)
		}
	}
	head, err := encode(build(nil))
	if err != nil {
		return err
	}
	need, room := int64(len(head)), limit-int64(len(head))-pageSlack
	for range joinTries {
		if room <= 0 {
			break
		}
		page, err := state.Page(v.before, int(room))
		if err != nil {
			return err
		}
		if o := page.Older; o != nil && o.Request.Before > 0 {
			o.Subject, o.Request.MaxBytes = schema.ServiceSubject(schema.VerbGet, v.svc.cfg.Fleet, v.task.run), v.maxBytes
			o.Request.At = schema.Point{Kind: schema.PointRecord, Number: uint64(records)}.String() //nolint:gosec // it is positive
		}
		body, err := encode(build(page))
		if err != nil {
			return err
		}
		need = int64(len(body))
		if need <= limit {
			return v.task.only(body)
		}
		room -= need - limit + pageSlack
	}
	return errReplyTooLarge(need, limit)
}

// encode writes an answer.
func encode(answer any) ([]byte, error) { return json.Marshal(answer, json.Deterministic(true)) }
