package publisher

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/waymarkio/waymark/internal/eventlog"
	"github.com/waymarkio/waymark/internal/failpoint"
	"github.com/waymarkio/waymark/internal/jsapi"
	"github.com/waymarkio/waymark/internal/pause"
	"github.com/waymarkio/waymark/internal/permissions"
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
			if e := f.refusedBy(refusals.Take(), m.Subject, inbox); e != nil {
				return nil, e
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

// refusedBy returns the refusal as the error of a request on subject that is answered below inbox, nil when it is of
// something else.
func (*Fleet) refusedBy(e *permissions.Error, subject, inbox string) error {
	if e.Publish && e.Subject == subject || !e.Publish && strings.HasPrefix(e.Subject, inbox) {
		return fmt.Errorf("%w: %w", ErrNotPermitted, e)
	}
	return nil
}

// backoff waits between tries, with jitter, longer each time.
type backoff struct {
	next, most time.Duration
}

func (f *Fleet) backoff() *backoff { return &backoff{next: f.cfg.Backoff, most: f.cfg.MaxBackoff} }

// wait returns false when ctx ends first.
func (b *backoff) wait(ctx context.Context) bool {
	d := b.next/2 + rand.N(b.next/2+1) //nolint:gosec // jitter
	b.next = min(2*b.next, b.most)
	return pause.For(ctx, d) == nil
}

// insist does something again while what it needs is unavailable, as long as ctx lasts; most bounds each try.
func (f *Fleet) insist(ctx context.Context, most time.Duration, do func(try context.Context) error) error {
	wait := f.backoff()
	for {
		try, cancel := context.WithTimeout(ctx, most)
		err := do(try)
		cancel()
		if err == nil || !errors.Is(err, ErrUnavailable) || !wait.wait(ctx) {
			return err
		}
	}
}
