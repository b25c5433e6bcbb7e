package bench

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"golang.org/x/sync/errgroup"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

const (
	// neighbourRuns are the runs whose turns are measured.
	neighbourRuns = 60
	// neighbourAim is how many times as long the turns of the others may take, p99.
	neighbourAim = 2
	// largeEvent is the text of an event that one neighbour publishes, in bytes.
	largeEvent = 490 << 10
)

// neighboursCase is what executors that misbehave cost the others.
func neighboursCase() Case {
	return Case{
		Name: "neighbours",
		About: "Whole turns of 60 runs of one process, alone and then next to three executors that misbehave: one compares with a stale sequence, " +
			"one publishes events of 500 KiB, one stands still with a subscription to all events. The aim is the p99 with them divided by the p99 alone.",
		Uses: []string{"runs", "turns", "shards", "daemons"},
		Variants: func(o Options) []Variant {
			runs, turns := o.Pick(o.Runs, neighbourRuns, 8), o.Pick(o.Turns, 20, 15)
			return []Variant{{
				Parameters: map[string]any{"runs": runs, "turns": turns},
				Setup:      func(ctx context.Context, w *World) (*Trial, error) { return neighboursTrial(ctx, w, runs, turns) },
			}}
		},
	}
}

func neighboursTrial(ctx context.Context, w *World, runs, turns int) (*Trial, error) {
	f, err := w.Fleet(ctx, "executor")
	if err != nil {
		return nil, err
	}
	players, err := StartRuns(ctx, f, "run", runs, FullTurn)
	if err != nil {
		return nil, err
	}
	bad, err := newNeighbours(ctx, w)
	if err != nil {
		return nil, err
	}
	all := turners(players)
	prepare := func() {
		for _, p := range players {
			p.Prepare(turns)
		}
	}
	var alone []Sample
	return &Trial{
		WarmUp: func(ctx context.Context) error {
			_, err := WholeTurns(ctx, all, max(1, turns/10))
			return err
		},
		Ours: func(ctx context.Context, _ int) (Sample, error) {
			prepare()
			s, err := WholeTurns(ctx, all, turns)
			if err != nil {
				return s, err
			}
			alone = append(alone, s)
			prepare()
			return bad.whileTheyMisbehave(ctx, func(ctx context.Context) (Sample, error) { return WholeTurns(ctx, all, turns) })
		},
		Verify: func(ctx context.Context) error {
			return w.Verify(ctx, append(WroteBy(players...), WroteBy(bad.player)...))
		},
		Finish: func(_ context.Context, r *Result) error {
			quiet := figures(alone)
			if quiet.P50 != nil && quiet.P99 != nil {
				r.Set("alone_p50_us", *quiet.P50)
				r.Set("alone_p99_us", *quiet.P99)
			}
			r.Set("stale_publishes", float64(bad.stale.Load()))
			r.Set("large_events", float64(bad.large.Load()))
			r.AtMost("p99 by that without the neighbours", ratio(r.Ours.P99, quiet.P99), neighbourAim)
			return nil
		},
	}, nil
}

// neighbours are the executors that misbehave.
type neighbours struct {
	w *World
	// staleConn and player are of the executors that compare with a stale sequence and that publish large events.
	staleConn    *nats.Conn
	player       *Player
	stale, large atomic.Int64
	// still reads nothing from its socket once it is closed.
	still chan struct{}
}

func newNeighbours(ctx context.Context, w *World) (*neighbours, error) {
	n := &neighbours{w: w, still: make(chan struct{})}
	var err error
	if n.staleConn, err = w.Connect("stale"); err != nil {
		return nil, err
	}
	f, err := w.Fleet(ctx, "large")
	if err != nil {
		return nil, err
	}
	if n.player, err = StartRun(ctx, f, "large", FullTurn); err != nil {
		return nil, err
	}
	dialer := stillDialer{n.still}
	l, err := linkWith("still", func(all ...nats.Option) (*nats.Conn, error) { return nats.Connect(w.servers.url, all...) },
		nats.UserInfo(w.servers.user, w.servers.password), nats.SetCustomDialer(dialer), nats.NoReconnect())
	if err != nil {
		return nil, err
	}
	w.Defer(func(context.Context) error { l.close(); return nil })
	if _, err := l.Subscribe("waymark.events.>", func(*nats.Msg) {}); err != nil {
		return nil, err
	}
	return n, l.Flush()
}

// whileTheyMisbehave measures work while the neighbours misbehave.
func (n *neighbours) whileTheyMisbehave(ctx context.Context, work func(context.Context) (Sample, error)) (s Sample, err error) {
	select {
	case <-n.still: // since the first round
	default:
		close(n.still)
	}
	bad, stop := context.WithCancel(ctx)
	group, bad := errgroup.WithContext(bad)
	group.Go(func() error { return n.compareStale(bad) })
	group.Go(func() error { return n.publishLarge(bad) })
	s, err = work(ctx)
	stop()
	return s, errors.Join(err, group.Wait())
}

// compareStale publishes into a run with an expectation that never holds, one try after the other.
func (n *neighbours) compareStale(ctx context.Context) error {
	m := nats.NewMsg(schema.NamesOf(FleetName, schema.ShardOf("run-0", n.w.Settings.Shards)).EventSubject("run-0"))
	m.Header.Set("Nats-Expected-Last-Subject-Sequence", "1")
	m.Data = make([]byte, 1<<10)
	for ctx.Err() == nil {
		reply, err := n.staleConn.RequestMsgWithContext(ctx, m)
		switch {
		case ctx.Err() != nil:
			return nil //nolint:nilerr // the measurement is over
		case err != nil:
			return fmt.Errorf("stale neighbour: %w", err)
		case len(reply.Data) == 0:
			return errors.New("stale neighbour: an empty answer")
		}
		n.stale.Add(1)
	}
	return nil
}

// publishLarge publishes large events, one after the other.
func (n *neighbours) publishLarge(ctx context.Context) error {
	text := NewText(seedOf("large"))
	for ctx.Err() == nil {
		// What was begun is finished, so that the run can be read back.
		work, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		err := n.player.Large(work, string(text.Bytes(largeEvent/2)), string(text.Bytes(largeEvent/2)))
		cancel()
		if err != nil {
			return fmt.Errorf("large neighbour: %w", err)
		}
		n.large.Add(1)
	}
	return nil
}

// Large publishes an answer of two parts, each below the size from which a field goes to the blob store.
func (p *Player) Large(ctx context.Context, first, second string) error {
	p.turn++
	turn, err := p.Run.StartTurn(ctx, publisher.TurnSpec{})
	if err != nil {
		return err
	}
	_, err = turn.Answer(ctx, publisher.Answer{
		Message: schema.Message{Role: schema.RoleAssistant, Parts: []schema.Part{schema.Text(first), schema.Text(second)}}, FinishReasons: []string{"stop"},
	})
	return err
}

// stillDialer dials connections that read nothing any more once still is closed, as those of a process that stands still.
type stillDialer struct{ still chan struct{} }

func (d stillDialer) Dial(network, address string) (net.Conn, error) {
	c, err := net.Dial(network, address) //nolint:noctx // the interface of nats.go has no context
	if err != nil {
		return nil, err
	}
	return &stillConn{Conn: c, still: d.still, closed: make(chan struct{})}, nil
}

type stillConn struct {
	net.Conn
	still, closed chan struct{}
	once          atomic.Bool
}

func (c *stillConn) Read(b []byte) (int, error) {
	select {
	case <-c.still:
		<-c.closed
		return 0, net.ErrClosed
	default:
		return c.Conn.Read(b)
	}
}

func (c *stillConn) Close() error {
	if c.once.CompareAndSwap(false, true) {
		close(c.closed)
	}
	return c.Conn.Close()
}
