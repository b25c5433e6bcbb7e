package inspector

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/waymarkio/waymark/internal/cli/failure"
	"github.com/waymarkio/waymark/internal/history"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// searchWithin bounds a search in a run's records, in time. A page that stopped there has the address that goes on.
const searchWithin = 8 * time.Second

// searchesMost bounds the searches at once: each may need a processor and much memory, and other pages should not wait for them.
var searchesMost = max(1, runtime.GOMAXPROCS(0)/2)

// bisectBody is the page that looks for the first record after which an expression is true.
type bisectBody struct {
	Expr     string
	Examples []bisectExample
	// Wrong is why the expression is refused, with the place; empty for an expression that was evaluated.
	Wrong string
	// Searched: there is an answer. Records is how many the run has, From the first that was looked at, and Through the last.
	Searched               bool
	Records, From, Through int64
	// Found is the event; nil for none. There and Before are the addresses of the state after it and of that before.
	Found         *tailRow
	There, Before string
	Changes       []change
	// Failed is why the expression could not be evaluated after a record, if it is never true.
	Failed string
	// Stopped: the time was over. Further is the address that goes on; empty if the search came no further than the one before.
	Stopped   bool
	Further   string
	Missing   string
	NoContent bool
}

type bisectExample struct{ Text, Path string }

func (s *Inspector) bisectPage(ctx context.Context, r *http.Request) (*view, error) {
	run, q := r.PathValue("run"), r.URL.Query()
	body := bisectBody{Expr: strings.TrimSpace(q.Get("expr")), From: int64(max(number(q.Get("from")), 1)), NoContent: s.NoContent}
	words := "help bisect"
	if body.Expr != "" {
		words = "bisect " + schema.ShellWord(run) + " " + schema.ShellWord(body.Expr)
	}
	v, reply, err := s.head(ctx, r, "bisect", words)
	if err != nil {
		return nil, err
	}
	v.Body = &body
	body.Records = reply.Head.Records
	for _, text := range history.Examples {
		body.Examples = append(body.Examples, bisectExample{text, bisectPath(run, text, 1)})
	}
	if body.Expr == "" {
		return v, nil
	}
	predicate, err := history.CompilePredicate(body.Expr)
	if err != nil {
		body.Wrong = err.Error()
		return v, nil
	}
	leave, err := s.searcher(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	search := history.Search{Predicate: predicate, From: body.From, NoContent: s.NoContent}
	limited, cancel := context.WithTimeout(ctx, s.patience)
	defer cancel()
	err = search.Run(limited, s.Fleet, run)
	switch {
	case err == nil:
	case errors.Is(err, history.ErrPredicateCost):
		body.Wrong = err.Error()
		return v, nil
	case errors.Is(err, publisher.ErrIncomplete):
		body.Missing = err.Error()
	case limited.Err() != nil && ctx.Err() == nil:
		body.Stopped = true
	default:
		return nil, err
	}
	return v, s.bisected(ctx, run, &search, &body)
}

// searcher waits until one more search may begin. Call leave after it.
func (s *Inspector) searcher(ctx context.Context) (leave func(), err error) {
	limited, cancel := context.WithTimeout(ctx, 2*s.patience) // the one before may take all of its time
	defer cancel()
	select {
	case s.searches <- struct{}{}:
		return func() { <-s.searches }, nil
	case <-limited.Done():
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	return nil, failure.New(failure.Unavailable, "load the page again, or use the command", "other searches are under way: at most %d at once", cap(s.searches))
}

// bisected shows the result of a search.
func (s *Inspector) bisected(ctx context.Context, run string, search *history.Search, body *bisectBody) error {
	body.Searched, body.Through = true, search.Records
	body.Records = max(body.Records, search.Records) // it may have gone on meanwhile
	if search.Event == nil {
		if search.Failed != nil {
			body.Failed = search.Failed.Error()
		}
		if body.Stopped && search.Records >= body.From {
			body.Further = bisectPath(run, body.Expr, search.Records+1)
		}
		return nil
	}
	row := s.eventRow(run, search.Event)
	body.Found = &row
	at := func(record int64) string { return fmt.Sprintf("record:%d", record) }
	body.There = runPath(run, "/state?at="+at(search.Records))
	if search.Records == 1 {
		return nil
	}
	body.Before = runPath(run, "/state?at="+at(search.Records-1))
	var heads [2]*schema.GetReply
	group, asking := errgroup.WithContext(ctx)
	for i := range heads {
		group.Go(func() (err error) {
			heads[i], err = s.headAt(asking, run, at(search.Records-1+int64(i)))
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	body.Changes = changes(&heads[0].Head, &heads[1].Head)
	return nil
}

// bisectPath is the address of a search from a record on.
func bisectPath(run, expression string, from int64) string {
	q := url.Values{"expr": {expression}}
	if from > 1 {
		q.Set("from", fmt.Sprint(from))
	}
	return runPath(run, "/bisect?"+q.Encode())
}
