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
	// unread is how many lines wait for a program that does not read, and asked how many requests of a program are served
	// at once: behind them its lines are not read.
	unread, asked = 256, 1024
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
	// asks has a place for each request of the program that is served.
	asks chan struct{}
	// gone is closed when the program has ended, with why; all lines that it wrote were read before.
	gone chan struct{}
	why  error

	mu sync.Mutex
	// last is the id of our latest request, waiting are those without an answer.
	last    int64
	waiting map[int64]*exchange
	// own handles the requests of a program with its own loop, and runs are those that it has.
	own  func(*said)
	runs map[string]*ownRun
}

// exchange is a request of ours.
type exchange struct {
	id     int64
	begins chan struct{}
	answer chan *said
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
	p := &program{cmd: cmd, kill: kill, log: log.With().Int("pid", cmd.Process.Pid).Logger(), out: make(chan []byte, unread), asks: make(chan struct{}, asked), gone: make(chan struct{}), waiting: make(map[int64]*exchange), runs: make(map[string]*ownRun)}
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
			if m.text() != "" {
				p.asks <- struct{}{}
			}
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
		return errors.New(`the first line of the program is no hello: write {"hello":{"protocol":1,"agent":"NAME","tools":[…]}} first`)
	case h.Protocol != Protocol:
		return fmt.Errorf("the program speaks protocol %d, this worker speaks %d", h.Protocol, Protocol)
	case h.Agent == "":
		return errors.New("the hello names no agent")
	}
	return nil
}

// take hands a line to whom it concerns.
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

// ask sends a request. The caller awaits the exchange.
func (p *program) ask(ctx context.Context, r request) (*exchange, error) {
	p.mu.Lock()
	p.last++
	x := &exchange{id: p.last, begins: make(chan struct{}, 1), answer: make(chan *said, 1)}
	p.waiting[x.id] = x
	p.mu.Unlock()
	r.ID = x.id
	if err := p.send(ctx, r); err != nil {
		p.forget(x)
		return nil, err
	}
	return x, nil
}

func (p *program) forget(x *exchange) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.waiting, x.id)
}

// cancel tells the program that a request needs no answer any more.
func (p *program) cancel(x *exchange) {
	select {
	case p.out <- fmt.Appendf(nil, "{\"cancel\":%d}\n", x.id):
	case <-p.gone:
	default:
		p.log.Warn().Int64("id", x.id).Msg("program reads nothing and is not told that a request is cancelled")
	}
}

// await waits for the answer to a request, or for the program's end.
func (p *program) await(ctx context.Context, x *exchange) (*said, error) {
	select {
	case m := <-x.answer:
		return m, nil
	case <-p.gone:
		return p.lastWords(x)
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// lastWords is the answer that came before the program ended.
func (p *program) lastWords(x *exchange) (*said, error) {
	select {
	case m := <-x.answer:
		return m, nil
	default:
		return nil, p.lost()
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
