package publisher

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/waymarkio/waymark/internal/nats/fleetclient"
	"github.com/waymarkio/waymark/schema"
)

// Head reads a run's compact state without taking it over. It includes every event acknowledged before the call.
func (r *Reader) Head(ctx context.Context, run string) (schema.Head, error) {
	return r.HeadAt(ctx, run, schema.Point{})
}

// HeadAt is [Reader.Head] at a point of the run's history. In addition to the errors of Head it returns
// [ErrPointNotFound], [ErrPointAmbiguous] and [ErrPointPurged].
func (r *Reader) HeadAt(ctx context.Context, run string, point schema.Point) (schema.Head, error) {
	reply, err := ask[schema.GetReply](ctx, r, schema.VerbGet, run, &schema.GetRequest{View: schema.ViewHead, At: atOf(point)})
	if err != nil {
		return schema.Head{}, err
	}
	return reply.Head, nil
}

// Get reads a run with its content without taking it over. It includes every event acknowledged before the call. Large
// fields are references, see [Reader.Hydrate]. For a run with missing events it returns the known state and an
// [*IncompleteError].
func (r *Reader) Get(ctx context.Context, run string) (*schema.State, error) {
	return r.GetAt(ctx, run, schema.Point{})
}

// GetAt is [Reader.Get] at a point of the run's history: it includes the events up to the point, and no later ones. In
// addition to the errors of Get it returns [ErrPointNotFound], [ErrPointAmbiguous] and [ErrPointPurged].
func (r *Reader) GetAt(ctx context.Context, run string, point schema.Point) (*schema.State, error) {
	s, _, err := r.stateAt(ctx, run, atOf(point), 0)
	return s, err
}

// atOf is a point in the form of a request: empty for a run's end, which needs no search.
func atOf(point schema.Point) string {
	if point.Kind == schema.PointEnd {
		return ""
	}
	return point.String()
}

// stateAt reads a run at a point. forks counts the forks of it that were already read.
func (r *Reader) stateAt(ctx context.Context, run, at string, forks int) (*schema.State, *schema.GetReply, error) {
	a := newAssembly(ctx, r, run)
	reply, err := read[schema.GetReply](ctx, r, schema.VerbGet, run, getPage(at), a.take)
	if err == nil {
		err = a.finish(ctx, forks)
	}
	if err != nil {
		return nil, nil, err
	}
	return a.state, reply, cmp.Or(checkFold(run, &a.state.Head, &reply.Head, reply.Complete, reply.Gaps), a.unread)
}

// Events calls yield for each record of a run in the order of the log, with every event acknowledged before the call.
// It streams the records and holds none of them, so the run may have any size. An error of yield ends it and is
// returned unchanged. For a run with missing events it returns an [*IncompleteError] after the last record.
//
// Records are yielded as they arrive, before the answer is known to be complete: until Events has returned nil, treat
// them as the beginning of the run at best. If damage is found meanwhile, the yielded records may not be part of the
// repaired run; that is an [*IncompleteError], too.
func (r *Reader) Events(ctx context.Context, run string, yield func(schema.Record) error) error {
	return r.Walk(ctx, run, schema.Point{}, func(step *schema.Step) error { return yield(step.Record) })
}

// Walk is [Reader.Events] up to a point of the run's history, with the verdict on each record, and the head after it. In
// addition to the errors of Events it returns [ErrPointNotFound], [ErrPointAmbiguous] and [ErrPointPurged].
func (r *Reader) Walk(ctx context.Context, run string, point schema.Point, yield func(*schema.Step) error) error {
	head, order := schema.NewHead(r.opts.Fleet, run), schema.Order{}
	reply, err := read[schema.GetReply](ctx, r, schema.VerbGet, run, getPage(atOf(point)), func(ctx context.Context, rec schema.Record) error {
		keys, err := r.Keys(ctx)
		if err != nil {
			return err
		}
		order.Next(&head, &rec)
		v := head.Apply(keys, &rec)
		if v.Kind == schema.Replayed || v.Kind == schema.Skipped {
			return nil
		}
		return yield(&schema.Step{Record: rec, Verdict: v, Head: &head})
	})
	if err != nil {
		return err
	}
	return checkFold(run, &head, &reply.Head, reply.Complete, reply.Gaps)
}

// checkFold compares the fold of the received records with the daemon's head.
func checkFold(run string, got, want *schema.Head, complete bool, gaps []schema.Gap) error {
	// A fold without a first event has no position, on both sides.
	if got.Digest != want.Digest || got.Position != want.Position || got.Epoch != want.Epoch || got.Sequence != want.Sequence {
		return &IncompleteError{Run: run, Gaps: gaps, Detail: fmt.Sprintf(
			"the events received have digest %.16s at stream sequence %d, but the daemon has %.16s at %d",
			got.Digest, got.Position.Stream, want.Digest, want.Position.Stream)}
	}
	if !complete {
		return &IncompleteError{Run: run, Gaps: gaps}
	}
	return nil
}

// yieldError carries a caller's error past the retries.
type yieldError struct{ err error }

func (e *yieldError) Error() string { return e.err.Error() }

// getPage returns the request of a page of a run's records up to a point.
func getPage(at string) func(after string) any {
	return func(after string) any { return &schema.GetRequest{View: schema.ViewEvents, At: at, After: after} }
}

// read reads a run's records page by page, and returns the answer. take gets each record once: a page that is sent again, because it broke
// off, has the same records, or the fold of all of them is not the answer's. An error of take is returned unchanged.
func read[T schema.GetReply | schema.RecoverReply](ctx context.Context, r *Reader, verb, run string, page func(after string) any,
	take func(context.Context, schema.Record) error,
) (*T, error) {
	if err := checkRun(run); err != nil {
		return nil, fmt.Errorf("%s: %w", verb, err)
	}
	whole, lacks := true, []schema.Gap{}
	// taken are the records that take was given of the present page: of more than that page if its repeat ended earlier.
	taken := 0
	for after := ""; ; {
		reply := new(T)
		passed := 0
		err := r.service().Ask(ctx, verb, run, page(after), func() *fleetclient.Replies {
			passed = 0
			return &fleetclient.Replies{
				Answer: func(body []byte) error {
					*reply = *new(T)
					return fleetclient.Decode(body, reply)
				},
				Piece: func(kind string, frames []byte) error {
					return readPiece(kind, frames, func(rec schema.Record) error {
						if passed++; passed <= taken {
							return nil
						}
						taken = passed
						return take(ctx, rec)
					})
				},
			}
		})
		if own, ok := errors.AsType[*yieldError](err); ok {
			return nil, own.err
		}
		if err != nil {
			return nil, err
		}
		taken = max(taken-passed, 0)
		next, complete, gaps := contentOf(reply)
		whole = whole && *complete
		lacks = append(lacks, slices.DeleteFunc(*gaps, func(g schema.Gap) bool { return slices.Contains(lacks, g) })...)
		if after = next; after == "" {
			*complete, *gaps = whole, lacks
			return reply, nil
		}
	}
}

// contentOf returns what an answer tells about its content.
func contentOf(reply any) (next string, complete *bool, gaps *[]schema.Gap) {
	switch r := reply.(type) {
	case *schema.GetReply:
		return r.Next, &r.Complete, &r.Gaps
	case *schema.RecoverReply:
		return r.Next, &r.Complete, &r.Gaps
	}
	return "", new(bool), new([]schema.Gap)
}

// readPiece calls yield for the records in a reply of the view events.
func readPiece(kind string, frames []byte, yield func(schema.Record) error) error {
	if kind != schema.KindFrames && kind != schema.KindSegment {
		return fmt.Errorf("%w: a reply of kind %.20q was not requested", ErrBadAnswer, kind)
	}
	reader := schema.NewFrameReader(frames)
	for {
		rec, err := reader.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("%w: %w", ErrBadAnswer, err)
		}
		if err := yield(rec); err != nil {
			return &yieldError{err}
		}
	}
}

// assembly folds the records of a run into its state. It keeps the records of a fork until the content of its
// base is loaded.
type assembly struct {
	reader *Reader
	run    string
	state  *schema.State
	order  schema.Order
	base   *schema.Base
	held   []schema.Record
	begun  bool
	// unread is the error of the first value whose key could not decrypt it.
	unread error
}

func newAssembly(ctx context.Context, r *Reader, run string) *assembly {
	a := &assembly{reader: r, run: run, state: schema.NewState(r.opts.Fleet, run)}
	if r.secrets != nil {
		a.state.Open(func(e *schema.Event, data schema.Data) {
			if err := r.secrets.Open(ctx, e, data); a.unread == nil && err != nil {
				a.unread = fmt.Errorf("run %s: %w: %w", run, ErrEncrypted, err)
			}
		})
	}
	return a
}

// take adds the next record.
func (a *assembly) take(ctx context.Context, rec schema.Record) error {
	if !a.begun {
		a.base, a.begun = schema.BaseOfRecord(&rec)
	}
	if a.base != nil {
		a.held = append(a.held, rec)
		return nil
	}
	keys, err := a.reader.Keys(ctx)
	if err != nil {
		return err
	}
	a.order.Next(&a.state.Head, &rec)
	a.state.Apply(keys, &rec)
	return nil
}

// finish reads the base of a fork, and folds the kept records.
func (a *assembly) finish(ctx context.Context, forks int) error {
	defer a.state.Settle() // the answer has no rewind after them
	if a.base == nil {
		return nil
	}
	run, base := a.run, a.base
	if forks == schema.MaxBases {
		return fmt.Errorf("run %s: %w: %w", run, ErrIncomplete, errTooManyBases)
	}
	state, _, err := a.reader.stateAt(ctx, base.Run, base.Place().String(), forks+1)
	if err != nil {
		return fmt.Errorf("run %s is a fork of run %s: %w", run, base.Run, err)
	}
	if state.Head.Digest != base.Digest || state.Head.Position.ID != base.Position.ID {
		return &IncompleteError{Run: run, Detail: fmt.Sprintf("it is a fork of run %s at digest %.16s…, but that run has %.16s… there", base.Run, base.Digest, state.Head.Digest)}
	}
	a.state.Graft(state)
	held := a.held
	a.base, a.held = nil, nil
	for i := range held {
		if err := a.take(ctx, held[i]); err != nil {
			return err
		}
	}
	return nil
}

// List returns a page of the fleet's runs from their checkpoints. It may be a moment behind the log. A daemon that is
// cut off from the majority of its servers does not answer with old data: the error is [ErrUnavailable] then.
func (r *Reader) List(ctx context.Context, request schema.ListRequest) (*schema.ListReply, error) {
	return askFleet[schema.ListReply](ctx, r, schema.VerbList, "", &request)
}

// History returns the kept checkpoints of a run, newest first. Like [Reader.List] it may be a moment behind the log.
func (r *Reader) History(ctx context.Context, run string) (*schema.HistoryReply, error) {
	return ask[schema.HistoryReply](ctx, r, schema.VerbHistory, run, struct{}{})
}

// Plan predicts what the next executor would do with the run: which calls are reused, run again, verified or held, and
// what that saves. It does not take the run over, and includes every event acknowledged before the call. For a run with
// missing events it returns the plan for the existing ones and an [*IncompleteError]. [schema.Plan.Versions] names what
// differs at the living executors; see [Reader.PlanOf].
func (r *Reader) Plan(ctx context.Context, run string) (*schema.Plan, error) {
	s, err := r.Get(ctx, run)
	if s == nil {
		return nil, err
	}
	plan, askErr := r.PlanOf(ctx, s)
	return plan, errors.Join(err, askErr)
}

// PlanOf is Plan for a state of a run that was read before. If no daemon tells the versions of the living executors, or
// the pauses of the run, it returns the plan without them, and the error.
func (r *Reader) PlanOf(ctx context.Context, s *schema.State) (*schema.Plan, error) {
	plan := schema.PlanOf(s)
	executors, err := askFleet[schema.ExecutorsReply](ctx, r, schema.VerbExecutors, "", &schema.ExecutorsRequest{VersionsOf: s.Head.Agent})
	if err != nil {
		return &plan, fmt.Errorf("versions of the living executors: %w", err)
	}
	plan.Compare(s, executors.Versions)
	plan.MoreVersions = executors.MoreVersions
	now, err := ask[schema.GetReply](ctx, r, schema.VerbGet, s.Head.Run, &schema.GetRequest{View: schema.ViewHead})
	if err != nil {
		return &plan, fmt.Errorf("pauses and limits of the run: %w", err)
	}
	plan.Pauses, plan.Full = now.Pauses, now.Full
	return &plan, nil
}

// Settle settles the attempt at a call in doubt that CallEpoch names, by an operator's decision. The first settlement of
// an attempt counts; the same one by the same sender again is that settlement. It returns [ErrNotInDoubt] if the call is
// not in doubt, and [ErrConflict] after another attempt at it.
func (f *Fleet) Settle(ctx context.Context, run string, request schema.SettleRequest) (*schema.ControlReply, error) {
	return ask[schema.ControlReply](ctx, f.Reader, schema.VerbSettle, run, &request)
}
