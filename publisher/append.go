package publisher

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/nats-io/nats.go"

	"github.com/waymarkio/waymark/internal/base/failpoint"
	"github.com/waymarkio/waymark/internal/nats/eventlog"
	"github.com/waymarkio/waymark/internal/nats/jsapi"
	"github.com/waymarkio/waymark/schema"
)

// append stores a message after the run's last one, and waits for the answer of this one try. On failure the outcome
// says whether the message may be stored.
func (f *Fleet) append(ctx context.Context, m *nats.Msg, last schema.StreamSequence) eventlog.Appended {
	store := func() eventlog.Appended { return eventlog.Append(ctx, f.requestAck, m, last) }
	if f.hooks.Append == nil {
		return store()
	}
	return f.hooks.Append(store)
}

func (f *Fleet) requestAck(ctx context.Context, m *nats.Msg) (*nats.Msg, error) {
	if err := failpoint.Hit(ctx, failpoint.BeforePublish); err != nil {
		return nil, err
	}
	answer, err := f.request(ctx, m)
	if err == nil {
		err = failpoint.Hit(ctx, failpoint.AfterPublish)
	}
	return answer, err
}

// request publishes the message and returns the answer to this one try, within the try timeout.
func (f *Fleet) request(ctx context.Context, m *nats.Msg) (*nats.Msg, error) {
	try, cancel := context.WithTimeout(ctx, f.cfg.TryTimeout)
	defer cancel()
	inbox := f.nc.Opts.InboxPrefix
	if inbox == "" {
		inbox = strings.TrimSuffix(nats.InboxPrefix, ".")
	}
	if f.nc.IsClosed() {
		return nil, &jsapi.UnsentError{Err: nats.ErrConnectionClosed}
	}
	refusals := f.denied.Tail()
	resp, err := f.nc.RequestMsgWithContext(try, m)
	for err != nil {
		select {
		case <-refusals.Heard():
			if e := refusals.Take(); e.Of(m.Subject, inbox) {
				return nil, fmt.Errorf("%w: %w", ErrNotPermitted, e)
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
