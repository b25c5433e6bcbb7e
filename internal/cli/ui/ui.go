package ui

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"net/http"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/waymarkio/waymark/internal/base/output"
	"github.com/waymarkio/waymark/internal/base/prompt"
	"github.com/waymarkio/waymark/internal/cli/base"
	"github.com/waymarkio/waymark/internal/look/failure"
	"github.com/waymarkio/waymark/internal/look/inspector"
	"github.com/waymarkio/waymark/internal/nats/access"
	"github.com/waymarkio/waymark/internal/nats/natsconn"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// Cmd is waymark ui.
type Cmd struct {
	Listen    string            `default:"127.0.0.1:0" placeholder:"ADDR" environ:"WAYMARK_UI" help:"Address of the pages (WAYMARK_UI; default: a free port on 127.0.0.1)."`
	ReadOnly  bool              `help:"Show no buttons, whatever the credentials allow."`
	NoContent bool              `help:"Hide messages, arguments, results and questions."`
	Also      map[string]string `placeholder:"FLEET=CONTEXT" mapsep:"none" help:"Show this fleet, too, by a NATS context (name or path); may be repeated."`
	By        string            `placeholder:"NAME" environ:"WAYMARK_OPERATOR" help:"Your name, recorded as a claim (WAYMARK_OPERATOR; default: waymark-cli)."`
}

// Help is the text below the flags.
func (Cmd) Help() string {
	return `The pages have your credentials: an observer's have no buttons. The printed address works for one browser; then another is printed. ` +
		`Without a terminal it is in a file that is yours alone, and the file's name is printed.

With --also each page has a switch between the fleets, with what is stuck and what needs you.

Example:
  waymark --context payments ui --also search=search`
}

// readers are the inbox prefixes of the roles that may not act for a person.
var readers = map[string]bool{access.InboxPrefix(access.Observer): true, access.InboxPrefix(access.Executor): true}

// ready is the output line: the address of the pages, or the file that has it.
type ready struct {
	URL   string `json:"url,omitzero"`
	File  string `json:"file,omitzero"`
	Fleet string `json:"fleet"`
	Acts  bool   `json:"acts"`
}

// entrance tells the viewer an address that lets a browser in: on a terminal, else in a file of mode 0600, because
// other output may end in a log that others read.
type entrance struct {
	*base.App
	// file is nil on a terminal.
	file *os.File
}

func newEntrance(a *base.App) (*entrance, error) {
	if !a.JSON && output.IsTerminal(a.Stdout) && output.IsTerminal(a.Stderr) {
		return &entrance{App: a}, nil
	}
	file, err := os.CreateTemp("", "waymark-ui-*")
	if err != nil {
		return nil, fmt.Errorf("make the file for the address of the pages: %w", err)
	}
	return &entrance{a, file}, nil
}

// put replaces the address in the file.
func (e *entrance) put(address string) error {
	if err := e.file.Truncate(0); err != nil {
		return err //nolint:wrapcheck // it names the file
	}
	_, err := e.file.WriteAt([]byte(address+"\n"), 0)
	return err //nolint:wrapcheck // it names the file
}

// begin says the first address.
func (e *entrance) begin(r ready) error {
	where := "waymark ui: " + r.URL
	if e.file != nil {
		if err := e.put(r.URL); err != nil {
			return err
		}
		r.URL, r.File = "", e.file.Name()
		where = "waymark ui: open the address in " + r.File
	}
	if e.JSON {
		return output.Line(e.Stdout, r) //nolint:wrapcheck // as it is
	}
	_, err := fmt.Fprintln(e.Stdout, where)
	return err //nolint:wrapcheck // as it is
}

// next says the address for another browser.
func (e *entrance) next(address string) error {
	if e.file != nil {
		return e.put(address)
	}
	return e.Say(e.Stderr, "for another browser: %s", address)
}

// close removes the file.
func (e *entrance) close() error {
	if e.file == nil {
		return nil
	}
	closed := e.file.Close() // Windows removes no open file
	if err := os.Remove(e.file.Name()); !errors.Is(err, fs.ErrNotExist) {
		return errors.Join(closed, err)
	}
	return closed // the machine has cleaned its temporary files
}

// Run serves the pages until ctx ends.
func (c Cmd) Run(ctx context.Context, a *base.App) (err error) {
	by, err := base.Sender(c.By)
	if err != nil {
		return err
	}
	if err := c.local(); err != nil {
		return err
	}
	for name := range c.Also {
		if err := schema.CheckName("fleet", name); err != nil || name == a.Fleet {
			return failure.New(failure.Usage, "name each other fleet once: --also FLEET=CONTEXT", "--also %s: it is no name of another fleet", name)
		}
	}
	config := inspector.Config{By: by, NoContent: c.NoContent, Now: a.Now}
	if config, err = c.fleet(ctx, a, config); err != nil {
		return err
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", c.Listen)
	if err != nil {
		return &failure.Error{
			Code: failure.Unavailable, What: fmt.Sprintf("cannot listen on --listen %s: %v", c.Listen, err),
			Hint: "choose another address, or leave --listen out for a free port", Own: true, Err: err,
		}
	}
	var pages *inspector.Inspector
	var door *entrance
	address := func() string {
		_, port, _ := net.SplitHostPort(listener.Addr().String())
		return "http://" + net.JoinHostPort(pages.Host(), port) + "/enter?t=" + pages.NewToken()
	}
	config.Used = func() {
		if err := door.next(address()); err != nil {
			_ = a.Say(a.Stderr, "no address for another browser: %v", err) // a closed terminal needs none
		}
	}
	if pages, err = inspector.New(config); err != nil {
		return errors.Join(err, listener.Close())
	}
	if door, err = newEntrance(a); err == nil {
		defer func() { err = errors.Join(err, door.close()) }()
		err = door.begin(ready{URL: address(), Fleet: a.Fleet, Acts: config.Acts})
	}
	if err != nil {
		pages.Close()
		return errors.Join(err, listener.Close())
	}
	var others sync.WaitGroup
	ctx, end := context.WithCancel(ctx)
	defer others.Wait()
	defer end()
	for _, name := range slices.Sorted(maps.Keys(c.Also)) {
		pages.Also(name, nil, failure.New(failure.Unavailable, "reload the page", "fleet %s is not reached yet", name))
		others.Go(func() { c.other(ctx, a, config, pages, name) })
	}
	return serve(ctx, pages, listener)
}

// fleet connects to the fleet of the flags, and completes the configuration of its pages.
func (c Cmd) fleet(ctx context.Context, a *base.App, config inspector.Config) (inspector.Config, error) {
	cl, err := a.Connect(ctx, nats.Name("waymark ui"), nats.MaxReconnects(-1), nats.ErrorHandler(nil)) // an error concerns one page
	if err != nil {
		return config, err
	}
	config.Fleet, err = inspector.Connect(ctx, publisher.Config{Conn: cl.NATS, Fleet: cl.Fleet, RequestTimeout: cl.Wait, Encryption: cl.Keys()})
	if err != nil {
		return config, cl.ConnectFailed(ctx, err)
	}
	config.Acts = !c.ReadOnly && !readers[cl.NATS.Opts.InboxPrefix]
	config.Prompt, config.OwnContext = sharedPrompt(a)
	return config, nil
}

// other shows a fleet of --also until ctx ends, as soon as it is reached.
func (c Cmd) other(ctx context.Context, a *base.App, config inspector.Config, first *inspector.Inspector, name string) {
	config.First = first
	for ctx.Err() == nil {
		round, end := context.WithCancelCause(ctx)
		own := &base.App{Flags: new(*a.Flags), Getenv: a.Getenv, Stderr: a.Stderr, Now: a.Now, Refuse: end} // a revoked key concerns one fleet
		own.Fleet, own.Conn = name, natsconn.Settings{Context: c.Also[name]}
		own.Prompt = base.PromptOf(own.Flags, a.Getenv)
		one, err := c.fleet(round, own, config)
		var pages *inspector.Inspector
		if err == nil {
			pages, err = inspector.New(one)
		}
		first.Also(name, pages, err)
		again := time.After(tryEvery)
		if err == nil {
			again = nil
		}
		select {
		case <-again:
		case <-round.Done():
		}
		end(nil)
		if pages != nil {
			pages.Close()
		}
		own.Close()
	}
}

// tryEvery is the interval of attempts to reach a fleet of --also.
const tryEvery = 5 * time.Second

// sharedPrompt is the prompt of the pages' commands, which a colleague may paste: it names contexts, not their files. Other
// files of this user are left out; own says so.
func sharedPrompt(a *base.App) (shared prompt.Prompt, own bool) {
	flags := *a.Flags
	flags.Conn.Context = natsconn.ContextName(flags.Conn.Context, a.Getenv)
	flags.Conn.Creds, flags.Conn.NKey = "", ""
	own = flags.Conn.Context != a.Conn.Context && flags.Conn.Context == "" || a.Conn.Creds+a.Conn.NKey != ""
	return base.PromptOf(&flags, a.Getenv), own
}

// Timeouts of the server. An event stream has a timeout for each write, not for the whole.
const (
	headerWithin = 5 * time.Second
	readWithin   = 30 * time.Second
	idleFor      = 2 * time.Minute
	maxHeader    = 32 << 10
)

// serve serves the pages until ctx ends.
func serve(ctx context.Context, pages *inspector.Inspector, listener net.Listener) error {
	server := &http.Server{
		Handler: pages, ReadHeaderTimeout: headerWithin, ReadTimeout: readWithin, IdleTimeout: idleFor, MaxHeaderBytes: maxHeader,
		BaseContext: func(net.Listener) context.Context { return context.WithoutCancel(ctx) },
	}
	done := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(done)
		pages.Close()
		limit, cancel := context.WithTimeout(context.WithoutCancel(ctx), base.CloseTimeout)
		defer cancel()
		if server.Shutdown(limit) != nil {
			_ = server.Close() // a viewer does not read
		}
	})
	defer stop()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serving the pages: %w", err)
	}
	<-done // a person who is giving an answer still sees its result
	return nil
}

// local refuses an address that other machines reach, or that browsers do not look for.
func (c Cmd) local() error {
	host, _, err := net.SplitHostPort(c.Listen)
	switch {
	case err != nil:
		return failure.New(failure.Usage, "write host and port, such as 127.0.0.1:0", "--listen %q is not an address", c.Listen)
	case host != "localhost" && host != "127.0.0.1" && host != "::1":
		return failure.New(failure.Usage, "listen on 127.0.0.1 or ::1; from another machine, reach it through ssh -L",
			"--listen %s: browsers look for the host of the pages at 127.0.0.1 and ::1", c.Listen)
	}
	return nil
}
