package inspector

import (
	"cmp"
	"context"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/waymarkio/waymark/internal/look/failure"
	"github.com/waymarkio/waymark/schema"
)

// fleets are those behind one door, in the order of the switch on top of each page.
type fleets struct {
	mu   sync.Mutex
	list []member
}

// member is a fleet in the switch.
type member struct {
	Name, Path string
	Current    bool
	// Trouble is set if Stuck, the stuck runs, and Needs, the things that need a person, are not known. Why is the reason.
	Trouble, Why string
	Stuck, Needs int
	// pages are nil until the fleet is reached; err is why it is not.
	pages *Inspector
	err   error
}

// otherOld is the age at which the switch reads the numbers of a fleet again.
const otherOld = 10 * time.Second

// Also adds a fleet to the switch, or replaces it: with its pages, or with the reason why they are not there.
func (s *Inspector) Also(name string, pages *Inspector, err error) {
	f := s.fleets
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.list) == 0 {
		f.list = []member{{Name: s.Fleet.Name(), Path: pathOf(s.Fleet.Name()), pages: s}}
	}
	m := member{Name: name, Path: pathOf(name), pages: pages, err: err}
	if i := slices.IndexFunc(f.list, func(m member) bool { return m.Name == name }); i >= 0 {
		f.list[i] = m
	} else {
		f.list = append(f.list, m)
	}
}

// pathOf is the address of a fleet's first page.
func pathOf(fleet string) string { return "/in/" + fleet + "/" }

// below puts the pages behind the door of the first inspector.
func (s *Inspector) below(first *Inspector) {
	s.door, s.fleets, s.at = first.door, first.fleets, strings.TrimSuffix(pathOf(s.Fleet.Name()), "/")
	pairs := []string{`href="/in/`, `href="/in/`}                         // the switch
	for _, name := range []string{"href", "src", "action", "data-live"} { // foreign text has no quotes in a page
		pairs = append(pairs, name+`="/`, name+`="`+s.at+`/`)
	}
	s.links = strings.NewReplacer(pairs...)
}

// other serves the pages of a fleet of the switch.
func (s *Inspector) other(w http.ResponseWriter, r *http.Request) {
	name := r.PathValue("fleet")
	s.fleets.mu.Lock()
	i := slices.IndexFunc(s.fleets.list, func(m member) bool { return m.Name == name })
	var m member
	if i >= 0 {
		m = s.fleets.list[i]
	}
	s.fleets.mu.Unlock()
	switch {
	case m.pages != nil:
		http.StripPrefix(strings.TrimSuffix(m.Path, "/"), m.pages).ServeHTTP(w, r)
	case m.err != nil:
		s.trouble(w, r, m.err)
	default:
		missing := failure.New(failure.NotFound, "add it with: waymark ui --also "+name+"=CONTEXT", "there is no fleet %s here", name)
		s.trouble(w, r, cmp.Or(schema.CheckName("fleet", name), missing))
	}
}

// look returns the fleets of the switch as the pages of one show them; none if there is one only. It waits briefly for
// numbers that were never read.
func (f *fleets) look(ctx context.Context, current *Inspector) []member {
	f.mu.Lock()
	list := slices.Clone(f.list)
	f.mu.Unlock()
	late := time.Now().Add(soon)
	for i := range list {
		m := &list[i]
		m.Current = m.pages == current
		err := m.err
		if m.pages != nil {
			var k *stock
			var ok bool
			k, ok, err = m.pages.needs.look(m.pages, otherOld, time.Until(late))
			switch {
			case err != nil:
			case !m.pages.Fleet.Connected():
				m.Why = m.pages.live.trouble()
			case ok:
				m.Stuck, m.Needs = k.Stuck(), len(k.Reasons)
				continue
			default:
				m.Trouble = "…"
				continue
			}
		}
		if m.Trouble = "unreachable"; err != nil {
			p, _ := current.problemOf(ctx, err)
			m.Why = p.What
		}
	}
	return list
}
