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

	"github.com/waymarkio/waymark/internal/look/failure"
)

// actWithin bounds the duration of an action.
const actWithin = time.Minute

// outcome of an action: the address of the next page and its message, or a page.
type outcome struct {
	next, said string
	page       *view
	err        error
	// failed: the page has a row that failed.
	failed bool
}

// submissions are the latest submitted forms. A second click or a reload submits the same form: it has no further
// effect, and leads to the same page.
//
// Each load of a page has an id, which its forms contain. After another load, or with other content, it is another form.
type submissions struct {
	mu   sync.Mutex
	list []*submission
}

type submission struct {
	key [sha256.Size]byte
	// done is closed at the end of the action.
	done chan struct{}
	outcome
}

// submissionsKept bounds the remembered forms.
const submissionsKept = 256

// loaded returns the token for the forms of a new load: the secret of the process, and the id of the load.
func (s *Inspector) loaded() string { return s.csrf + "-" + rand.Text() }

// madeHere reports whether this process rendered the form.
func (s *Inspector) madeHere(r *http.Request) bool {
	secret, _, _ := strings.Cut(r.PostForm.Get("csrf"), "-")
	return same(secret, s.csrf)
}

// once carries out the action of a form, once. A form that failed, or one row of it, may be submitted again.
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
		if own.err != nil || own.failed {
			l.mu.Lock()
			l.list = slices.DeleteFunc(l.list, func(x *submission) bool { return x == own })
			l.mu.Unlock()
		}
		close(own.done)
	}()
	own.outcome = do()
	return own.outcome
}

// errBroken is the outcome of an action that did not end.
var errBroken = failure.New(failure.General, "look at what it did, and send it again if it did nothing", "the action broke off, by a mistake of this program")
