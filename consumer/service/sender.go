package service

import (
	"github.com/waymarkio/waymark/schema"
)

// sender of a request, as the control event or the removal names it.
type sender struct {
	// by is schema.ProvenBy if the NATS server proved the sender, otherwise the name in the request.
	by string
	// claimed is the name in the request when by is proven.
	claimed string
}

// name distinguishes takers of hand-offs, because executors share a key.
func (a sender) name() string { return nameOf(a.by, a.claimed) }

func nameOf(by, claimed string) string {
	if claimed != "" {
		return claimed
	}
	return by
}

// sender returns the sender of a request that has this name in its body.
func (t *task) sender(claimed string) (sender, error) {
	if t.proven != "" && claimed == "" {
		return sender{by: t.proven}, nil
	}
	if err := schema.CheckName("sender's name", claimed); err != nil {
		return sender{}, badField("/by", err)
	}
	if t.proven == "" {
		return sender{by: claimed}, nil
	}
	return sender{by: t.proven, claimed: claimed}, nil
}
