package worker

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/rs/zerolog"

	"github.com/waymarkio/waymark/internal/base/group"
	"github.com/waymarkio/waymark/publisher"
)

const (
	// unread is how many lines wait for a program that does not read.
	unread = 256
	// stopGrace is how long a program may run after its standard input has ended.
	stopGrace = 5 * time.Second
	// pipeDelay is how long the output of a program that has ended may go on.
	pipeDelay = time.Second
	// silentHello is how long a program may start before that is logged.
	silentHello = 3 * time.Second
)

// program is one start of the agent's program.
type program struct {
	cmd   *exec.Cmd
	kill  func() // the program and what it has started
	hello *Hello
	log   zerolog.Logger
	out   chan []byte
	// gone is closed when the program has ended, with why; all lines that it wrote were read before.
	gone chan struct{}
	why  error

	mu sync.Mutex
	// last is the id of our latest request, waiting are those without an answer.
	last    int64
	waiting map[int64]*exchange
	// own handles the requests of a program with its own loop, and runs are the exchanges about those that it has.
	own  func(*said)
	runs map[string]*exchange
}

// exchange is a request of ours.
type exchange struct {
	id     int64
	begins chan struct{}
	answer chan *said
	// own is the run that the program has, by its id, until done is closed; nil for other requests.
	own  *ownRun
	run  string
	done chan struct{}
}

// start starts the program and reads its hello.
func start(ctx context.Context, command []string, stderr io.Writer, log zerolog.Logger) (*program, error) {
	cmd := exec.CommandContext(context.WithoutCancel(ctx), command[0], command[1:]...) // stop ends it
	cmd.Stderr, cmd.WaitDelay = stderr, pipeDelay
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("start of the program: %w", err)
	}
	from, to, err := os.Pipe() // that of StdoutPipe is closed before all lines are read
	if err != nil {
		return nil, fmt.Errorf("start of the program: %w", err)
	}
	cmd.Stdout = to
	kill, err := group.Start(ctx, cmd)
	if err != nil {
		return nil, fmt.Errorf("start of the program: %w", errors.Join(err, from.Close(), to.Close()))
	}
	_ = to.Close() // the program has its own
	p := &program{cmd: cmd, kill: kill, log: log.With().Int("pid", cmd.Process.Pid).Logger(), out: make(chan []byte, unread), gone: make(chan struct{}), waiting: make(map[int64]*exchange), runs: make(map[string]*exchange)}
	greeted := make(chan struct{})
	go p.write(in)
	exited := make(chan struct{})
	go func() {
		_ = cmd.Wait() // its state says more
		kill()         // what it has started answers to no request, and may hold the pipe open
		time.AfterFunc(pipeDelay, func() { _ = from.Close() })
		close(exited)
	}()
	go func() {
		err := p.read(from, greeted)
		kill() // without its output it is of no use
		<-exited
		p.why = errors.Join(err, fmt.Errorf("the program ended: %s", cmd.ProcessState))
		close(p.gone)
	}()
	slow := time.AfterFunc(silentHello, func() { p.log.Warn().Strs("command", command).Msg("the program has not written its hello yet") })
	defer slow.Stop()
	select {
	case <-greeted:
		return p, nil
	case <-p.gone:
		return nil, fmt.Errorf("no hello: %w", p.why)
	case <-ctx.Done():
		p.stop()
		return nil, context.Cause(ctx)
	}
}

// write writes the lines to the program. It ends the pipe when a nil line comes.
func (p *program) write(in io.WriteCloser) {
	defer func() { _ = in.Close() }()
	for {
		select {
		case line := <-p.out:
			if line == nil {
				return
			}
			if _, err := in.Write(line); err != nil {
				return // the program reads no more; the end of its output says the rest
			}
		case <-p.gone:
			return
		}
	}
}

// read reads the lines of the program until they end. It returns what is wrong with them.
func (p *program) read(from io.Reader, greeted chan<- struct{}) error {
	l := &lines{from: bufio.NewReaderSize(from, 64<<10)}
	for {
		m, err := l.next()
		switch {
		case errors.Is(err, io.EOF), errors.Is(err, os.ErrClosed):
			return nil
		case err != nil:
			return err
		case p.hello == nil:
			if err := m.greet(); err != nil {
				return err
			}
			p.hello = m.Hello
			close(greeted)
		case m.Hello != nil:
			return fmt.Errorf("line %d of the program is a second hello", l.n)
		default:
			if err := p.take(m); err != nil {
				return fmt.Errorf("line %d of the program: %w", l.n, err)
			}
		}
	}
}

// greet checks that the line is a hello.
func (m *said) greet() error {
	switch h := m.Hello; {
	case h == nil:
		return errors.New(`the first line of the program is not a hello: write {"hello":{"protocol":1,"agent":"NAME","tools":[…]}} first`)
	case h.Protocol != Protocol:
		return fmt.Errorf("the program speaks protocol %d, this worker speaks %d", h.Protocol, Protocol)
	case h.Agent == "":
		return errors.New("the hello names no agent")
	}
	return nil
}

// take dispatches a line to its request.
func (p *program) take(m *said) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	id := m.number()
	x := p.waiting[id]
	switch {
	case m.text() != "" && p.own == nil:
		return errors.New(`only a program that says "own_loop" in its hello has requests of its own`)
	case m.text() != "":
		p.own(m)
	case id < 1 || id > p.last:
		return fmt.Errorf("it answers a request with the id %s, and there was none", m.ID)
	case x == nil: // it was cancelled
		p.log.Debug().Int64("id", id).Msg("late answer of the program")
	case m.Begin:
		select {
		case x.begins <- struct{}{}:
		default: // it has asked already
		}
	default:
		delete(p.waiting, id)
		x.answer <- m
	}
	return nil
}

// busy is the number of requests without an answer.
func (p *program) busy() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.waiting)
}

// send writes a line.
func (p *program) send(ctx context.Context, line any) error {
	text, err := json.Marshal(line, jsontext.EscapeForJS(true)) // U+2028 ends a line for some readers
	if err != nil {
		return fmt.Errorf("line to the program: %w", err)
	}
	select {
	case <-p.gone:
		return p.lost()
	default:
	}
	select {
	case p.out <- append(text, '\n'):
		return nil
	case <-p.gone:
		return p.lost()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// lost is the error of work that a program had when it ended.
func (p *program) lost() error { return fmt.Errorf("%w: %w", publisher.ErrLost, p.why) }

// open makes the exchange of a request and numbers the request. If the program still has the run o, it returns the
// exchange about that.
func (p *program) open(r *request, o *ownRun) (x, earlier *exchange) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if earlier = p.runs[r.Run]; earlier != nil && o != nil {
		return nil, earlier
	}
	p.last++
	r.ID = p.last
	x = &exchange{id: r.ID, begins: make(chan struct{}, 1), answer: make(chan *said, 1), own: o, run: r.Run, done: make(chan struct{})}
	if p.waiting[x.id] = x; o != nil {
		p.runs[x.run] = x
	}
	return x, nil
}

// forget ends an exchange.
func (p *program) forget(x *exchange) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if delete(p.waiting, x.id); x.own != nil {
		delete(p.runs, x.run)
	}
	close(x.done)
}

// cancel cancels a request.
func (p *program) cancel(x *exchange) {
	select {
	case p.out <- fmt.Appendf(nil, "{\"cancel\":%d}\n", x.id):
	case <-p.gone:
	default:
		p.log.Warn().Int64("id", x.id).Msg("program reads nothing and is not told that a request is cancelled")
	}
}

// stop ends the program: its standard input first, then all of its group. It waits for the end.
func (p *program) stop() {
	select {
	case p.out <- nil:
	case <-p.gone:
	default: // it reads nothing
		p.kill()
	}
	select {
	case <-p.gone:
	case <-time.After(stopGrace):
		p.kill()
		<-p.gone
	}
}
