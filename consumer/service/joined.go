package service

import (
	"github.com/go-json-experiment/json"

	"github.com/waymarkio/waymark/schema"
)

// joined sends the view state: the answer in as many messages as it needs.
func (v *view) joined(answer any) error {
	body, err := encode(answer)
	if err != nil {
		return err
	}
	if len(body) > schema.MaxStateAnswer {
		return errReplyTooLarge(int64(len(body)), schema.MaxStateAnswer)
	}
	limit := int(v.task.replyLimit(0))
	for len(body) > limit {
		if err := v.task.send(schema.KindPart, body[:limit]); err != nil {
			return err
		}
		body = body[limit:]
	}
	if err := v.task.send(schema.KindAnswer, body); err != nil {
		return err
	}
	return v.task.send(schema.KindEnd, nil)
}

// encode writes an answer.
func encode(answer any) ([]byte, error) { return json.Marshal(answer, json.Deterministic(true)) }
