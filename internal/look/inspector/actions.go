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
			s.commandOf("resume " + run + " --at POINT"), s.commandOf("release " + run), s.commandOf("cancel " + run), s.commandOf("reopen " + run),
		},
	}
	v.Command = ""
	return v, nil
}

// sureBody is the page that describes the effects of a rewind and asks for a confirmation.
type sureBody struct {
	Path, Command, At string
	Left              operate.LeftBehind
	// Busy: an executor may be working on the run, and would be fenced.
	Busy bool
}

// rewindPage describes the effects of a rewind. It writes nothing.
func (s *Inspector) rewindPage(ctx context.Context, r *http.Request) (*view, error) {
	run := r.PathValue("run")
	v, reply, err := s.head(ctx, r, "actions", "")
	if err != nil {
		return nil, err
	}
	point, err := rewindPoint(r.URL.Query().Get("at"))
	if err != nil {
		return nil, err
	}
	body := sureBody{Path: runPath(run, "/act/rewind"), At: point.String(), Busy: operate.MayTake(s.Prompt, &reply.Head, false) != nil}
	force := ""
	if body.Busy {
		force = " --force"
	}
	body.Command = s.commandOf("resume " + run + schema.Flag("at", body.At) + force)
	there, err := s.Fleet.GetAt(ctx, run, point)
	if err != nil {
		return nil, err
	}
	now, _, err := s.stateOf(ctx, run, "")
	if err != nil {
		return nil, err
	}
	body.Left = operate.Behind(there, now)
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

// take takes a run over; force takes it from an executor that may be working on it.
func (s *Inspector) take(ctx context.Context, run string, force bool, do func(*schema.Head, *publisher.Fleet) error) error {
	reply, err := s.headAt(ctx, run, "")
	if err == nil {
		err = operate.MayTake(s.Prompt, &reply.Head, force)
	}
	if err != nil {
		return err
	}
	return s.Fleet.As(ctx, s.By, func(fleet *publisher.Fleet) error { return do(&reply.Head, fleet) })
}

// seenEpoch is the epoch on the confirmed page. The service refuses an action on another one.
func seenEpoch(r *http.Request, seen string) (schema.Epoch, error) {
	epoch, err := strconv.ParseUint(seen, 10, 31)
	if r.PostForm.Get("sure") != "yes" || err != nil || epoch == 0 {
		return 0, failure.New(failure.Usage, "use the button", "this form does not say that you are sure")
	}
	return schema.Epoch(epoch), nil
}

// signal sends a message to the agent of a run.
func (s *Inspector) signal(ctx context.Context, r *http.Request) (next, said string, err error) {
	run, f := r.PathValue("run"), r.PostForm
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
}

// pausing is a pause on the page of the fleet.
type pausing struct{ schema.Pause }

// What it selects, in words.
func (p *pausing) What() string {
	if flags := p.Flags(); flags != "--all" {
		return "runs of " + flags
	}
	return "all runs"
}

// pause pauses the runs of a scope, or ends the pause.
func (s *Inspector) pause(ctx context.Context, r *http.Request) (next, said string, err error) {
	f := r.PostForm
	var reply schema.PauseReply
	request := schema.PauseRequest{End: f.Get("end") == "yes", Reason: strings.TrimSpace(f.Get("reason")), By: s.By}
	request.Scope = schema.Scope{Run: f.Get("run"), Agent: f.Get("agent"), ModelTier: f.Get("tier"), Labels: make(map[string]string)}
	for _, label := range f["label"] {
		key, value, _ := strings.Cut(label, "=")
		request.Labels[key] = value
	}
	if err := s.Fleet.Ask(ctx, schema.VerbPause, "", request, &reply); err != nil {
		return "", "", err
	}
	what := (&pausing{reply.Pause}).What()
	switch doubt := reply.Doubt(); {
	case request.End && reply.Already:
		return "/", "Not paused: " + what + ".", nil
	case request.End:
		return "/", fmt.Sprintf("Ended the pause of %s, as %s. They are claimed one after the other.", what, s.By), nil
	case doubt != "":
		return "/", fmt.Sprintf("Paused %s. %s", what, doubt), nil
	case reply.Already:
		return "/", fmt.Sprintf("Paused already by %s: %s.", reply.Pause.By, what), nil
	}
	return "/", fmt.Sprintf("Paused %s, as %s: %s.", what, s.By, plural(reply.Runs, "run")), nil
}

// rewind continues a run after a point.
func (s *Inspector) rewind(ctx context.Context, r *http.Request) (next, said string, err error) {
	run, f := r.PathValue("run"), r.PostForm
	point, err := rewindPoint(f.Get("at"))
	if err != nil {
		return "", "", err
	}
	epoch, err := seenEpoch(r, f.Get("seen"))
	if err != nil {
		return "", "", err
	}
	err = s.take(ctx, run, f.Get("force") == "yes", func(_ *schema.Head, fleet *publisher.Fleet) error {
		_, err := operate.Rewind(ctx, fleet, run, epoch, point, rand.Text())
		return err
	})
	return runPath(run, ""), fmt.Sprintf("%s continues after %s, as %s decided: the fleet may claim it.", run, point, s.By), err
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
