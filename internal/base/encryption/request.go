package encryption

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/waymarkio/waymark/schema"
)

// logged is the part of a request that reaches the run's log: the data of the daemon's event, and a function for the
// request with the content and the refs of other such data.
type logged struct {
	data schema.Data
	with func(schema.Data) any
}

// loggedBy returns the part of a request that reaches the run's log, nil for none. A request of an unknown type is an
// error: it might have content.
func loggedBy(request any) (*logged, error) {
	switch r := request.(type) {
	case schema.InputRequest:
		return loggedBy(&r)
	case schema.SignalRequest:
		return loggedBy(&r)
	case schema.SettleRequest:
		return loggedBy(&r)
	case schema.CancelRequest:
		return loggedBy(&r)
	case schema.HandoffRequest:
		return loggedBy(&r)
	case *schema.InputRequest:
		return logs(&schema.RunInputData{InterruptID: r.InterruptID, Payload: r.Payload, Refs: r.Refs}, func(d *schema.RunInputData) any {
			out := *r
			out.Payload, out.Refs = d.Payload, d.Refs
			return &out
		}), nil
	case *schema.SignalRequest:
		return logs(&schema.SignalSentData{SignalID: r.SignalID, Name: r.Name, Payload: r.Payload, Refs: r.Refs}, func(d *schema.SignalSentData) any {
			out := *r
			out.Payload, out.Refs = d.Payload, d.Refs
			return &out
		}), nil
	case *schema.SettleRequest:
		return logs(&schema.ToolSettledData{ToolCallID: r.ToolCallID, Occurrence: r.Occurrence, How: r.How, Result: r.Result, Refs: r.Refs}, func(d *schema.ToolSettledData) any {
			out := *r
			out.Result, out.Refs = d.Result, d.Refs
			return &out
		}), nil
	case *schema.CancelRequest:
		return logs(&schema.RunCancelRequestedData{Reason: r.Reason, Refs: r.Refs}, func(d *schema.RunCancelRequestedData) any {
			out := *r
			out.Reason, out.Refs = d.Reason, d.Refs
			return &out
		}), nil
	case *schema.HandoffRequest:
		return loggedByHandoff(r), nil
	case nil, struct{}, schema.GetRequest, *schema.GetRequest, schema.ListRequest, *schema.ListRequest, schema.RecoverRequest, *schema.RecoverRequest,
		schema.ClaimRequest, *schema.ClaimRequest, schema.MarkRequest, *schema.MarkRequest, schema.ForkRequest, *schema.ForkRequest, schema.FleetRequest, *schema.FleetRequest,
		schema.CleanupRequest, *schema.CleanupRequest, schema.EraseRequest, *schema.EraseRequest,
		schema.RecordsRequest, *schema.RecordsRequest, schema.PauseRequest, *schema.PauseRequest, schema.LimitRequest, *schema.LimitRequest, schema.ScheduleRequest, *schema.ScheduleRequest, // of many runs, each with its own keys
		schema.ExecutorsRequest, *schema.ExecutorsRequest:
		return nil, nil //nolint:nilnil // they have no content
	}
	return nil, fmt.Errorf("%w: a request of type %T", ErrNoPlace, request)
}

// loggedByHandoff is the reason as data of the event for the action.
func loggedByHandoff(r *schema.HandoffRequest) *logged {
	with := func(reason string, refs []schema.Ref) any {
		out := *r
		out.Reason, out.Refs = reason, refs
		return &out
	}
	switch r.Action {
	case schema.HandoffAccept:
		return logs(&schema.HandoffAcceptedData{HandoffID: r.HandoffID, Reason: r.Reason, Refs: r.Refs}, func(d *schema.HandoffAcceptedData) any { return with(d.Reason, d.Refs) })
	case schema.HandoffDecline:
		return logs(&schema.HandoffDeclinedData{HandoffID: r.HandoffID, Reason: r.Reason, Refs: r.Refs}, func(d *schema.HandoffDeclinedData) any { return with(d.Reason, d.Refs) })
	default:
		return logs(&schema.HandoffClosedData{HandoffID: r.HandoffID, Reason: r.Reason, Refs: r.Refs}, func(d *schema.HandoffClosedData) any { return with(d.Reason, d.Refs) })
	}
}

func logs[D schema.Data](data D, with func(D) any) *logged {
	return &logged{data, func(sealed schema.Data) any {
		d, _ := sealed.(D) // encrypt returns data of its argument's type
		return with(d)
	}}
}

// HasContent reports whether a request would put readable content into the run's log.
func HasContent(request any) (bool, error) {
	l, err := loggedBy(request)
	if l == nil || err != nil {
		return false, err
	}
	refs := *schema.RefsOf(l.data)
	for _, content := range schema.Contents(l.data) {
		value, err := content.JSON()
		if err != nil {
			return false, err
		}
		if len(value) > 0 && !slices.ContainsFunc(refs, func(r schema.Ref) bool { return r.Path == content.Path && r.KeyID != "" }) {
			return true, nil
		}
	}
	return false, nil
}

// Request returns a request to the recovery service in the form in which it leaves the process: content for the run's
// log is encrypted like the event that the daemon makes of it, with the newest available key of the run. Every reader
// of the run has that key. keyIDs returns the ids of the run's keys, oldest first; it is called for a request with
// content. In a run without keys, or without a current key, the request comes back unchanged. The error is ErrNoKey
// if none of the run's keys is available.
func (k *Keys) Request(ctx context.Context, run string, request any, keyIDs func(context.Context) ([]string, error)) (any, error) {
	has, err := HasContent(request)
	if err != nil || !has || k == nil || k.Current == "" {
		return request, err
	}
	ids, err := keyIDs(ctx)
	if err != nil || len(ids) == 0 {
		return request, err
	}
	l, err := loggedBy(request)
	if err != nil {
		return nil, err
	}
	for _, id := range slices.Backward(ids) {
		if _, err := k.get(ctx, id); errors.Is(err, ErrNoKey) {
			continue
		}
		body, err := schema.MarshalData(l.data)
		if err != nil {
			return nil, err
		}
		sealed, err := k.encrypt(ctx, id, run, 0, l.data, body, false)
		if err != nil {
			return nil, err
		}
		return l.with(sealed), nil
	}
	return nil, fmt.Errorf("run %s is encrypted with key %s: %w", run, ids[len(ids)-1], ErrNoKey)
}
