package service

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/waymarkio/waymark/consumer/internal/control"
	"github.com/waymarkio/waymark/consumer/internal/logkey"
	"github.com/waymarkio/waymark/consumer/reader"
	"github.com/waymarkio/waymark/internal/base/keyring"
	"github.com/waymarkio/waymark/internal/nats/eventlog"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

// taskOverhead is the approximate memory of a waiting request, besides its body.
const taskOverhead = 256

// endpoint is one verb of the service.
type endpoint struct {
	verb string
	// whole: the request is about the fleet, its subject names no run.
	whole bool
	// request and answer name the types in schema, for tools that discover the service.
	request, answer string
	count           *atomic.Int64
	serve           func(context.Context, *task) error
}

func (s *Service) endpoints() []*endpoint {
	return []*endpoint{
		{verb: schema.VerbRecover, request: "RecoverRequest", answer: "RecoverReply", count: &s.stats.Recovers, serve: s.recover},
		{verb: schema.VerbGet, request: "GetRequest", answer: "GetReply", count: &s.stats.Gets, serve: s.get},
		{verb: schema.VerbList, whole: true, request: "ListRequest", answer: "ListReply", count: &s.stats.Lists, serve: asking(s.list)},
		{verb: schema.VerbHistory, request: "", answer: "HistoryReply", count: &s.stats.Histories, serve: asking(s.history)},
		{verb: schema.VerbRecords, request: "RecordsRequest", answer: "RecordsReply", count: &s.stats.RecordPages, serve: asking(s.records)},
		{verb: schema.VerbSettle, request: "SettleRequest", answer: "ControlReply", count: &s.stats.Settles, serve: changing(s, s.settle)},
		{verb: schema.VerbClaim, whole: true, request: "ClaimRequest", answer: "ClaimReply", count: &s.stats.Claims, serve: asking(s.claim)},
		{verb: schema.VerbInput, request: "InputRequest", answer: "ControlReply", count: &s.stats.Inputs, serve: changing(s, s.input)},
		{verb: schema.VerbCancel, request: "CancelRequest", answer: "ControlReply", count: &s.stats.Cancels, serve: changing(s, s.cancel)},
		{verb: schema.VerbHandoff, request: "HandoffRequest", answer: "ControlReply", count: &s.stats.Handoffs, serve: changing(s, s.handoff)},
		{verb: schema.VerbFork, request: "ForkRequest", answer: "ControlReply", count: &s.stats.Forks, serve: changing(s, s.fork)},
		{verb: schema.VerbMark, request: "MarkRequest", answer: "ControlReply", count: &s.stats.Marks, serve: changing(s, s.mark)},
		{verb: schema.VerbSignal, request: "SignalRequest", answer: "ControlReply", count: &s.stats.Signals, serve: changing(s, s.signal)},
		{verb: schema.VerbErase, request: "EraseRequest", answer: "EraseReply", count: &s.stats.Erases, serve: asking(s.erase)},
		{verb: schema.VerbCleanup, whole: true, request: "CleanupRequest", answer: "CleanupReply", count: &s.stats.Cleanups, serve: asking(s.cleanup)},
		{verb: schema.VerbPause, whole: true, request: "PauseRequest", answer: "PauseReply", count: &s.stats.Pauses, serve: asking(s.pause)},
		{verb: schema.VerbLimit, whole: true, request: "LimitRequest", answer: "LimitReply", count: &s.stats.Limits, serve: asking(s.limit)},
		{verb: schema.VerbSchedule, whole: true, request: "ScheduleRequest", answer: "ScheduleReply", count: &s.stats.Schedules, serve: asking(s.schedule)},
		{verb: schema.VerbFleet, whole: true, request: "FleetRequest", answer: "FleetReply", count: &s.stats.Fleets, serve: asking(s.fleet)},
		{verb: schema.VerbExecutors, whole: true, request: "ExecutorsRequest", answer: "ExecutorsReply", count: &s.stats.Executors, serve: asking(s.executors)},
	}
}

// metadata describes the endpoint to tools that discover it.
func (e *endpoint) metadata(fleet string) map[string]string {
	m := map[string]string{"fleet": fleet, "format": schema.ContentTypeJSON, "response": e.answer, "replies": "one"}
	if schema.Streamed(e.verb) {
		m["replies"] = "many"
	}
	if e.request != "" {
		m["request"] = e.request
	}
	return m
}

// task is one request in progress. Its reply subject was checked when it was accepted.
type task struct {
	svc      *Service
	endpoint *endpoint
	run      string
	reply    string
	// proven is the sender, as schema.ProvenBy; empty if the NATS server proves no senders.
	proven  string
	data    []byte
	size    int64
	arrived time.Time
	sent    int
}

// decode reads the request's body, fills in its defaults and checks it; an empty one means an empty object. An unknown
// member is refused: what the client meant by it would not be done, and what was done without it could not be undone.
func (t *task) decode(into any) error {
	err := error(nil)
	if len(t.data) > 0 {
		err = json.Unmarshal(t.data, into, json.RejectUnknownMembers(true))
	}
	if err == nil {
		if r, ok := into.(interface{ Default() }); ok {
			r.Default()
		}
		return wrongField(schema.Check(into))
	}
	path := ""
	var semantic *json.SemanticError
	var syntactic *jsontext.SyntacticError
	switch {
	case errors.As(err, &syntactic):
		path = string(syntactic.JSONPointer)
	case errors.As(err, &semantic):
		path = string(semantic.JSONPointer)
		if errors.Is(semantic.Err, json.ErrUnknownName) {
			e := badField(path, fmt.Errorf("there is no such member; there are: %s", strings.Join(membersOf(semantic.GoType), ", ")))
			if told, ok := errors.AsType[*schema.ServiceError](e); ok {
				told.Hint = "Mend the member's name or leave it out. If a newer version has it, run a daemon of that version."
			}
			return e
		}
	}
	return badField(path, err)
}

// asking serves a verb whose answer is one reply.
func asking[Request, Reply any](answer func(context.Context, *task, *Request) (*Reply, error)) func(context.Context, *task) error {
	return func(ctx context.Context, t *task) error {
		req := new(Request)
		if err := t.decode(req); err != nil {
			return err
		}
		reply, err := answer(ctx, t, req)
		if err != nil {
			return err
		}
		body, err := t.encode(reply)
		if err != nil {
			return err
		}
		return t.svc.nc.Publish(t.reply, body)
	}
}

// membersOf are the names of a type's members in JSON.
func membersOf(t reflect.Type) []string {
	if t == nil || t.Kind() != reflect.Struct || t.NumField() == 0 {
		return []string{"none"}
	}
	var names []string
	for _, f := range reflect.VisibleFields(t) {
		if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name != "" && name != "-" {
			names = append(names, name)
		}
	}
	return names
}

// badField refuses a request for one of its fields, named by its JSON Pointer.
func badField(path string, err error) error {
	if path == "" {
		path = "/"
	}
	return schema.Fail(schema.CodeBadRequest, "Correct the request; asking again with the same one gives the same answer.", "request at %.200s: %s", path, err).
		With(map[string]string{"path": path})
}

// wrongField refuses a request whose content breaks a rule of schema; nil for none.
func wrongField(err error) error {
	if wrong, ok := errors.AsType[*schema.DataError](err); ok {
		return badField(wrong.Path, errors.New(wrong.Problem))
	}
	return err
}

// send sends one numbered reply.
func (t *task) send(kind string, body []byte) error {
	t.sent++
	msg := &nats.Msg{
		Subject: t.reply, Data: body,
		Header: nats.Header{schema.HeaderReply: {strconv.Itoa(t.sent)}, schema.HeaderKind: {kind}},
	}
	return t.svc.nc.PublishMsg(msg)
}

// encode writes an answer that one message can carry.
func (t *task) encode(answer any) ([]byte, error) {
	body, err := encode(answer)
	if limit := t.replyLimit(0); err == nil && int64(len(body)) > limit {
		err = errReplyTooLarge(int64(len(body)), limit)
	}
	return body, err
}

// answer sends the answer among other replies, as JSON.
func (t *task) answer(answer any) error {
	body, err := t.encode(answer)
	if err != nil {
		return err
	}
	return t.send(schema.KindAnswer, body)
}

func errReplyTooLarge(size, limit int64) error {
	return schema.Fail(schema.CodeTooLarge, "Raise max_payload of the NATS server, or ask for less.", "the answer has %d bytes, a message at most %d", size, limit)
}

// replyOverhead bounds the headers of a reply.
const replyOverhead = 1 << 10

// replyLimit is the most bytes that the body of a reply may have; asked is the bound of the request, 0 for none.
func (t *task) replyLimit(asked int64) int64 {
	limit := t.svc.nc.MaxPayload() - replyOverhead
	if asked > 0 {
		limit = min(limit, asked)
	}
	return limit
}

// whole sends an answer without further content to a verb that may have some.
func (t *task) whole(answer any) error {
	if err := t.answer(answer); err != nil {
		return err
	}
	return t.send(schema.KindEnd, nil)
}

// refuse sends an error, which ends the answer.
func (s *Service) refuse(t *task, e *schema.ServiceError) {
	s.stats.countError(e.Code)
	switch e.Code {
	case schema.CodeBadRequest, schema.CodeForbidden, schema.CodeTooLarge:
		s.logRefusal(t, e.Code, e.Message)
	default:
	}
	body, err := json.Marshal(e)
	if err != nil {
		s.log.Error().Err(err).Msg("error reply cannot be encoded")
		return
	}
	t.sent++
	err = s.nc.PublishMsg(&nats.Msg{Subject: t.reply, Data: body, Header: nats.Header{
		schema.HeaderReply:     {strconv.Itoa(t.sent)},
		schema.HeaderError:     {headerText(e.Message)},
		schema.HeaderErrorCode: {strconv.Itoa(e.Code.HTTPStatus())},
	}})
	if err != nil {
		s.log.Debug().Err(err).Msg("error reply not sent")
	}
}

// logRefusal logs a wrong request.
func (s *Service) logRefusal(t *task, code schema.Code, detail string) {
	s.refusals.Info().Str("verb", t.endpoint.verb).Str(logkey.Run, t.run).Str("code", string(code)).Str("detail", detail).Msg("request refused")
}

// headerText makes a message valid for a header line.
func headerText(s string) string {
	b := []byte(s)
	for i, c := range b {
		if c < ' ' || c == 0x7f {
			b[i] = ' '
		}
	}
	return string(b)
}

// explain converts an error into the error for the client.
func (s *Service) explain(t *task, err error) *schema.ServiceError {
	const again = "Ask again, with the same request_id: a takeover that had happened is continued."
	var told *schema.ServiceError
	var broken *reader.Damaged
	switch {
	case errors.As(err, &told):
		return told
	case errors.Is(err, reader.ErrNoRun):
		return schema.Fail(schema.CodeNotFound, "Check the run id and the fleet: waymark.list."+s.cfg.Fleet+" lists the runs.",
			"fleet %s has no run %s", s.cfg.Fleet, t.run)
	case errors.Is(err, reader.ErrTooLarge):
		return schema.Fail(schema.CodeTooLarge, "Ask for view head, or for view events and fold it yourself, as the SDK does.",
			"run %s is too large for view state: it has more than %d bytes of events", t.run, schema.MaxStateView)
	case errors.Is(err, reader.ErrBusy):
		return schema.Fail(schema.CodeOverloaded, "Ask again later, or for view events.", "no memory to fold run %s now", t.run)
	case errors.Is(err, kvstore.ErrFull):
		return schema.Fail(schema.CodeStorageFull, "Raise the fleet's quota, or let sealed events be purged.",
			"the event stream of run %s is full and so is its reserve", t.run)
	case errors.As(err, &broken):
		return schema.Fail(schema.CodeDamaged, "Restore segment "+strconv.Itoa(broken.Segment)+" from a backup, or ask for view head.", "segment %d of run %s is missing or damaged", broken.Segment, t.run).
			With(map[string]any{"segment": broken.Segment, "gap": broken.Gap})
	case errors.Is(err, kvstore.ErrStreamMissing), errors.Is(err, eventlog.ErrNoStream):
		s.log.Error().Err(err).Str(logkey.Run, t.run).Msg("a stream of the fleet is not available")
		return schema.Fail(schema.CodeUnavailable, again, "a stream of fleet %s is missing, or has no leader", s.cfg.Fleet)
	case errors.Is(err, keyring.ErrSigner):
		s.log.Error().Err(err).Str("verb", t.endpoint.verb).Str(logkey.Run, t.run).Msg("control event not signed")
		return schema.Fail(schema.CodeUnavailable, "Ask an operator to look at the daemon: waymark fleet keys ls, waymark doctor.",
			"the daemon has no key of fleet %s that signs", s.cfg.Fleet)
	case isUnavailable(err):
		s.log.Warn().Err(err).Str("verb", t.endpoint.verb).Str(logkey.Run, t.run).Msg("request not answered in time")
		return schema.Fail(schema.CodeUnavailable, again, "the NATS servers of fleet %s did not confirm in time that the answer is complete", s.cfg.Fleet)
	default:
		s.log.Error().Err(err).Str("verb", t.endpoint.verb).Str(logkey.Run, t.run).Msg("request failed")
		return schema.Fail(schema.CodeInternal, "See the daemon's log.", "request failed")
	}
}

// isUnavailable reports whether an error says only that no server answered, or none that was up to date.
func isUnavailable(err error) bool {
	for _, kind := range []error{
		reader.ErrStopping, eventlog.ErrStale, control.ErrRefused, context.DeadlineExceeded, context.Canceled, eventlog.ErrNoAnswer, kvstore.ErrUnavailable, keyring.ErrRead,
		nats.ErrTimeout, nats.ErrNoResponders, nats.ErrConnectionClosed, nats.ErrConnectionReconnecting, nats.ErrReconnectBufExceeded,
		nats.ErrDisconnected, jetstream.ErrNoStreamResponse,
	} {
		if errors.Is(err, kind) {
			return true
		}
	}
	return false
}
