package service

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/waymarkio/waymark/consumer/reader"
	"github.com/waymarkio/waymark/internal/base/answerschema"
	"github.com/waymarkio/waymark/internal/nats/blob"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

// answersAtOnce bounds the answers that are validated concurrently: each may take some tenths of a second and some
// tens of MiB.
const answersAtOnce = 4

// input stores an answer that a run waits for.
//
// An answer is validated with the schema of its request. If the schema is invalid, has an external reference or costs
// too much, no answer is accepted: the executor may be unable to use it. The run is not stuck: status cancelled needs
// no schema, and the executor asks again.
func (s *Service) input(t *task, req *schema.InputRequest) (c change, err error) {
	if err := onlyEncrypted(req.Refs, "/payload"); err != nil {
		return c, err
	}
	if c.who, err = t.sender(req.By); err != nil {
		return c, err
	}
	c.name, c.stateful, c.frequent = schema.RequestName("input", req.EventID), true, true
	c.same = repeatOf(t.run, func(first *schema.RunInputData, _ *schema.Event, refusal error) error {
		return sameInput(t.run, first, req, c.who, refusal)
	})
	var checked schema.Position
	c.decide = func(ctx context.Context, r *reader.Snapshot) (decision, error) {
		o, refusal := answerable(r, req)
		if refusal != nil {
			return decision{refusal: refusal}, nil //nolint:nilerr // the decision has the refusal
		}
		if req.Status == schema.InputResolved && checked != o.Position {
			if err := s.checkAnswer(ctx, r, o, req); err != nil {
				return decision{}, err
			}
			checked = o.Position
		}
		return decision{data: &schema.RunInputData{
			InterruptID: req.InterruptID, Status: req.Status, Payload: req.Payload, Refs: req.Refs, By: c.who.by, Claimed: c.who.claimed,
		}}, nil
	}
	return c, nil
}

// sameInput refuses an answer to a question that another one has answered.
func sameInput(run string, first *schema.RunInputData, req *schema.InputRequest, who sender, refusal error) error {
	by := sender{by: first.By, claimed: first.Claimed}
	if by == who && cmp.Or(first.Status, schema.InputResolved) == req.Status && schema.SameJSON(first.Payload, req.Payload) {
		return nil
	}
	return decidedAlready(refusal, "question %.80q of run %s was answered already, as %s by %s",
		req.InterruptID, run, cmp.Or(first.Status, schema.InputResolved), by.name())
}

// answerable finds the interrupt to answer. The read is proven.
func answerable(r *reader.Snapshot, req *schema.InputRequest) (*schema.OpenInterrupt, error) {
	if r.Head.Status.Terminal() {
		return nil, errEnded(r)
	}
	i := slices.IndexFunc(r.Head.Interrupts, func(o schema.OpenInterrupt) bool { return o.InterruptID == req.InterruptID })
	if i < 0 {
		waits := "it waits for nothing"
		var open []string
		for _, o := range r.Head.Interrupts {
			open = append(open, fmt.Sprintf("%.80q (%s)", o.InterruptID, o.Reason))
		}
		if len(open) > 0 {
			waits = "it waits for " + strings.Join(open, ", ")
		}
		return nil, schema.Fail(schema.CodeUnknownInterrupt, "Answer one of those, or see whether it was answered already: "+hintRun,
			"run %s does not wait for %.80q: %s", r.Run, req.InterruptID, waits)
	}
	o := &r.Head.Interrupts[i]
	if req.EventID != o.Position.ID {
		return nil, schema.Fail(schema.CodeConflict, "Answer that one: "+hintRun,
			"run %s asks another thing under %.80q now: %q", r.Run, o.InterruptID, cmp.Or(o.Message, o.Reason))
	}
	if o.Reason == schema.WaitSignal {
		return nil, schema.Fail(schema.CodeConflict, "Send the run a signal, which ends the wait: waymark signal "+r.Run+" NAME",
			"interrupt %.80q waits for a signal, and no executor would be told of an answer", o.InterruptID)
	}
	if o.Reason == schema.WaitToolInDoubt && req.Status == schema.InputResolved {
		return nil, schema.Fail(schema.CodeConflict, "Settle the call, which ends the wait, too: waymark plan "+r.Run,
			"interrupt %.80q waits for the settlement of call %.80q of turn %d, and an answer settles nothing", o.InterruptID, o.ToolCallID, o.Turn)
	}
	return o, nil
}

// checkAnswer validates a payload with the schema of the run's request.
func (s *Service) checkAnswer(ctx context.Context, r *reader.Snapshot, o *schema.OpenInterrupt, req *schema.InputRequest) error {
	e, found, err := s.reader.EventAt(ctx, r, o.Position)
	if err != nil {
		return err
	}
	if !found {
		return schema.Fail(schema.CodeDamaged, "Answer with status cancelled, and let the executor ask again.",
			"the event that asked for %.80q is no longer at %d", o.InterruptID, o.Position.Stream)
	}
	parsed, err := schema.ParseData(e)
	asked, ok := parsed.(*schema.RunWaitingData)
	if err != nil || !ok {
		return fmt.Errorf("event %s of run %s is no valid run.waiting: %w", o.Position.ID, r.Run, errors.Join(err, schema.ErrCorrupt))
	}
	text, err := s.responseSchema(ctx, r, asked)
	if err != nil {
		return err
	}
	if len(text) == 0 || len(req.Refs) > 0 { // an encrypted answer is checked by its sender and by the executor that asked
		return nil
	}
	if err := s.answers.Acquire(ctx, 1); err != nil {
		return err
	}
	defer s.answers.Release(1)
	problems, err := answerschema.Check(text, req.Payload)
	switch {
	case err != nil:
		return unusable(o.InterruptID, err.Error())
	case len(problems) > 0:
		e := schema.Fail(schema.CodeInvalidAnswer, "Correct the answer at the places named in details; response_schema of run.waiting is its schema.",
			"the answer to %.80q is not what was asked for: at %q: %s", o.InterruptID, problems[0].Path, problems[0].Problem)
		return e.With(problems)
	}
	return nil
}

// unusable is the error for a schema that cannot validate an answer.
func unusable(interrupt, why string) error {
	e := schema.Fail(schema.CodeInvalidAnswer, "Answer with status cancelled, which needs no schema, and let the executor ask again with one that can be used.",
		"the response_schema of %.80q lets no answer through: %s", interrupt, why)
	return e.With([]answerschema.Problem{{Problem: why}})
}

// responseSchema returns the schema of the answer, empty for none. A large one is in the blob store. An encrypted one
// validates nothing here: the service has no key, and the executor that asked validates the answer.
func (s *Service) responseSchema(ctx context.Context, r *reader.Snapshot, asked *schema.RunWaitingData) ([]byte, error) {
	i := slices.IndexFunc(asked.Refs, func(ref schema.Ref) bool { return ref.Path == "/response_schema" })
	switch {
	case i >= 0 && asked.Refs[i].KeyID != "":
		return nil, nil
	case len(asked.ResponseSchema) > 0 || i < 0:
		return asked.ResponseSchema, nil
	}
	run, digest, err := schema.ParseDataRef(asked.Refs[i].DataRef)
	if err != nil {
		return nil, unusable(asked.InterruptID, err.Error())
	}
	name := schema.BlobName(run, digest)
	text, err := blob.New(s.js, schema.BlobBucket(s.cfg.Fleet)).Load(ctx, run, digest, answerschema.MaxSchema)
	switch {
	case err == nil:
		return text, nil
	case errors.Is(err, jetstream.ErrObjectNotFound), errors.Is(err, jetstream.ErrBucketNotFound):
		return nil, unusable(asked.InterruptID, "blob "+name+" is missing")
	case errors.Is(err, blob.ErrTooLarge):
		return nil, unusable(asked.InterruptID, fmt.Sprintf("blob %s is too large: at most %d bytes are checked", name, answerschema.MaxSchema))
	case errors.Is(err, blob.ErrChanged):
		return nil, unusable(asked.InterruptID, "blob "+name+" is not what its name says")
	default:
		return nil, fmt.Errorf("blob %s of run %s: %w: %w", name, r.Run, kvstore.ErrUnavailable, err)
	}
}
