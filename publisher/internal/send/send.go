package send

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/waymarkio/waymark/internal/base/failpoint"
	"github.com/waymarkio/waymark/internal/nats/access"
	"github.com/waymarkio/waymark/internal/nats/eventlog"
	"github.com/waymarkio/waymark/internal/nats/fleetclient"
	"github.com/waymarkio/waymark/internal/nats/jsapi"
	"github.com/waymarkio/waymark/schema"
)

// Sender appends events to logs over one connection.
type Sender struct {
	Conn *nats.Conn
	// Refusals receives the connection's permission errors.
	Refusals *access.Watch
	// TryTimeout bounds the wait for one answer.
	TryTimeout time.Duration
	// Hook is called instead of an append, in tests of agents; nil for none. See [send.Hooks].
	Hook func(append func() eventlog.Appended) eventlog.Appended
}

// Append stores a message after the run's last one, and waits for the answer of this one try.
func (s *Sender) Append(ctx context.Context, m *nats.Msg, last schema.StreamSequence) eventlog.Appended {
	store := func() eventlog.Appended { return eventlog.Append(ctx, s.requestAck, m, last) }
	if s.Hook == nil {
		return store()
	}
	return s.Hook(store)
}

func (s *Sender) requestAck(ctx context.Context, m *nats.Msg) (*nats.Msg, error) {
	if err := failpoint.Hit(ctx, failpoint.BeforePublish); err != nil {
		return nil, err
	}
	answer, err := s.request(ctx, m)
	if err == nil {
		err = failpoint.Hit(ctx, failpoint.AfterPublish)
	}
	return answer, err
}

// request publishes the message and returns the answer to this one try, within the try timeout.
func (s *Sender) request(ctx context.Context, m *nats.Msg) (*nats.Msg, error) {
	try, cancel := context.WithTimeout(ctx, s.TryTimeout)
	defer cancel()
	inbox := s.Conn.Opts.InboxPrefix
	if inbox == "" {
		inbox = strings.TrimSuffix(nats.InboxPrefix, ".")
	}
	if s.Conn.IsClosed() {
		return nil, &jsapi.UnsentError{Err: nats.ErrConnectionClosed}
	}
	refusals := s.Refusals.Tail()
	resp, err := s.Conn.RequestMsgWithContext(try, m)
	for err != nil {
		select {
		case <-refusals.Heard():
			if e := refusals.Take(); e.Of(m.Subject, inbox) {
				return nil, fmt.Errorf("%w: %w", fleetclient.ErrNotPermitted, e)
			}
		default:
			if errors.Is(err, nats.ErrConnectionClosed) {
				return nil, err // closed during the wait for the answer: the message may be stored
			}
			return nil, jsapi.Unsent(err)
		}
	}
	return resp, nil
}
