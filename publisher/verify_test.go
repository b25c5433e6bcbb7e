package publisher_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

func verifyCall() publisher.ToolCall {
	return publisher.ToolCall{
		ID: "c1", Name: "deploy", Arguments: raw(`{"to":"prod"}`), Replay: schema.ReplayVerify, VerifySubject: verifySubject, IdempotencyKey: "order-7",
	}
}

func TestVerify_Question_HasCall(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	f := w.fleet()
	crashed(t, w, f, verifyCall())
	asked := make(chan schema.VerifyRequest, 1)
	serveVerify(t, w, func(_ context.Context, request schema.VerifyRequest) (schema.VerifyReply, error) {
		asked <- request
		bad := true
		return schema.VerifyReply{Outcome: schema.VerifyDone, Result: raw(`"no such host"`), IsError: &bad}, nil
	})
	run := resume(t, f, "r1")
	result, err := run.Turn(1).Tool(t.Context(), verifyCall(), nil)
	require.NoError(t, err)
	require.True(t, result.Recorded)
	require.True(t, *result.IsError)
	require.Equal(t, schema.VerifyRequest{
		Fleet: "default", Run: "r1", CallKey: schema.CallKey{Turn: 1, ToolCallID: "c1", Occurrence: 1}, Name: "deploy",
		Arguments: raw(`{"to":"prod"}`), IdempotencyKey: "order-7", Epoch: 2,
	}, <-asked)
	require.Equal(t, []string{"run.started", "turn.answered", "tool.called", "run.resumed", "tool.settled"}, names(w.log("r1")))
	w.requireSameFold(run)
}

func TestVerify_NoAnswer_Held(t *testing.T) {
	t.Parallel()
	respond := func(body string) nats.MsgHandler {
		return func(m *nats.Msg) { _ = m.Respond([]byte(body)) }
	}
	tests := map[string]struct {
		answer nats.MsgHandler
		why    string
	}{
		"no listener":        {why: "no tool listens on " + verifySubject},
		"no answer":          {answer: func(*nats.Msg) {}, why: "no answer on " + verifySubject + " within 300ms"},
		"no JSON":            {answer: respond("yes"), why: "cannot be read"},
		"nothing":            {answer: respond(""), why: "cannot be read"},
		"no outcome":         {answer: respond(`{"result":1}`), why: `outcome ""`},
		"another outcome":    {answer: respond(`{"outcome":"DONE"}`), why: `outcome "DONE"`},
		"two outcomes":       {answer: respond(`{"outcome":"unknown","outcome":"done"}`), why: "cannot be read"},
		"unknown":            {answer: respond(`{"outcome":"unknown","reason":"journal rotated"}`), why: "journal rotated"},
		"unknown, no reason": {answer: respond(`{"outcome":"unknown"}`), why: "the tool cannot tell"},
		"a result too deep to be recorded": {
			answer: respond(`{"outcome":"done","result":` + strings.Repeat("[", 600) + strings.Repeat("]", 600) + `}`), why: "cannot be recorded",
		},
		"an error of the tool": {answer: func(m *nats.Msg) {
			_ = m.RespondMsg(&nats.Msg{Header: nats.Header{schema.HeaderErrorCode: {"500"}, schema.HeaderError: {"out of order"}}})
		}, why: "out of order"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			f := w.fleet(func(c *publisher.Config) {
				if name == "no answer" {
					c.VerifyTimeout = 300 * time.Millisecond
				}
			})
			crashed(t, w, f, verifyCall())
			if test.answer != nil {
				_, err := w.nc.Subscribe(verifySubject, test.answer)
				require.NoError(t, err)
				require.NoError(t, w.nc.Flush())
			}
			run := resume(t, f, "r1")
			before := len(w.log("r1"))
			_, err := run.Turn(1).Tool(t.Context(), verifyCall(), nil)
			var held *publisher.HeldError
			require.ErrorAs(t, err, &held)
			require.Contains(t, held.Detail, test.why)
			require.Contains(t, held.Command, "waymark settle --fleet default r1 1 c1 --epoch 1 --how")
			require.Len(t, w.log("r1"), before, "nothing is settled")
		})
	}
}

func TestVerify_ToolStarting_AskedAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	f := w.fleet(func(c *publisher.Config) { c.VerifyTimeout = time.Minute })
	crashed(t, w, f, verifyCall())
	run := resume(t, f, "r1")
	// The first question has no listener: the server reports that on the asker's inbox.
	done := make(chan error, 1)
	go func() {
		_, err := run.Turn(1).Tool(t.Context(), verifyCall(), nil)
		done <- err
	}()
	before := w.nc.Stats().InMsgs
	require.Eventually(t, func() bool { return w.nc.Stats().InMsgs > before }, time.Minute, time.Millisecond)
	serveVerify(t, w, func(context.Context, schema.VerifyRequest) (schema.VerifyReply, error) {
		return schema.VerifyReply{Outcome: schema.VerifyDone, Result: raw(`1`)}, nil
	})
	require.NoError(t, <-done)
}

func TestVerify_CallerEnds_Ends(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	f := w.fleet(func(c *publisher.Config) { c.VerifyTimeout = time.Minute })
	crashed(t, w, f, verifyCall())
	ctx, cancel := context.WithCancel(t.Context())
	_, err := w.nc.Subscribe(verifySubject, func(*nats.Msg) { cancel() })
	require.NoError(t, err)
	require.NoError(t, w.nc.Flush())
	run := resume(t, f, "r1")
	_, err = run.Turn(1).Tool(ctx, verifyCall(), nil)
	require.ErrorIs(t, err, context.Canceled)
	require.NotErrorIs(t, err, publisher.ErrHeld)
}

func TestVerify_Subjects_LiteralAndOwn(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	turn := openTurn(t, start(t, w.fleet(), "r1"))
	for _, subject := range []string{
		"", "tools.*", "tools.>", ">", "tools..verify", ".tools", "tools.", "tools verify", "tools.\tverify", "waymark", "waymark.settle.default.r1",
		"$SYS.REQ.SERVER.PING", "$JS.API.STREAM.PURGE.x", "$KV",
	} {
		call := verifyCall()
		call.VerifySubject = subject
		_, err := turn.Tool(t.Context(), call, nil)
		require.ErrorIs(t, err, publisher.ErrConfig, subject)
		_, err = publisher.ServeVerify(w.nc, subject, "", func(context.Context, schema.VerifyRequest) (schema.VerifyReply, error) {
			return schema.VerifyReply{}, nil
		})
		require.ErrorIs(t, err, publisher.ErrConfig, subject)
	}
	require.Len(t, w.log("r1"), 1, "nothing was called")
}

func TestVerify_ForeignSubject_NeverAsked(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	f := w.fleet()
	turn := openTurn(t, start(t, f, "r1"))
	call := verifyCall()
	call.VerifySubject = "waymark.cancel.default.r1"
	_, err := turn.Call(t.Context(), call) // recorded by a writer that does not check
	require.NoError(t, err)
	w.serve()
	run := resume(t, f, "r1")
	_, err = run.Turn(1).Tool(t.Context(), call, nil)
	require.ErrorIs(t, err, publisher.ErrHeld)
	require.ErrorContains(t, err, "waymark.cancel")
}

func TestServeVerify_HandlerFails_Answers(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	tests := map[string]struct {
		question string
		answer   publisher.VerifyFunc
		outcome  string
		reason   string
	}{
		"the answer": {question: `{"run":"r1"}`, answer: func(_ context.Context, q schema.VerifyRequest) (schema.VerifyReply, error) {
			return schema.VerifyReply{Outcome: schema.VerifyNotDone, Reason: q.Run}, nil
		}, outcome: schema.VerifyNotDone, reason: "r1"},
		"an error is unknown": {question: `{}`, answer: func(context.Context, schema.VerifyRequest) (schema.VerifyReply, error) {
			return schema.VerifyReply{Outcome: schema.VerifyDone}, errors.New("no database")
		}, outcome: schema.VerifyUnknown, reason: "no database"},
		"a panic is unknown": {question: `{}`, answer: func(context.Context, schema.VerifyRequest) (schema.VerifyReply, error) {
			panic("oops")
		}, outcome: schema.VerifyUnknown, reason: "panic: oops"},
		"garbage is unknown": {question: `{`, answer: func(context.Context, schema.VerifyRequest) (schema.VerifyReply, error) {
			return schema.VerifyReply{Outcome: schema.VerifyDone}, nil
		}, outcome: schema.VerifyUnknown, reason: "cannot be read"},
		"a result that cannot be written is unknown": {question: `{}`, answer: func(context.Context, schema.VerifyRequest) (schema.VerifyReply, error) {
			return schema.VerifyReply{Outcome: schema.VerifyDone, Result: raw(`{`)}, nil
		}, outcome: schema.VerifyUnknown, reason: "cannot be written"},
		"a result too large is unknown": {question: `{}`, answer: func(context.Context, schema.VerifyRequest) (schema.VerifyReply, error) {
			return schema.VerifyReply{Outcome: schema.VerifyDone, Result: mustMarshal(t, strings.Repeat("x", 2<<20))}, nil
		}, outcome: schema.VerifyUnknown, reason: "can be sent"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			stop, err := publisher.ServeVerify(w.nc, verifySubject, "", test.answer)
			require.NoError(t, err)
			m, err := w.nc.Request(verifySubject, []byte(test.question), 10*time.Second)
			require.NoError(t, err)
			var reply schema.VerifyReply
			require.NoError(t, json.Unmarshal(m.Data, &reply))
			require.Equal(t, test.outcome, reply.Outcome)
			require.Contains(t, reply.Reason, test.reason)
			require.NoError(t, stop())
			require.NoError(t, stop(), "stopping twice is no error")
			_, err = w.nc.Request(verifySubject, nil, 10*time.Second)
			require.ErrorIs(t, err, nats.ErrNoResponders)
		})
	}
}

func TestServeVerify_Stop_EndsContext(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	begun := make(chan struct{})
	stop, err := publisher.ServeVerify(w.nc, verifySubject, "deploy", func(ctx context.Context, _ schema.VerifyRequest) (schema.VerifyReply, error) {
		close(begun)
		<-ctx.Done()
		return schema.VerifyReply{}, ctx.Err()
	})
	require.NoError(t, err)
	got := make(chan *nats.Msg, 1)
	inbox := w.nc.NewRespInbox()
	sub, err := w.nc.ChanSubscribe(inbox, got)
	require.NoError(t, err)
	defer func() { require.NoError(t, sub.Unsubscribe()) }()
	require.NoError(t, w.nc.PublishRequest(verifySubject, inbox, []byte(`{}`)))
	<-begun
	require.NoError(t, stop())
	select {
	case m := <-got:
		require.Contains(t, string(m.Data), schema.VerifyUnknown, "who asked is answered all the same")
	case <-time.After(10 * time.Second):
		t.Fatal("who asked is not answered")
	}
}
