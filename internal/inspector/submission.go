package inspector

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/waymarkio/waymark/internal/cli/failure"
)

// actWithin bounds an action, in time.
const actWithin = time.Minute

// outcome is what an action came to: the address of the next page, and what it says.
type outcome struct {
	next, said string
	err        error
}

// submissions are the forms that were sent last. A second click on a button, or a form that is loaded again, sends the same form: it
// does nothing more, and leads to the same page.
//
// The forms of a page that was loaded have an id of that load. Loaded again, or with other content, it is another form.
type submissions struct {
	mu   sync.Mutex
	list []*submission
}

type submission struct {
	key [sha256.Size]byte
	// done is closed when the action has ended.
	done chan struct{}
	outcome
}

// submissionsKept bounds the forms that are kept.
const submissionsKept = 256

// loaded returns the token of the forms of a page that is loaded now: the secret of the process, and the id of the load.
func (s *Inspector) loaded() string { return s.csrf + "-" + rand.Text() }

// madeHere reports whether a form is of a page of this process.
func (s *Inspector) madeHere(r *http.Request) bool {
	secret, _, _ := strings.Cut(r.PostForm.Get("csrf"), "-")
	return same(secret, s.csrf)
}

// once carries out the action of a form, unless the form was sent before. What failed may be sent again.
func (l *submissions) once(r *http.Request, do func() outcome) outcome {
	key := sha256.Sum256([]byte(r.URL.Path + "\n" + r.PostForm.Encode()))
	l.mu.Lock()
	if i := slices.IndexFunc(l.list, func(x *submission) bool { return x.key == key }); i >= 0 {
		first := l.list[i]
		l.mu.Unlock()
		select {
		case <-first.done:
			return first.outcome
		case <-r.Context().Done():
			return outcome{err: context.Cause(r.Context())}
		}
	}
	own := &submission{key: key, done: make(chan struct{}), outcome: outcome{err: errBroken}}
	l.list = append(l.list, own)
	l.list = l.list[max(len(l.list)-submissionsKept, 0):]
	l.mu.Unlock()
	defer func() { // an action that panics ends, too
		if own.err != nil {
			l.mu.Lock()
			l.list = slices.DeleteFunc(l.list, func(x *submission) bool { return x == own })
			l.mu.Unlock()
		}
		close(own.done)
	}()
	own.outcome = do()
	return own.outcome
}

// errBroken is what an action came to that did not end.
var errBroken = failure.New(failure.General, "look at what it did, and send it again if it did nothing", "the action broke off, by a mistake of this program")
