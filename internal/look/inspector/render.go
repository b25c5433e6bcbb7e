package inspector

import (
	"bytes"
	"context"
	"embed"
	"html/template"
	"net/http"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/waymarkio/waymark/internal/base/output"
	"github.com/waymarkio/waymark/internal/look/story"
	"github.com/waymarkio/waymark/schema"
)

//go:embed templates
var templates embed.FS

// page is a kind of page.
type page struct {
	// path is a pattern of http.ServeMux; name is the template.
	path, name string
	// every is the shortest interval between two renderings of an open page; 0 for a static one.
	every time.Duration
	show  func(ctx context.Context, r *http.Request) (*view, error)
}

// pages returns all pages.
func (s *Inspector) pages() []page {
	const brisk, calm = 250 * time.Millisecond, time.Second
	return []page{
		{"/{$}", "fleet", calm, s.fleetPage},
		{"/needs-you", "needs", calm, s.needsPage},
		{"/executors", "executors", brisk, s.executorsPage},
		{"/health", "health", 2 * calm, s.healthPage},
		{"/run/{run}", "run", brisk, s.timelinePage},
		{"/run/{run}/conversation", "conversation", brisk, s.conversationPage},
		{"/run/{run}/recovery", "recovery", brisk, s.recoveryPage},
		{"/run/{run}/act", "actions", calm, s.actionsPage},
		{"/run/{run}/act/rewind", "sure", 0, s.rewindPage},
		{"/act/{do}", "bulk", 0, s.bulkPage},
	}
}

// view is the input of a template. Body belongs to the page.
type view struct {
	Title, Nav, Fleet string
	// Fleets are those of the switch; none for one fleet.
	Fleets []member
	// Command prints the content of the page.
	Command string
	// OwnContext: each reader of the command adds an own context or key.
	OwnContext bool
	// Live is the address of the page's live updates; empty for none.
	Live string
	// Trouble says why the page may be out of date. Said is the result of the last form.
	Trouble, Said string
	// Needs is the last known number of things that need a person.
	Needs int
	Acts  bool
	// CSRF is the token of the page's forms; empty in live updates, because the open page keeps its own.
	CSRF string
	// By is the recorded name for the viewer's decisions.
	By string
	// Run is the header of a run's page; nil elsewhere.
	Run  *runBar
	Body any
}

func (s *Inspector) view(title, nav, command string) *view {
	v := &view{Title: title, Nav: nav, Fleet: s.Fleet.Name(), Acts: s.Acts, OwnContext: s.OwnContext, By: s.By, Trouble: s.live.trouble()}
	if command != "" {
		v.Command = s.commandOf(command)
	}
	return v
}

// complete adds the parts that every page has.
func (s *Inspector) complete(v *view, r *http.Request) {
	v.Fleets = s.fleets.look(r.Context(), s)
	v.Live = "/live" + r.URL.RequestURI()
	v.Needs = s.needs.count()
}

// whole answers with a page.
func (s *Inspector) whole(w http.ResponseWriter, r *http.Request, p *page) {
	v, err := p.show(r.Context(), r)
	if err != nil {
		s.trouble(w, r, err)
		return
	}
	v.CSRF = s.loaded()
	s.complete(v, r)
	if p.every == 0 {
		v.Live = ""
	}
	v.Said = s.door.said(w, r)
	s.render(w, http.StatusOK, p.name, v)
}

// render writes a page.
func (s *Inspector) render(w http.ResponseWriter, status int, name string, v *view) {
	b := s.execute(name, "layout", v)
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	_, _ = w.Write(b) // the viewer may be gone
}

// execute runs a part of a page's template. A failure is a bug of this package, and is shown on the page.
func (s *Inspector) execute(name, part string, v *view) []byte {
	var b bytes.Buffer
	if err := s.templates[name].ExecuteTemplate(&b, part, v); err != nil {
		return []byte("<p>This page cannot be made: " + template.HTMLEscapeString(err.Error()))
	}
	if s.links != nil {
		return []byte(s.links.Replace(b.String()))
	}
	return b.Bytes()
}

// parse reads the template of each page, with a clock.
func parse(now func() time.Time) map[string]*template.Template {
	ago := template.FuncMap{
		"ago":   func(at string) string { return output.Ago(at, now()) },
		"since": func(at string) string { return strings.TrimSuffix(output.Ago(at, now()), " ago") },
	}
	all := make(map[string]*template.Template)
	for _, name := range []string{"fleet", "needs", "health", "executors", "run", "conversation", "recovery", "actions", "sure", "bulk", "trouble", "enter", "entered"} {
		t := template.New(name).Funcs(functions).Funcs(ago)
		all[name] = template.Must(t.ParseFS(templates, "templates/layout.html", "templates/parts.html", "templates/"+name+".html"))
	}
	return all
}

// functions of the templates. Foreign text passes through one, block or cut, which make invisible characters visible.
var functions = template.FuncMap{
	"one":    output.Printable,
	"lines":  block,
	"cut":    func(n int, s string) string { return cut(output.Printable(s), n) },
	"json":   func(v jsontext.Value) string { return block(pretty(v)) },
	"local":  output.LocalTime,
	"clock":  output.Clock,
	"bytes":  output.Bytes,
	"span":   func(ms int64) string { return story.Span(time.Duration(ms) * time.Millisecond) },
	"tokens": story.TokensText,
	"state":  stateOf,
	"plural": plural,
	"card":   func(v *view, t thing) card { return card{v, []thing{t}} },
	"cards":  func(v *view, things []thing) card { return card{v, things} },
}

// plural is a count of any kind with its noun.
func plural(n any, noun string) string {
	return output.Plural(reflect.ValueOf(n).Convert(reflect.TypeFor[int64]()).Int(), noun)
}

// card is one thing that needs a person, or several that one form answers.
type card struct {
	V      *view
	Things []thing
}

// T is the first thing.
func (c card) T() thing { return c.Things[0] }

// ID of the form: one thing and several with the same first one have different forms.
func (c card) ID() string {
	if len(c.Things) > 1 {
		return "fg-" + c.T().ID
	}
	return "f-" + c.T().ID
}

// block makes foreign text of several lines printable.
func block(s string) string {
	lines := strings.Split(s, "\n")
	for i := range lines {
		lines[i] = printableTabs(strings.TrimSuffix(lines[i], "\r"))
	}
	return strings.Join(lines, "\n")
}

// printableTabs is output.Printable that keeps tabs.
func printableTabs(line string) string {
	parts := strings.Split(line, "\t")
	for i := range parts {
		parts[i] = output.Printable(parts[i])
	}
	return strings.Join(parts, "\t")
}

// pretty indents a JSON value and keeps its numbers. Other text stays unchanged.
func pretty(v jsontext.Value) string {
	v = v.Clone()
	_ = v.Indent(jsontext.WithIndent("  "))
	return string(v)
}

// cut shortens text to n characters.
func cut(s string, n int) string {
	if len(s) <= n {
		return s
	}
	at := 0
	for i := range s {
		if at++; at > n {
			return s[:i] + "…"
		}
	}
	return s
}

// stateOf is the CSS class of a status.
func stateOf(s schema.Status) string {
	switch s {
	case schema.StatusRunning:
		return "live"
	case schema.StatusWaiting, schema.StatusPaused:
		return "wait"
	case schema.StatusInterrupted:
		return "free"
	case schema.StatusOrphaned:
		return "lost"
	case schema.StatusFailed:
		return "bad"
	case schema.StatusCompleted:
		return "done"
	case quarantinedRuns:
		return "bad"
	case schema.StatusCancelled, schema.StatusErased:
	}
	return "off"
}

// number parses a number in a form or an address; 0 for other text.
func number(text string) int {
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 {
		return 0
	}
	return n
}
