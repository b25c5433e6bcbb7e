package inspector

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json"

	"github.com/waymarkio/waymark/internal/look/failure"
	"github.com/waymarkio/waymark/internal/look/operate"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// actionsBody is the page of actions on a run.
type actionsBody struct {
	// Ended: the run has ended. Free: there is nothing to release. Busy: an executor may be working on it.
	Ended, Free, Busy bool
	// Asked: a cancel is already requested.
	Asked    bool
	Commands []string
}

func (s *Inspector) actionsPage(ctx context.Context, r *http.Request) (*view, error) {
	run := r.PathValue("run") // a name, if there is a head
	v, reply, err := s.head(ctx, r, "actions", "help resume")
	if err != nil {
		return nil, err
	}
	h := &reply.Head
	there, err := operate.Releasable(s.Prompt, h, true)
	v.Body = &actionsBody{
		Ended: h.Status.Terminal(), Free: err == nil && !there, Busy: operate.MayTake(s.Prompt, h, false) != nil, Asked: h.CancelRequested,
		Commands: []string{
			s.commandOf("fork " + run + " --hold"), s.commandOf("checkpoint " + run + " --name NAME"), s.commandOf("signal " + run + " note --payload JSON"),
			s.commandOf("resume " + run + " --at POINT"), s.commandOf("release " + run), s.commandOf("cancel " + run),
		},
	}
	v.Command = ""
	return v, nil
}

// sureBody is the page that describes the effects of an action and asks for a confirmation.
type sureBody struct {
	// Do is the action: rewind, release or cancel.
	Do, Path, Command string
	At                string
	Left              *operate.LeftBehind
	// Busy: an executor may be working on the run, and would be fenced.
	Busy bool
	// InDoubt is how many calls the action puts in doubt.
	InDoubt int
}

// surePage describes the effects of a rewind, a release or a cancel. It writes nothing.
func (s *Inspector) surePage(ctx context.Context, r *http.Request) (*view, error) {
	run, do := r.PathValue("run"), r.PathValue("do")
	v, reply, err := s.head(ctx, r, "actions", "")
	if err != nil {
		return nil, err
	}
	h := &reply.Head
	body := sureBody{Do: do, Path: runPath(run, "/act/"+do), Busy: operate.MayTake(s.Prompt, h, false) != nil}
	force := ""
	if body.Busy {
		force = " --force"
	}
	for i := range h.OpenCalls {
		if h.OpenCalls[i].State == schema.CallBegun {
			body.InDoubt++
		}
	}
	switch do {
	case "rewind":
		point, err := rewindPoint(r.URL.Query().Get("at"))
		if err != nil {
			return nil, err
		}
		body.At = point.String()
		body.Command = s.commandOf("resume " + run + schema.Flag("at", body.At) + force)
		there, err := s.Fleet.GetAt(ctx, run, point)
		if err != nil {
			return nil, err
		}
		now, _, err := s.stateOf(ctx, run, "")
		if err != nil {
			return nil, err
		}
		left := operate.Behind(there, now)
		body.Left = &left
	case "release":
		if there, err := operate.Releasable(s.Prompt, h, true); err != nil {
			return nil, err
		} else if !there {
			return nil, failure.New(failure.Conflict, "an executor of its agent claims it once one is free", "run %s can be claimed already: there is nothing to release", run)
		}
		body.Command = s.commandOf("release " + run + force)
	case "cancel":
		if h.Status.Terminal() {
			return nil, failure.New(failure.Conflict, "", "run %s has ended as %s", run, h.Status)
		}
		body.Command = s.commandOf("cancel " + run)
	default:
		return nil, failure.New(failure.NotFound, "see what can be done: "+runPath(run, "/act"), "there is no action %.40q", do)
	}
	v.Body = &body
	return v, nil
}

// rewindPoint is a point to which the run can be rewound.
func rewindPoint(text string) (schema.Point, error) {
	point, err := schema.ParsePoint(text)
	if err != nil || point.Kind == schema.PointEnd {
		return point, failure.New(failure.Usage, "write a point as commands take it, such as record:12, turn:3 or mark:NAME", "%.80q is no point to go back to", text)
	}
	return point, nil
}

// take takes a run over in the epoch that the viewer saw.
func (s *Inspector) take(ctx context.Context, r *http.Request, do func(*schema.Head, schema.Epoch, *publisher.Fleet) error) error {
	epoch, err := seenEpoch(r)
	if err != nil {
		return err
	}
	reply, err := s.headAt(ctx, r.PathValue("run"), "")
	if err == nil {
		err = operate.MayTake(s.Prompt, &reply.Head, r.PostForm.Get("force") == "yes")
	}
	if err != nil {
		return err
	}
	return s.Fleet.As(ctx, s.By, func(fleet *publisher.Fleet) error { return do(&reply.Head, epoch, fleet) })
}

// seenEpoch is the epoch on the confirmed page. The service refuses an action on another one.
func seenEpoch(r *http.Request) (schema.Epoch, error) {
	epoch, err := strconv.ParseUint(r.PostForm.Get("seen"), 10, 31)
	if r.PostForm.Get("sure") != "yes" || err != nil || epoch == 0 {
		return 0, failure.New(failure.Usage, "use the button", "this form does not say that you are sure")
	}
	return schema.Epoch(epoch), nil
}

// act carries out the action of a submitted form.
func (s *Inspector) act(ctx context.Context, r *http.Request) (next, said string, err error) {
	run, f := r.PathValue("run"), r.PostForm
	switch r.PathValue("do") {
	case "fork":
		return s.fork(ctx, r)
	case "signal":
		text := strings.TrimSpace(f.Get("text"))
		if text == "" {
			return "", "", failure.New(failure.Usage, "go back and write one", "there is no message")
		}
		payload, err := json.Marshal(text)
		if err != nil {
			return "", "", failure.New(failure.Usage, "write plain text", "the message is not UTF-8")
		}
		request := schema.SignalRequest{SignalID: rand.Text(), Name: cmp.Or(strings.TrimSpace(f.Get("name")), "note"), Payload: payload, By: s.By}
		if err := s.Fleet.Ask(ctx, schema.VerbSignal, run, request, new(schema.ControlReply)); err != nil {
			return "", "", err
		}
		return runPath(run, "/act"), "Sent to " + run + ", as " + s.By + ". Its agent is shown it with its next turn.", nil
	case "cancel":
		epoch, err := seenEpoch(r)
		if err != nil {
			return "", "", err
		}
		var reply schema.ControlReply
		request := schema.CancelRequest{By: s.By, Reason: f.Get("reason"), ExpectedEpoch: epoch, RequestID: rand.Text()}
		if err := s.Fleet.Ask(ctx, schema.VerbCancel, run, request, &reply); err != nil {
			return "", "", err
		}
		if reply.Already {
			return runPath(run, ""), fmt.Sprintf("The end of %s was asked for already, by %s.", run, reply.By), nil
		}
		return runPath(run, ""), fmt.Sprintf("Asked for the end of %s, as %s. Its executor winds it up.", run, s.By), nil
	case "release":
		said := fmt.Sprintf("Released %s, as %s: the fleet may claim it.", run, s.By)
		err := s.take(ctx, r, func(h *schema.Head, epoch schema.Epoch, fleet *publisher.Fleet) error {
			there, err := operate.Releasable(s.Prompt, h, true)
			if err != nil || !there {
				said = run + " can be claimed already."
				return err
			}
			_, err = operate.Release(ctx, fleet, run, epoch, schema.TakeoverRequest)
			return err
		})
		return runPath(run, ""), said, err
	case "rewind":
		point, err := rewindPoint(f.Get("at"))
		if err != nil {
			return "", "", err
		}
		err = s.take(ctx, r, func(_ *schema.Head, epoch schema.Epoch, fleet *publisher.Fleet) error {
			_, err := operate.Rewind(ctx, fleet, run, epoch, point, rand.Text())
			return err
		})
		return runPath(run, ""), fmt.Sprintf("%s continues after %s, as %s decided: the fleet may claim it.", run, point, s.By), err
	}
	return "", "", failure.New(failure.NotFound, "see what can be done: "+runPath(run, "/act"), "there is no action %.40q", r.PathValue("do"))
}

// fork starts a new run from a point of this one.
func (s *Inspector) fork(ctx context.Context, r *http.Request) (next, said string, err error) {
	run, f := r.PathValue("run"), r.PostForm
	point, err := schema.ParsePoint(f.Get("at"))
	if err != nil {
		return "", "", failure.New(failure.Usage, "write a point as commands take it, such as record:12, turn:3 or end", "%v", err)
	}
	as := strings.TrimSpace(f.Get("as"))
	if as == "" {
		as = operate.ForkID(run)
	}
	if err := schema.CheckName("id", as); err != nil {
		return "", "", failure.New(failure.Usage, "go back and use letters, digits, - and _", "%v", err)
	}
	if as == run {
		return "", "", failure.New(failure.Usage, "choose another id, or leave it empty", "%s is the run itself, and a fork is a run of its own", as)
	}
	hold := f.Get("hold") == "yes"
	err = s.Fleet.As(ctx, s.By, func(fleet *publisher.Fleet) error {
		return operate.Fork(ctx, fleet, publisher.ForkSpec{ID: as, Base: run, At: point}, hold)
	})
	if errors.Is(err, publisher.ErrRunExists) {
		err = operate.Taken(s.Prompt, as, err, func() error {
			_, err := s.headAt(ctx, as, "")
			return err
		})
	}
	said = fmt.Sprintf("Forked %s at %s as %s, as %s: the fleet may claim it.", run, point, as, s.By)
	if hold {
		said = fmt.Sprintf("Forked %s at %s as %s, as %s. It is held: answer its question to let it go on.", run, point, as, s.By)
	}
	return runPath(as, ""), said, err
}
