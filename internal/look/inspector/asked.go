package inspector

import (
	"context"
	"net/http"
	"net/url"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/waymarkio/waymark/internal/look/failure"
	"github.com/waymarkio/waymark/internal/look/inbox"
	"github.com/waymarkio/waymark/internal/look/standstill"
)

const (
	// askReaders bounds the concurrent reads of questions.
	askReaders = 8
	// askedBytes bounds all questions of a page, and leastAsked is the minimum for each field, in bytes.
	askedBytes, leastAsked = 64 << 10, 400
)

// askAll reads the question of each row. A run that cannot be read does not affect the others.
func (s *Inspector) askAll(ctx context.Context, things []thing) error {
	group, reading := errgroup.WithContext(ctx)
	group.SetLimit(askReaders)
	most := min(fieldCut, max(askedBytes/max(len(things), 1), leastAsked))
	for i := range things {
		t := &things[i]
		if t.Kind != standstill.Waiting && t.Kind != standstill.Held {
			continue
		}
		group.Go(func() (err error) {
			if t.Question, err = s.question(reading, t.Reason); err != nil {
				t.Unread = err.Error()
				return reading.Err()
			}
			t.Question.cut(t.Reason, most)
			if t.Wait != nil { // its question is shown below
				wait := *t.Wait
				wait.Message = ""
				t.Text = standstill.WaitText(&wait, t.Tool)
			}
			return nil
		})
	}
	return group.Wait()
}

// cut shortens the fields of a question to fit into a page, with links to the full texts.
func (q *question) cut(r *standstill.Reason, most int) {
	q.Whole = make(map[string]string)
	for name, text := range q.fields() {
		if short := cut(*text, most); len(short) < len(*text) {
			*text = short
			q.Whole[name] = runPath(r.Run, "/asked?"+url.Values{"id": {r.ID}, "field": {name}}.Encode())
		}
	}
}

// fields returns the texts of a question by their names in addresses.
func (q *question) fields() map[string]*string {
	return map[string]*string{"message": &q.Message, "arguments": &q.Arguments, "schema": &q.Schema, "late": &q.Late}
}

// asked is one field of a question in full.
func (s *Inspector) asked(ctx context.Context, r *http.Request) (string, error) {
	run, q := r.PathValue("run"), r.URL.Query()
	reasons, err := inbox.ReasonsOf(ctx, s.Fleet, run)
	if err != nil {
		return "", err
	}
	i := slices.IndexFunc(reasons, func(reason standstill.Reason) bool { return reason.ID == q.Get("id") })
	if i < 0 {
		return "", failure.New(failure.NotFound, "", "run %s no longer asks this question", run)
	}
	asked, err := s.question(ctx, &reasons[i])
	if err != nil {
		return "", err
	}
	text, ok := asked.fields()[q.Get("field")]
	if !ok {
		return "", failure.New(failure.NotFound, "", "a question has no field %.40q", q.Get("field"))
	}
	return *text, nil
}
