package publisher

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/waymarkio/waymark/internal/eventlog"
	"github.com/waymarkio/waymark/internal/failpoint"
	"github.com/waymarkio/waymark/internal/jsapi"
	"github.com/waymarkio/waymark/internal/pause"
	"github.com/waymarkio/waymark/schema"
)

// append stores a message behind the run's last one, and waits for the answer of this one try.
func (f *Fleet) append(ctx context.Context, m *nats.Msg, last schema.StreamSequence) eventlog.Appended {
	return eventlog.Append(ctx, f.requestAck, m, last)
}

// appendBatch is append of several messages as one atomic batch.
func (f *Fleet) appendBatch(ctx context.Context, msgs []*nats.Msg, last schema.StreamSequence) eventlog.Appended {
	return eventlog.AppendBatch(ctx, f.nc, f.request, msgs, last)
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

// request publishes the message and returns the answer to this one try, at the latest after the try timeout.
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
				return nil, err // closed while the answer was waited for: the message may be stored
			}
			return nil, jsapi.Unsent(err)
		}
	}
	return resp, nil
}

func (f *Fleet) backoff() *pause.Backoff {
	return &pause.Backoff{Next: f.cfg.Backoff, Most: f.cfg.MaxBackoff}
}

// insist does something again while what it needs is unavailable, as long as ctx lasts; most bounds each try.
func (f *Fleet) insist(ctx context.Context, most time.Duration, do func(try context.Context) error) error {
	wait := f.backoff()
	for {
		try, cancel := context.WithTimeout(ctx, most)
		err := do(try)
		cancel()
		if err == nil || !errors.Is(err, ErrUnavailable) || !wait.Wait(ctx) {
			return err
		}
	}
}
