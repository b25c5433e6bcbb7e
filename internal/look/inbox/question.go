package inbox

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"golang.org/x/sync/errgroup"

	"github.com/waymarkio/waymark/internal/base/encryption"
	"github.com/waymarkio/waymark/internal/base/output"
	"github.com/waymarkio/waymark/internal/base/prompt"
	"github.com/waymarkio/waymark/internal/look/standstill"
	"github.com/waymarkio/waymark/internal/look/story"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// Question is a wait of a run, with its text and its schema.
type Question struct {
	schema.OpenInterrupt
	// Tool and Arguments of the call in question, its side effect, and its idempotency key.
	Tool           string         `json:"tool,omitzero"`
	Arguments      jsontext.Value `json:"arguments,omitzero"`
	SideEffect     string         `json:"side_effect,omitzero"`
	IdempotencyKey string         `json:"idempotency_key,omitzero"`
	ResponseSchema jsontext.Value `json:"response_schema,omitzero"`
	// Encrypted has the key of each of these fields that is encrypted, by its name.
	Encrypted map[string]string `json:"encrypted,omitzero"`
	// SchemaErr is the error of an unreadable schema.
	SchemaErr error `json:"-"`
	// ArgumentsErr is the error of unreadable arguments.
	ArgumentsErr error `json:"-"`
}

// take reads a field that may be in the object store, encrypted, or both, and notes the key of one that stays encrypted.
func (q *Question) take(ctx context.Context, fleet Fields, field string, refs []schema.Ref, path string, inline jsontext.Value) (jsontext.Value, error) {
	value, err := fleet.Field(ctx, refs, path, inline)
	if err == nil {
		return value, nil
	}
	if key := encryption.KeyOf(refs, path); key != "" {
		if q.Encrypted == nil {
			q.Encrypted = map[string]string{}
		}
		q.Encrypted[field] = key
		return inline, nil
	}
	return nil, err
}

// Fields reads fields that may be too large for an event, or encrypted.
type Fields interface {
	Field(ctx context.Context, refs []schema.Ref, path string, inline []byte) ([]byte, error)
}

// Asked completes a wait of a run from the run's content.
func Asked(ctx context.Context, fleet Fields, s *schema.State, w *schema.OpenInterrupt) Question {
	q := Question{OpenInterrupt: *w}
	for i := range slices.Backward(s.Waits) {
		if d := &s.Waits[i]; d.InterruptID == w.InterruptID && d.Input == nil {
			q.Message = d.Message
			if encryption.KeyOf(d.Refs, "/message") != "" {
				_, _ = q.take(ctx, fleet, FieldMessage, d.Refs, "/message", []byte("null")) // a text is decrypted with its event, if at all
			}
			q.ResponseSchema, q.SchemaErr = q.take(ctx, fleet, FieldSchema, d.Refs, "/response_schema", d.ResponseSchema)
			break
		}
	}
	if w.ToolCallID != "" {
		if call := s.Call(w.CallKey()); call != nil {
			q.Tool, q.IdempotencyKey = call.Name, call.IdempotencyKey
			if by := story.SubAgent(call.Source); by != "" {
				q.Tool += " of " + by
			}
			if i := s.Head.FindOpen(w.Turn, w.ToolCallID, w.Occurrence); i >= 0 && q.IdempotencyKey == "" {
				q.IdempotencyKey = s.Head.OpenCalls[i].IdempotencyKey(s.Head.Run)
			}
			q.SideEffect = encryption.ReadableField(call.SideEffect, call.Refs, "/side_effect")
			var err error
			if q.Arguments, err = q.take(ctx, fleet, FieldArguments, call.Refs, "/arguments", call.Arguments); err != nil {
				q.ArgumentsErr = err
			}
		}
	}
	return q
}

// Content has the content of runs.
type Content interface {
	Fields
	Get(ctx context.Context, run string) (*schema.State, error)
}

const (
	// mostArguments bounds the arguments in an entry of the inbox, in bytes.
	mostArguments = 64 << 10
	// mostEvents bounds the events of a run that is read for the arguments of its calls.
	mostEvents = 1 << 13
)

// AddCalls adds the side effect and the arguments of the call that each reason is about. It reads each run once, and no
// run of more than mostEvents events. A reason whose arguments are not there says why.
func AddCalls(ctx context.Context, from Content, reasons []standstill.Reason) {
	runs := make(map[string][]*standstill.Reason)
	for i := range reasons {
		r := &reasons[i]
		if r.ToolCallID != "" && (r.Kind == standstill.Waiting || r.Kind == standstill.Held) {
			runs[r.Run] = append(runs[r.Run], r)
		}
	}
	var group errgroup.Group
	group.SetLimit(stuckReaders)
	for run, of := range runs {
		group.Go(func() error {
			var state *schema.State
			err := fmt.Errorf("run %s has more than %d events", run, mostEvents)
			if of[0].Head.Counts.Events <= mostEvents {
				state, err = from.Get(ctx, run)
			}
			for _, r := range of {
				addCall(ctx, from, r, state, err)
			}
			return nil
		})
	}
	_ = group.Wait() // each reason has its own error
}

// addCall adds the call of a reason from the state of its run, which may be nil or incomplete because of unread.
func addCall(ctx context.Context, from Fields, r *standstill.Reason, state *schema.State, unread error) {
	if state == nil || state.Call(r.Key()) == nil {
		if unread != nil {
			r.NoArguments = unread.Error()
		}
		return
	}
	q := Asked(ctx, from, state, WaitOf(r))
	r.SideEffect = q.SideEffect
	switch key := q.Encrypted[FieldArguments]; {
	case key != "":
		r.Encrypted = map[string]string{FieldArguments: key}
	case q.ArgumentsErr != nil:
		r.NoArguments = q.ArgumentsErr.Error()
	case len(q.Arguments) > mostArguments:
		r.NoArguments = "they have " + output.Bytes(int64(len(q.Arguments)))
	default:
		r.Arguments = q.Arguments
	}
}

// WaitOf is the wait of a reason; of a held call without one, the wait that there would be.
func WaitOf(r *standstill.Reason) *schema.OpenInterrupt {
	if r.Wait != nil {
		return r.Wait
	}
	return &schema.OpenInterrupt{Reason: schema.WaitToolInDoubt, ToolCallID: r.ToolCallID, Turn: r.Turn, Occurrence: r.Occurrence, Since: r.Since}
}

// Fields of a question that an executor may encrypt.
const (
	FieldMessage   = "message"
	FieldArguments = "arguments"
	FieldSchema    = "response_schema"
)

// Problems lists the positions of an answer that its schema does not allow.
func Problems(e *schema.ServiceError) string {
	var problems []publisher.InvalidPlace
	if json.Unmarshal(e.Details, &problems) != nil {
		return ""
	}
	list := make([]string, len(problems))
	for i, p := range problems {
		list[i] = p.Problem
		if p.Path != "" {
			list[i] = "at " + p.Path + ": " + p.Problem
		}
	}
	return strings.Join(list, "; ")
}

// Decision answers an approval in the form of the SDK's approval schema.
func Decision(allow bool, reason string) (jsontext.Value, error) {
	d := struct {
		Decision string `json:"decision"`
		Reason   string `json:"reason,omitzero"`
	}{"allow", reason}
	if !allow {
		d.Decision = "deny"
	}
	return json.Marshal(d)
}

// HowEnded says why an entry is no longer needed: who answered or settled it, as far as the record shows.
func HowEnded(ctx context.Context, from story.Source, t *standstill.Reason) (string, error) {
	what := "it is no longer needed"
	err := from.Walk(ctx, t.Run, schema.Point{}, func(step *schema.Step) error {
		if step.Kind == schema.Applied {
			if step.Data != nil {
				_ = from.Decrypt(ctx, step.Event, step.Data) // encrypted content is shown as such
			}
			what = endedBy(t, &step.Verdict, what)
		}
		return nil
	})
	return what, err
}

// endedBy describes how an event ended an entry; was is the earlier description.
func endedBy(t *standstill.Reason, v *schema.Verdict, was string) string {
	switch d := v.Data.(type) {
	case *schema.RunInputData:
		if t.Kind != standstill.Waiting || d.InterruptID != t.InterruptID {
			return was
		}
		what := "answered"
		if d.Status == schema.InputCancelled || d.Status == schema.InputExpired {
			what = d.Status
		}
		what += " meanwhile by " + output.ByText(d.By, d.Claimed)
		if len(d.Payload) > 0 {
			what += ": " + encryption.ReadableField(string(d.Payload), d.Refs, "/payload")
		}
		return what
	case *schema.ToolSettledData:
		if t.ToolCallID == "" || v.Call != t.Key() {
			return was
		}
		return fmt.Sprintf("settled meanwhile as %s by %s", d.How, output.ByText(d.By, d.Claimed))
	case *schema.RunEndedData:
		if t.Kind != standstill.Held {
			return "the run has ended meanwhile: " + d.Status
		}
	}
	return was
}

// Commands are the commands that a person can run about a reason.
func Commands(p prompt.Prompt, r *standstill.Reason) []string {
	switch r.Kind {
	case standstill.Waiting:
		if r.Wait.Approval() {
			return []string{AnswerCommand(p, r.Run, r.Wait, " --allow"), AnswerCommand(p, r.Run, r.Wait, " --deny")}
		}
		return []string{AnswerCommand(p, r.Run, r.Wait, " --text TEXT"), AnswerCommand(p, r.Run, r.Wait, " --payload JSON")}
	case standstill.Held:
		return SettleCommands(p, r.Head, r.Key())
	case standstill.Quarantined:
		return []string{p.Command("runs show " + r.Run), p.Command("release " + r.Run)}
	}
	return []string{p.Command("verify " + r.Run), p.Command("runs show " + r.Run)}
}

// AnswerCommand is the command that answers a wait, with the flags of the answer. It names the question shown with it,
// so that pasting it later answers no other question.
func AnswerCommand(p prompt.Prompt, run string, w *schema.OpenInterrupt, answer string) string {
	if w.Position.ID != "" {
		answer = schema.Flag("event", w.Position.ID) + answer
	}
	return schema.Command(p.Command("input"), answer, run, w.InterruptID)
}

// SettleCommands are [schema.Head.SettleCommands] for this prompt.
func SettleCommands(p prompt.Prompt, h *schema.Head, key schema.CallKey) []string {
	list := h.SettleCommands("", key)
	for i, command := range list {
		list[i] = p.Command(strings.TrimPrefix(command, "waymark "))
	}
	return list
}
