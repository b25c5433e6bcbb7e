package publisher

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"

	jsonv2 "github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/waymarkio/waymark/schema"
)

// Compact publishes context.compacted: the model continues with a summary of the turns through d.ThroughTurn.
func (r *Run) Compact(ctx context.Context, d schema.ContextCompactedData) error {
	return r.Publish(ctx, &d, 0)
}

// Artifact publishes artifact.added. Content above the inline limit goes to the blob store. Artifact adds a missing
// digest or size of a text, so that a reader can check what it fetches. It does not if the text is encrypted, or the
// fleet has a [Redaction], which may change the text. A second artifact with the same id does not replace the first
// one.
func (r *Run) Artifact(ctx context.Context, d schema.ArtifactAddedData) error {
	if d.Digest == "" && len(d.Refs) == 0 && r.fleet.cfg.Redaction == nil && d.Content.Kind() == '"' {
		if text, err := jsontext.AppendUnquote(nil, d.Content); err == nil { // publish refuses invalid JSON
			d.Digest = fmt.Sprintf("sha256-%x", sha256.Sum256(text))
			d.Size = cmp.Or(d.Size, int64(len(text)))
		}
	}
	return r.Publish(ctx, &d, r.ledger.openTurn())
}

// Error publishes error.raised: an error that did not end the run. scope is run, turn or tool; empty means run.
func (r *Run) Error(ctx context.Context, e schema.Error, scope string) error {
	turn := r.ledger.openTurn()
	return r.Publish(ctx, &schema.ErrorRaisedData{Error: e, Scope: scope, Turn: turn}, turn)
}

// Limit publishes limit.reached. limit is turns, tokens, time, context or budget; value and maximum are written as
// JSON, or omitted if nil. After it the run should do one turn with purpose recovery, and end with a summary.
func (r *Run) Limit(ctx context.Context, limit string, value, maximum any) error {
	d := &schema.LimitReachedData{Limit: limit}
	for _, p := range []struct {
		to   *jsontext.Value
		from any
	}{{&d.Value, value}, {&d.Maximum, maximum}} {
		if p.from == nil {
			continue
		}
		b, err := jsonv2.Marshal(p.from)
		if err != nil {
			return fmt.Errorf("limit %s of run %s: %w", limit, r.id, err)
		}
		*p.to = b
	}
	_, err := r.publish(ctx, draft{data: d})
	return err
}

// Mark publishes checkpoint.marked: the run can be restored at this point by its name.
func (r *Run) Mark(ctx context.Context, name string) error {
	return r.Publish(ctx, &schema.CheckpointMarkedData{Name: name}, 0)
}

// Wait publishes run.waiting: the run waits for a person or an event. [Run.AwaitInput] returns the answer.
func (r *Run) Wait(ctx context.Context, d schema.RunWaitingData) error {
	return r.Publish(ctx, &d, 0)
}

// Interrupt publishes run.interrupted: this executor stops cleanly, and other executors may claim the run at once.
// reason is shutdown, preempted or budget.
func (r *Run) Interrupt(ctx context.Context, reason string) error {
	return r.Publish(ctx, &schema.RunInterruptedData{Reason: reason}, 0)
}

// RunEnd describes how a run ended.
type RunEnd struct {
	// Status is completed, failed or cancelled; empty means completed, or failed if Error is set.
	Status schema.Status
	// Output as JSON; Summary in words.
	Output  json.RawMessage
	Summary string
	// CompletedBy is the tool call that ended the run by contract.
	CompletedBy string
	// Error that ended the run; nil means none.
	Error *schema.Error
	// NoSignals ends the run only if no signal is open. Otherwise End returns [ErrSignalled] and publishes nothing.
	NoSignals bool
	// Usage of the whole run; nil if it was not summed up.
	Usage *schema.Usage
	// Source holds details of the framework that the run comes from.
	Source json.RawMessage
}

// End publishes run.ended. Only hand-offs and marks may follow.
func (r *Run) End(ctx context.Context, end RunEnd) error {
	if end.Status == "" {
		end.Status = schema.StatusCompleted
		if end.Error != nil {
			end.Status = schema.StatusFailed
		}
	}
	var unless signalGuard
	if end.NoSignals {
		unless = unlessOpen
	}
	_, err := r.publish(ctx, draft{unless: unless, data: &schema.RunEndedData{
		Status: string(end.Status), Output: []byte(end.Output), Summary: end.Summary, CompletedBy: end.CompletedBy,
		Error: end.Error, Usage: end.Usage, Source: []byte(end.Source),
	}})
	return err
}
