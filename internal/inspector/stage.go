package inspector

import (
	"context"
	"net/http"
	"strings"
	"time"
	"unicode"

	"github.com/waymarkio/waymark/internal/cli/failure"
)

// Stage is a demonstration that viewers take part in.
type Stage interface {
	// Actors returns its executors, in the order of the page.
	Actors() []Actor
	// Kill ends the process of an executor at once.
	Kill(ctx context.Context, name string) error
	// Silence is the time without a heartbeat after which runs are orphaned.
	Silence() time.Duration
}

// Actor is an executor of a demonstration.
type Actor struct {
	Name    string
	Process int
	// Killed: its process has ended. Back is when a new one starts.
	Killed bool
	Back   time.Time
}

// stageView is the view of a demonstration in a page.
type stageView struct {
	Actors        []actorRow
	Silence, Here string
	CSRF          string
}

type actorRow struct {
	Actor
	BackIn string
}

func (s *Inspector) stageOf(here, csrf string) *stageView {
	if s.Stage == nil {
		return nil
	}
	v := &stageView{Silence: s.Stage.Silence().String(), Here: here, CSRF: csrf}
	for _, a := range s.Stage.Actors() {
		row := actorRow{Actor: a}
		if a.Killed {
			row.BackIn = max(a.Back.Sub(s.Now()).Truncate(time.Second), 0).String()
		}
		v.Actors = append(v.Actors, row)
	}
	return v
}

// kill kills an executor of the demonstration.
func (s *Inspector) kill(ctx context.Context, r *http.Request) (next, said string, err error) {
	name := r.PostForm.Get("name")
	if next, err = backTo(r); err != nil {
		return "", "", err
	}
	if err := s.Stage.Kill(ctx, name); err != nil {
		return "", "", err
	}
	s.live.wake("")
	return next, "Killed " + name + " with SIGKILL. It is silent now: watch its runs.", nil
}

// backTo returns the address of the page with the submitted form.
func backTo(r *http.Request) (string, error) {
	here := r.PostForm.Get("here")
	if !strings.HasPrefix(here, "/") || strings.HasPrefix(here, "//") || strings.Contains(here, "\\") || strings.ContainsFunc(here, unicode.IsControl) {
		return "", failure.New(failure.Usage, "reload the page and send it again", "this form is not of a page of this process")
	}
	return here, nil
}
