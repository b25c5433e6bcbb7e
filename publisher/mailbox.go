package publisher

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/waymarkio/waymark/internal/denied"
)

// idleMailboxes bounds the subscriptions that are kept for answers. Where more publish at the same moment, the
// connection's shared inbox takes the others.
const idleMailboxes = 16

// mailbox is an inbox for one answer at a time. An answer goes from the connection's reader straight to who waits for
// it: over the connection's shared inbox it takes one more goroutine, and two more locks.
type mailbox struct {
	sub    *nats.Subscription
	prefix string
	uses   uint64
	ch     chan *nats.Msg
	timer  *time.Timer
}

// mail keeps the mailboxes that nobody uses.
type mail struct {
	mu   sync.Mutex
	idle []*mailbox
	// made counts those that exist; stopped says that none is kept any more.
	made    int
	stopped bool
}

// take returns a mailbox, or nil when as many as there may be are in use.
func (m *mail) take(nc *nats.Conn) *mailbox {
	m.mu.Lock()
	defer m.mu.Unlock()
	if n := len(m.idle); n > 0 {
		box := m.idle[n-1]
		m.idle = m.idle[:n-1]
		return box
	}
	if m.made >= idleMailboxes || m.stopped {
		return nil
	}
	prefix := nc.NewInbox() + "."
	ch := make(chan *nats.Msg, 2)
	sub, err := nc.ChanSubscribe(prefix+"*", ch)
	if err != nil {
		return nil // publishing says what is wrong with the connection
	}
	m.made++
	timer := time.NewTimer(time.Hour)
	timer.Stop()
	return &mailbox{sub: sub, prefix: prefix, ch: ch, timer: timer}
}

// put takes a mailbox back. Only one to which no answer is under way any more is clean.
func (m *mail) put(box *mailbox, clean bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if clean && !m.stopped && box.sub.IsValid() {
		m.idle = append(m.idle, box)
		return
	}
	m.drop(box)
}

// drop ends a mailbox. Under mail.mu.
func (m *mail) drop(box *mailbox) {
	m.made--
	_ = box.sub.Unsubscribe() // of a connection that is closed it is over already
}

// stop ends all mailboxes that nobody uses, and the others when they come back.
func (m *mail) stop() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.stopped = true
	for _, box := range m.idle {
		m.drop(box)
	}
	m.idle = nil
}

// request publishes the message and returns the answer to this one try, at the latest after the try timeout. meanwhile,
// unless it is nil, is called once the message is on its way, in any case.
func (f *Fleet) request(ctx context.Context, m *nats.Msg, meanwhile func()) (*nats.Msg, error) {
	refusals := f.denied.Tail()
	box := f.mail.take(f.nc)
	if box == nil {
		return f.requestShared(ctx, m, meanwhile)
	}
	clean := false
	defer func() { f.mail.put(box, clean) }()
	box.uses++
	m.Reply = box.prefix + strconv.FormatUint(box.uses, 36)
	err := f.nc.PublishMsg(m)
	reply := m.Reply
	m.Reply = ""
	if meanwhile != nil {
		// The connection's writer is ready to run here and nowhere else: the message goes first.
		runtime.Gosched()
		meanwhile()
	}
	if err != nil {
		return nil, notPublished(err)
	}
	box.timer.Reset(f.cfg.TryTimeout)
	defer box.timer.Stop()
	for {
		select {
		case resp := <-box.ch:
			if resp.Subject != reply {
				continue
			}
			clean = true
			if len(resp.Data) == 0 && resp.Header.Get("Status") == "503" {
				return nil, nats.ErrNoResponders
			}
			return resp, nil
		case <-refusals.Heard():
			if err := f.refusedBy(refusals.Take(), m.Subject, box.prefix); err != nil {
				return nil, err
			}
		case <-box.timer.C:
			return nil, nats.ErrTimeout
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// requestShared is request by way of the connection's shared inbox.
func (f *Fleet) requestShared(ctx context.Context, m *nats.Msg, meanwhile func()) (*nats.Msg, error) {
	try, cancel := context.WithTimeout(ctx, f.cfg.TryTimeout)
	defer cancel()
	if meanwhile != nil {
		meanwhile()
	}
	inbox := f.nc.Opts.InboxPrefix
	if inbox == "" {
		inbox = strings.TrimSuffix(nats.InboxPrefix, ".")
	}
	if f.nc.IsClosed() {
		return nil, &notPublishedError{nats.ErrConnectionClosed}
	}
	refusals := f.denied.Tail()
	resp, err := f.nc.RequestMsgWithContext(try, m)
	for err != nil {
		select {
		case <-refusals.Heard():
			if e := f.refusedBy(refusals.Take(), m.Subject, inbox); e != nil {
				return nil, e
			}
		default:
			if errors.Is(err, nats.ErrConnectionClosed) {
				return nil, err // closed while the answer was waited for: the message may be stored
			}
			return nil, notPublished(err)
		}
	}
	return resp, nil
}

// refusedBy returns the refusal as the error of a request on subject that is answered below inbox, nil when it is of
// something else.
func (*Fleet) refusedBy(e *denied.Error, subject, inbox string) error {
	if e.Publish && e.Subject == subject || !e.Publish && strings.HasPrefix(e.Subject, inbox) {
		return fmt.Errorf("%w: %w", ErrNotPermitted, e)
	}
	return nil
}

// quickAck reads the common form of an acknowledgement, {"stream":"…", "seq":N}. Whatever else there is is left to the
// JSON parser.
func quickAck(b []byte) (seq uint64, ok bool) {
	rest, ok := bytes.CutPrefix(b, []byte(`{"stream":"`))
	if !ok {
		return 0, false
	}
	end := bytes.IndexByte(rest, '"')
	if end < 1 || bytes.IndexByte(rest[:end], '\\') >= 0 {
		return 0, false
	}
	rest = bytes.TrimLeft(rest[end+1:], " ,")
	if rest, ok = bytes.CutPrefix(rest, []byte(`"seq":`)); !ok {
		return 0, false
	}
	if rest, ok = bytes.CutSuffix(rest, []byte("}")); !ok || len(rest) == 0 || len(rest) > 19 {
		return 0, false
	}
	for _, c := range rest {
		if c < '0' || c > '9' {
			return 0, false
		}
		seq = 10*seq + uint64(c-'0')
	}
	return seq, seq > 0
}
