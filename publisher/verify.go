package publisher

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go"
	"golang.org/x/sync/errgroup"

	"github.com/waymarkio/waymark/internal/base/pause"
	"github.com/waymarkio/waymark/schema"
)

const (
	// maxVerifyReply bounds the answer of a verify subject, in bytes.
	maxVerifyReply = 1 << 20
	// verifyWorkers is how many questions ServeVerify answers concurrently, and verifyRoom how many may wait for a
	// worker.
	verifyWorkers = 8
	verifyRoom    = 1024
	// serveFlush is how long ServeVerify waits until the server has the subscription.
	serveFlush = 10 * time.Second
)

// checkVerifySubject allows only literal subjects: a question about one call must not be answered by a subscriber of
// another subject, and must not reach subjects of the server or of Waymark.
func checkVerifySubject(subject string) error {
	if subject == "" {
		return fmt.Errorf("%w: VerifySubject is empty: name the subject to ask about a call in doubt", ErrConfig)
	}
	tokens := strings.Split(subject, ".")
	for _, token := range tokens {
		if token == "" || token == "*" || token == ">" || strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r == 0x7f }) {
			return configError("VerifySubject", fmt.Sprintf("%.120q", subject), "use a literal subject, without wildcards, spaces or empty tokens")
		}
	}
	if tokens[0] == "waymark" || strings.HasPrefix(tokens[0], "$") || strings.HasPrefix(tokens[0], "_") {
		return configError("VerifySubject", fmt.Sprintf("%.120q", subject), "use a subject of the tool's own, not one of waymark.>, $… or _…")
	}
	return nil
}

// unverified is the reason why a call could not be verified.
type unverified struct{ why string }

func (e *unverified) Error() string { return e.why }

// verify asks the tool for the outcome of a call. The error is an [*unverified] if the tool could not tell.
func verify(ctx context.Context, nc *nats.Conn, timeout time.Duration, subject string, request *schema.VerifyRequest) (*schema.VerifyReply, error) {
	if err := checkVerifySubject(subject); err != nil {
		return nil, &unverified{err.Error()}
	}
	body, err := json.Marshal(request)
	if err != nil {
		return nil, fmt.Errorf("question about call %s: %w", request.ToolCallID, err)
	}
	asked, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	// Retry for a tool that is just starting, with the last try well before the end: a try that is cut short proves
	// nothing.
	wait := &pause.Backoff{Next: timeout / 50, Most: timeout / 8}
	lastTry := time.Now().Add(timeout - timeout/4)
	for {
		m, err := nc.RequestWithContext(asked, subject, body)
		switch {
		case err == nil:
			return readVerify(m)
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case errors.Is(err, nats.ErrMaxPayload):
			return nil, &unverified{fmt.Sprintf("the question has %d bytes, more than the server takes", len(body))}
		case errors.Is(err, nats.ErrNoResponders), errors.Is(err, nats.ErrReconnectBufExceeded):
			if time.Now().Before(lastTry) && wait.Wait(asked) {
				continue
			}
			if ctx.Err() != nil {
				return nil, context.Cause(ctx)
			}
			return nil, &unverified{fmt.Sprintf("no tool listens on %s", subject)}
		case asked.Err() != nil:
			return nil, &unverified{fmt.Sprintf("no answer on %s within %s", subject, timeout)}
		default:
			return nil, &unverified{fmt.Sprintf("asking %s: %s", subject, err)}
		}
	}
}

// readVerify reads a tool's answer, and accepts only an unambiguous one.
func readVerify(m *nats.Msg) (*schema.VerifyReply, error) {
	if code := m.Header.Get(schema.HeaderErrorCode); code != "" {
		return nil, &unverified{fmt.Sprintf("the tool answered with error %.40s: %.200s", code, m.Header.Get(schema.HeaderError))}
	}
	if len(m.Data) > maxVerifyReply {
		return nil, &unverified{fmt.Sprintf("the tool's answer has %d bytes, the limit is %d", len(m.Data), maxVerifyReply)}
	}
	reply := new(schema.VerifyReply)
	if err := json.Unmarshal(m.Data, reply); err != nil {
		return nil, &unverified{fmt.Sprintf("the tool's answer cannot be read: %s", err)}
	}
	switch reply.Outcome {
	case schema.VerifyDone, schema.VerifyNotDone:
		return reply, nil
	case schema.VerifyUnknown:
		if reply.Reason == "" {
			return nil, &unverified{"the tool cannot tell"}
		}
		return nil, &unverified{fmt.Sprintf("the tool cannot tell: %.400s", reply.Reason)}
	default:
		return nil, &unverified{fmt.Sprintf("the tool answered with outcome %.40q, which is none of done, not_done, unknown", reply.Outcome)}
	}
}

// VerifyFunc returns the outcome of a call. An error, and a panic, is answered as unknown.
type VerifyFunc func(ctx context.Context, request schema.VerifyRequest) (schema.VerifyReply, error)

// ServeVerify answers questions about a tool's calls. Run it with the tool, on the subject that its calls name as
// [ToolCall].VerifySubject. Instances with the same queue name share the questions; with an empty queue each instance
// answers all of them.
//
// Look up the idempotency key in the system where the effect itself is recorded, and answer:
//
//   - done, with the result, if the call had its effect. The result is recorded as the call's result, and the tool does
//     not run.
//   - not_done, if it had none. The call then runs, so the answer must stay true for ever: the previous executor may
//     only be paused, and may call the tool after this answer. After not_done the tool must refuse the call for any
//     epoch below request.Epoch. Record that in the same transaction in which you looked for the effect, and check it
//     in the transaction that has the effect; [Invocation].Epoch is the epoch of a call.
//   - unknown, if you can tell neither. A person is asked.
//
// The connection must stay open until stop was called. stop accepts no more questions, ends the context of those in
// progress, and returns when they are answered.
func ServeVerify(nc *nats.Conn, subject, queue string, answer VerifyFunc) (stop func() error, err error) {
	if err := checkVerifySubject(subject); err != nil {
		return nil, err
	}
	if answer == nil {
		return nil, configError("answer", "nil", "set the function that returns the outcome of a call")
	}
	questions := make(chan *nats.Msg, verifyRoom)
	var sub *nats.Subscription
	if queue == "" {
		sub, err = nc.ChanSubscribe(subject, questions)
	} else {
		sub, err = nc.ChanQueueSubscribe(subject, queue, questions)
	}
	if err == nil {
		err = nc.FlushTimeout(serveFlush)
	}
	if err != nil {
		return nil, fmt.Errorf("serving %s: %w: %w", subject, ErrUnavailable, err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var workers errgroup.Group
	for range verifyWorkers {
		workers.Go(func() (failed error) {
			for {
				select {
				case m := <-questions:
					failed = cmp.Or(failed, answerVerify(ctx, nc, m, answer))
				case <-ctx.Done():
					return failed
				}
			}
		})
	}
	return sync.OnceValue(func() error {
		err := sub.Unsubscribe()
		cancel()
		if err != nil {
			err = fmt.Errorf("ending the service on %s: %w", subject, err)
		}
		return errors.Join(err, workers.Wait())
	}), nil
}

// answerVerify answers one question. It always sends an answer, because the SDK waits for one.
func answerVerify(ctx context.Context, nc *nats.Conn, m *nats.Msg, answer VerifyFunc) error {
	if m.Reply == "" {
		return nil // the question has no reply subject
	}
	if err := schema.CheckReply(m.Reply); err != nil {
		return fmt.Errorf("question on %s not answered: %w", m.Subject, err)
	}
	unknown := func(format string, args ...any) schema.VerifyReply {
		return schema.VerifyReply{Outcome: schema.VerifyUnknown, Reason: fmt.Sprintf(format, args...)}
	}
	var request schema.VerifyRequest
	var reply schema.VerifyReply
	if err := json.Unmarshal(m.Data, &request); err != nil {
		reply = unknown("the question cannot be read: %s", err)
	} else if reply, err = protect(ctx, answer, request); err != nil {
		reply = unknown("%s", err)
	}
	body, err := json.Marshal(reply)
	if err != nil {
		body, err = json.Marshal(unknown("the tool's answer cannot be written: %s", err))
	} else if most := min(nc.MaxPayload(), maxVerifyReply); int64(len(body)) > most {
		body, err = json.Marshal(unknown("the tool's answer has %d bytes, at most %d can be sent", len(body), most))
	}
	if err == nil {
		err = m.Respond(body)
	}
	if err != nil {
		return fmt.Errorf("answer about call %s of run %s: %w", request.ToolCallID, request.Run, err)
	}
	return nil
}
