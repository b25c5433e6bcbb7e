package service

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"

	"github.com/waymarkio/waymark/consumer/internal/control"
	"github.com/waymarkio/waymark/consumer/internal/logkey"
	"github.com/waymarkio/waymark/consumer/reader"
	"github.com/waymarkio/waymark/internal/base/keyring"
	"github.com/waymarkio/waymark/internal/base/pause"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

// controlOverhead bounds the headers of a control event in a message.
const controlOverhead = 4 << 10

// retryPause is the pause before a run is read again after another event or order came first.
const retryPause = 5 * time.Millisecond

// hintRun is the hint for a request that the run is not ready for.
const hintRun = "waymark runs get shows what the run is now and what it waits for."

// decision is what to write into a run in the state that was read. Without data nothing is written: a repeat is answered
// with the event of its first try, and any other request with there or refusal.
type decision struct {
	data schema.Data
	turn int32
	// there is the event of another request that had the same effect.
	there *schema.ControlReply
	// refusal is why the run cannot take the request.
	refusal error
}

// change is a control event that a request asks for.
type change struct {
	who sender
	// name of the request in the run, as in [schema.RequestName]; each try of a request without one writes its own event.
	name string
	// stateful: the request names the state of the run that it changes, so a second try has no second effect although
	// its name is forgotten. Any other request has its effect once, by its name.
	stateful bool
	// frequent: a run may have many of these, which leave [schema.ReservedRequests] to others.
	frequent bool
	// same, by [repeatOf], refuses a request that differs from the one of the event that has its name. refusal is that of
	// a stateful request. A request with a name has it.
	same func(e *schema.Event, refusal error) error
	// decide is called with a proven snapshot of the run.
	decide func(context.Context, *reader.Snapshot) (decision, error)
}

// changing serves a verb that writes a control event into a run: plan checks a request, and returns what it asks for.
func changing[R any](s *Service, plan func(*task, *R) (change, error)) func(context.Context, *task) error {
	return asking(func(ctx context.Context, t *task, req *R) (*schema.ControlReply, error) {
		c, err := plan(t, req)
		if err != nil {
			return nil, err
		}
		return s.writer.write(ctx, t.run, c)
	})
}

// controlWriter writes control events, takeovers among them, into runs: each by compare-and-set on the event that the
// decision is based on, and read back.
type controlWriter struct {
	fleet string
	// replica is the source of the events.
	replica string
	// maxClaims is [Config.MaxClaims].
	maxClaims int
	nc        *nats.Conn
	js        jetstream.JetStream
	keys      *keyring.Ring
	routing   *routing
	places    *places
	pauses    func() []schema.Pause
	now       func() time.Time
	stats     *Stats
	log       zerolog.Logger
}

// write writes a control event into a run: decide chooses it on a proven snapshot, and again whenever another event
// came first. A repeat of the request finds the event by once.
func (w *controlWriter) write(ctx context.Context, run string, c change) (*schema.ControlReply, error) {
	tried, after := "", schema.StreamSequence(0)
	for {
		r, err := w.routing.undoubted(ctx, run, func() (*reader.Snapshot, error) { return w.routing.proven(ctx, run, reader.Head) })
		if err != nil {
			return nil, err
		}
		if r.Head.Status == "" {
			return nil, errNothingAccepted(run)
		}
		if tried != "" {
			// The earlier try may have succeeded without an answer.
			if at, ok, err := w.routing.reader.FindEvent(ctx, r, after, tried); err != nil {
				return nil, err
			} else if ok {
				return &schema.ControlReply{EventID: tried, Stream: at, By: c.who.by}, nil
			}
		}
		if !c.stateful {
			if there, err := w.earlier(ctx, r, &c, nil); err != nil || there != nil {
				return there, err
			}
		}
		d, err := c.decide(ctx, r)
		if err != nil {
			return nil, err
		}
		if d.data == nil {
			there, err := w.earlier(ctx, r, &c, d.refusal)
			switch {
			case err != nil || there != nil:
				return there, err
			case d.there != nil:
				d.there.Already = true
			}
			return d.there, d.refusal
		}
		if err := onlyKeysOf(r, d.data); err != nil {
			return nil, err
		}
		name, err := c.nameIn(&r.Head)
		if err != nil {
			return nil, err
		}
		e, err := w.event(r, name, &d)
		if err != nil {
			return nil, err
		}
		if err := w.keys.Sign(ctx, e, r.Head.Digest); err != nil {
			return nil, err
		}
		if err := w.preflight(ctx, r, e); err != nil {
			return nil, err
		}
		at, err := control.Publish(ctx, w.js, r.Source.Store, e, r.LogLast)
		if errors.Is(err, control.ErrRefused) {
			w.stats.Refused.Add(1)
			tried, after = e.ID, r.LogLast
			continue // decide again on the new state
		}
		if err != nil {
			return nil, err
		}
		if ok, err := w.advance(ctx, r, e, at); err != nil {
			return nil, err
		} else if ok {
			w.log.Info().Str(logkey.Run, run).Str("event", e.Name()).Str("id", e.ID).Msg("control event stored")
			return &schema.ControlReply{EventID: e.ID, Stream: at, By: c.who.by}, nil
		}
		tried = ""
		if err := pause.For(ctx, retryPause); err != nil {
			return nil, err
		}
	}
}

// earlier answers a request with the event that an earlier try wrote, nil for none.
func (w *controlWriter) earlier(ctx context.Context, r *reader.Snapshot, c *change, refusal error) (*schema.ControlReply, error) {
	at, ok := r.Head.Requests.Find(c.name)
	if !ok {
		return nil, nil //nolint:nilnil // nil means no event
	}
	e, found, err := w.routing.reader.EventAt(ctx, r, schema.Position{Stream: at})
	switch {
	case err != nil:
		return nil, err
	case !found || schema.RequestOf(e) != c.name:
		return nil, schema.Fail(schema.CodeDamaged, "The first try took effect. See what is missing: waymark verify "+r.Run+".",
			"the event of this request's first try is no longer at %d in run %s", at, r.Run)
	}
	return &schema.ControlReply{EventID: e.ID, Stream: at, By: byOf(e), Already: true}, c.same(e, refusal)
}

// byOf returns By of a control event that the fold accepted.
func byOf(e *schema.Event) string {
	data, err := schema.ParseData(e)
	if err != nil {
		return ""
	}
	by, _ := schema.DecidedBy(data)
	return by
}

// decidedAlready adds to a refusal that another request has decided.
func decidedAlready(refusal error, format string, args ...any) error {
	said, ok := errors.AsType[*schema.ServiceError](refusal)
	if !ok {
		return refusal
	}
	return schema.Fail(said.Code, said.Hint, "%s: %s", fmt.Sprintf(format, args...), said.Message)
}

// repeatOf is [change.same] of a request that writes events of one type: without keys, an executor can store an event of
// any type under the name. differs, if not nil, compares the request with the event.
func repeatOf[T schema.Data](run string, differs func(first T, e *schema.Event, refusal error) error) func(*schema.Event, error) error {
	return func(e *schema.Event, refusal error) error {
		data, _ := schema.ParseData(e) // an unreadable event is another
		first, ok := data.(T)
		switch {
		case !ok:
			return schema.Fail(schema.CodeConflict, hintRun, "event %s of run %s has the name of this request, and is another: %s", e.ID, run, e.Name())
		case differs == nil:
			return nil
		default:
			return differs(first, e, refusal)
		}
	}
}

// nameIn is the request's name for its event. A run that has no room for it refuses the request, because a repeat would
// be taken for a new one; a stateful request needs no name.
func (c *change) nameIn(h *schema.Head) (string, error) {
	room := schema.MaxRequests - h.Requests.Len()
	if c.frequent {
		room -= schema.ReservedRequests
	}
	switch {
	case c.name == "" || room > 0:
		return c.name, nil
	case c.stateful:
		return "", nil
	default:
		return "", schema.Fail(schema.CodeRunFull, "Go on in a new run by a hand-off. A mark or a cancel is possible without request_id.",
			"run %s has taken %d requests with an id, and can recognize no more repeats", h.Run, h.Requests.Len())
	}
}

// preflight asks the fold about a control event before it is published, so that a refused request writes nothing. The
// compare-and-set makes sure that the run is the same when the event is stored. Signatures are checked at the time of
// storage, and so only afterwards.
func (w *controlWriter) preflight(ctx context.Context, r *reader.Snapshot, e *schema.Event) error {
	keys, err := w.keys.Keys(ctx)
	if err != nil {
		return err
	}
	header, body := e.Encode()
	rec, head := schema.NewRecord(0, header, body), r.Head.Clone()
	v := head.Apply(keys, &rec)
	if v.Kind != schema.Rejected || v.Reason == schema.ReasonUnsigned || v.Reason == schema.ReasonMisplaced {
		return nil
	}
	return errFoldRefuses(r.Run, e, &v)
}

// errFoldRefuses is the answer for a control event that the fold refuses: asking again gives the same answer while
// the run does not change.
func errFoldRefuses(run string, e *schema.Event, v *schema.Verdict) *schema.ServiceError {
	code := schema.CodeConflict
	switch v.Reason {
	case schema.ReasonRunEnded:
		code = schema.CodeRunEnded
	case schema.ReasonNotInDoubt, schema.ReasonUnknownCall:
		code = schema.CodeNotInDoubt
	case schema.ReasonUnknownInterrupt:
		code = schema.CodeUnknownInterrupt
	case schema.ReasonUnknownHandoff:
		code = schema.CodeUnknownHandoff
	case schema.ReasonHandoffTaken:
		code = schema.CodeHandoffTaken
	default:
	}
	return schema.Fail(code, hintRun, "run %s refuses %s as %s: %s", run, e.Name(), v.Reason, v.Detail)
}

// event builds the event of a decision. If the fold would refuse it, or it is too large for a message, the request is
// wrong.
func (w *controlWriter) event(r *reader.Snapshot, name string, d *decision) (*schema.Event, error) {
	e, err := schema.NewControl(w.fleet, w.replica, r.Run, r.Head.Epoch, schema.RequestNonce(name), d.data, w.now())
	if err == nil {
		_, err = schema.ParseData(e)
	}
	if err != nil {
		return nil, wrongField(err)
	}
	e.Turn = d.turn
	if limit := min(w.nc.MaxPayload(), kvstore.MaxEventMessage) - controlOverhead; int64(len(e.Data)) > limit {
		return nil, schema.Fail(schema.CodeTooLarge, "Send less: put large data where the executor finds it, and send its name.",
			"the event has %d bytes, an event at most %d", len(e.Data), limit)
	}
	return e, nil
}

// requestName names a request by its request_id, its sender and its content; "" without request_id.
func requestName(requestID string, who sender, parts ...string) string {
	if requestID == "" {
		return ""
	}
	return schema.RequestName(append(parts, requestID, who.by, who.claimed)...)
}

// errNothingAccepted is the answer for a run id under which no valid event was published.
func errNothingAccepted(run string) *schema.ServiceError {
	return schema.Fail(schema.CodeNotFound, "Every event under this name was refused: waymark verify "+run+" shows each with its reason.",
		"run %s has no accepted event", run)
}

// errEnded is the answer for a request that an ended run cannot do.
func errEnded(r *reader.Snapshot) *schema.ServiceError {
	return schema.Fail(schema.CodeRunEnded, "To go on with it: waymark reopen "+r.Run,
		"run %s has ended: %s", r.Run, r.Head.Status)
}

// onlyEncrypted checks the refs of a request: they may say that the one value at a path is encrypted, and refer to no
// blob.
func onlyEncrypted(refs []schema.Ref, path string) error {
	for i, r := range refs {
		if r.Path != path || r.KeyID == "" || r.Codec == "" || r.DataRef != "" || len(refs) > 1 {
			return badField(fmt.Sprintf("/refs/%d", i), fmt.Errorf("a request may have one ref: %s, with key_id and codec, and without dataref", path))
		}
	}
	return nil
}

// onlyKeysOf refuses a request encrypted with a key that the run does not have: the run's readers have no other keys.
func onlyKeysOf(r *reader.Snapshot, data schema.Data) error {
	refs := schema.RefsOf(data)
	if refs == nil {
		return nil
	}
	for i, ref := range *refs {
		if ref.KeyID == "" || slices.Contains(r.Head.KeyIDs, ref.KeyID) {
			continue
		}
		keys := "is not encrypted: leave the refs out"
		if len(r.Head.KeyIDs) > 0 {
			keys = fmt.Sprintf("has the keys %s: encrypt with one of them", strings.Join(r.Head.KeyIDs, ", "))
		}
		return badField(fmt.Sprintf("/refs/%d/key_id", i), fmt.Errorf("key %.80q is none of run %s, which %s", ref.KeyID, r.Run, keys))
	}
	return nil
}

// cancel asks a run's executor to stop.
func (s *Service) cancel(t *task, req *schema.CancelRequest) (c change, err error) {
	if err := onlyEncrypted(req.Refs, "/reason"); err != nil {
		return c, err
	}
	if c.who, err = t.sender(req.By); err != nil {
		return c, err
	}
	c.decide = func(ctx context.Context, r *reader.Snapshot) (decision, error) {
		switch {
		case r.Head.Status.Terminal():
			return decision{}, errEnded(r)
		case !r.Head.CancelRequested && moved(&r.Head, req.ExpectedEpoch) != nil:
			return decision{}, moved(&r.Head, req.ExpectedEpoch)
		case !r.Head.CancelRequested:
			return decision{data: &schema.RunCancelRequestedData{By: c.who.by, Claimed: c.who.claimed, Reason: req.Reason, Refs: req.Refs}}, nil
		}
		return s.doneAt(ctx, r, r.Head.CancelPosition)
	}
	c.same = repeatOf[*schema.RunCancelRequestedData](t.run, nil)
	c.name = requestName(req.RequestID, c.who, "cancel")
	return c, nil
}

// doneAt answers a request with the event of another one that had the same effect.
func (s *Service) doneAt(ctx context.Context, r *reader.Snapshot, at schema.Position) (decision, error) {
	there := &schema.ControlReply{EventID: at.ID, Stream: at.Stream}
	e, found, err := s.reader.EventAt(ctx, r, at)
	if found {
		there.By = byOf(e)
	}
	return decision{there: there}, err
}

// handoff accepts, declines or closes a hand-off.
func (*Service) handoff(t *task, req *schema.HandoffRequest) (c change, err error) {
	if err := cmp.Or(checkHandoff(t.run, req), onlyEncrypted(req.Refs, "/reason")); err != nil {
		return c, err
	}
	if c.who, err = t.sender(req.By); err != nil {
		return c, err
	}
	switch req.Action {
	case schema.HandoffAccept:
		c.same = repeatOf[*schema.HandoffAcceptedData](t.run, nil)
	case schema.HandoffDecline:
		c.same = repeatOf[*schema.HandoffDeclinedData](t.run, nil)
	default:
		c.same = repeatOf[*schema.HandoffClosedData](t.run, nil)
	}
	c.name, c.stateful, c.frequent = schema.RequestName("handoff", req.HandoffID, req.Action, c.who.name()), true, true
	c.decide = func(_ context.Context, r *reader.Snapshot) (decision, error) { return decideHandoff(r, req, c.who) }
	return c, nil
}

// checkHandoff validates what the rules of the request do not say.
func checkHandoff(run string, req *schema.HandoffRequest) error {
	if req.ChildRun == run {
		return badField("/child_run", errors.New("is the run that offers"))
	}
	if req.Action != schema.HandoffAccept {
		return nil
	}
	// The name is needed with a proven key, too: executors share a key, and one executor gets the hand-off.
	if err := schema.CheckName("executor that takes it", req.By); err != nil {
		return badField("/by", err)
	}
	return nil
}

// decideHandoff decides the effect of a request on the hand-off.
func decideHandoff(r *reader.Snapshot, req *schema.HandoffRequest, who sender) (decision, error) {
	var open *schema.OpenHandoff
	for i := range r.Head.Handoffs {
		if r.Head.Handoffs[i].HandoffID == req.HandoffID {
			open = &r.Head.Handoffs[i]
		}
	}
	accept := req.Action == schema.HandoffAccept
	switch {
	case open == nil && !accept:
		return decision{refusal: errUnknownHandoff(r, req.HandoffID)}, nil
	case open == nil:
		return decision{}, errUnknownHandoff(r, req.HandoffID)
	case open.Status == schema.HandoffStatusAccepted && accept && nameOf(open.By, open.Claimed) == who.name() && open.ChildRun == req.ChildRun:
		return decision{there: &schema.ControlReply{}}, nil
	case open.Status == schema.HandoffStatusAccepted && req.Action != schema.HandoffClose:
		return decision{}, errHandoffTaken(r, open)
	case accept && open.OfferHash != req.OfferHash:
		e := schema.Fail(schema.CodeHandoffTaken, "Read the offer again, and accept it by its own hash.",
			"hand-off %.80q of run %s is another offer than the one that was read: its hash is %s", open.HandoffID, r.Run, open.OfferHash)
		return decision{}, e.With(map[string]string{"offer_hash": open.OfferHash})
	}
	switch req.Action {
	case schema.HandoffAccept:
		return decision{data: &schema.HandoffAcceptedData{
			HandoffID: req.HandoffID, By: who.by, Claimed: who.claimed, ChildRun: req.ChildRun, OfferHash: req.OfferHash, Reason: req.Reason, Refs: req.Refs,
		}}, nil
	case schema.HandoffDecline:
		return decision{data: &schema.HandoffDeclinedData{HandoffID: req.HandoffID, By: who.by, Claimed: who.claimed, ChildRun: req.ChildRun, Reason: req.Reason, Refs: req.Refs}}, nil
	default:
		return decision{data: &schema.HandoffClosedData{HandoffID: req.HandoffID, By: who.by, Claimed: who.claimed, ChildRun: req.ChildRun, Reason: req.Reason, Refs: req.Refs}}, nil
	}
}

func errUnknownHandoff(r *reader.Snapshot, id string) error {
	var open []string
	for i := range r.Head.Handoffs {
		o := &r.Head.Handoffs[i]
		open = append(open, fmt.Sprintf("%.80q (%s)", o.HandoffID, o.Status))
	}
	has := "it has none open"
	if len(open) > 0 {
		has = "open are " + strings.Join(open, ", ")
	}
	return schema.Fail(schema.CodeUnknownHandoff, hintRun, "run %s has no open hand-off %.80q: %s", r.Run, id, has)
}

func errHandoffTaken(r *reader.Snapshot, o *schema.OpenHandoff) error {
	e := schema.Fail(schema.CodeHandoffTaken, "Run "+o.ChildRun+" continues it. To end it: close.",
		"hand-off %.80q of run %s was accepted by %s for run %s", o.HandoffID, r.Run, nameOf(o.By, o.Claimed), o.ChildRun)
	return e.With(map[string]string{"by": nameOf(o.By, o.Claimed), "child_run": o.ChildRun})
}
