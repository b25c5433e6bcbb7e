package cli

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/look/failure"
	"github.com/waymarkio/waymark/internal/nats/access"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// hostileIDs are no names: what a file system, a subject, a header or a terminal would take for something else.
var hostileIDs = []string{
	".", "..", "*", ">", "a.b", "a b", "a\r\nb", "a\x00b", "\u202eb", strings.Repeat("a", 300), "", "-a", "_barrier", "_.fold", "../../etc/passwd",
	"a/b", `a\b`, "$KV", "%2e%2e", "\x1b[31ma", "ä",
	"r\u0430n", "\uff52\uff11", "r1\u200b", "r1\u0301", "\U0001d5cb1", // look like r1 or ran, or hold it
}

// deadLetters are the events that a fleet's fold refused so far.
func (s *secured) deadLetters(t *testing.T, fleet string) uint64 {
	t.Helper()
	js, err := jetstream.New(s.connect(t, fleet, access.Daemon).Conn)
	require.NoError(t, err)
	stream, err := js.Stream(t.Context(), schema.DeadLetterStream(fleet))
	require.NoError(t, err)
	return stream.CachedInfo().State.Msgs
}

// events are the messages of a run as they are stored.
func (s *secured) events(t *testing.T, fleet, run string) []*jetstream.RawStreamMsg {
	t.Helper()
	js, err := jetstream.New(s.connect(t, fleet, access.Daemon).Conn)
	require.NoError(t, err)
	n := schema.NamesOf(fleet, 0)
	stream, err := js.Stream(t.Context(), n.EventStream())
	require.NoError(t, err)
	var list []*jetstream.RawStreamMsg
	for at := uint64(1); ; {
		m, err := stream.GetMsg(t.Context(), at, jetstream.WithGetMsgSubject(n.EventSubject(run)))
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			return list
		}
		require.NoError(t, err)
		list = append(list, m)
		at = m.Sequence + 1
	}
}

// put stores a message by JetStream as an executor may, and returns the answer.
func put(t *testing.T, u *user, subject string, header nats.Header, body []byte) jetstream.PubAck {
	t.Helper()
	answer, err := u.RequestMsg(&nats.Msg{Subject: subject, Header: header, Data: body}, securedWait)
	require.NoError(t, err)
	var ack struct {
		jetstream.PubAck
		Error *jetstream.APIError `json:"error"`
	}
	require.NoError(t, json.Unmarshal(answer.Data, &ack), "%s", answer.Data)
	require.Nil(t, ack.Error)
	return ack.PubAck
}

// A hostile executor with the credentials of its fleet, a daemon that folds its events, and a second fleet.
func TestHostileInput_EveryCommand_ChangesNothing(t *testing.T) {
	if testing.Short() {
		t.Skip("short: a cluster of three servers")
	}
	const fleet = "rivals"
	s := startSecured(t, "payments", fleet)
	log := s.daemon(t, fleet)
	n := schema.NamesOf(fleet, 0)
	ctx := t.Context()
	executor := s.executor(t, fleet, "mallory")
	u := s.connect(t, fleet, access.Executor)
	operator := s.connect(t, fleet, access.Operator)
	untouched := s.stored(t, "payments")

	// A run with everything in it that a fold can go wrong on.
	r, err := executor.Start(ctx, publisher.RunSpec{ID: "r1", Task: "a task"})
	require.NoError(t, err)
	turn, err := r.StartTurn(ctx, publisher.TurnSpec{})
	require.NoError(t, err)
	_, err = turn.Answer(ctx, publisher.Answer{Message: schema.Message{Role: schema.RoleAssistant, Parts: []schema.Part{schema.Text("adding")}}, Calls: []publisher.ToolCall{{ID: "c1", Name: "add", Replay: schema.ReplayPure}}})
	require.NoError(t, err)
	_, err = turn.Tool(ctx, publisher.ToolCall{ID: "c1", Name: "add", Replay: schema.ReplayPure},
		func(context.Context, publisher.Invocation) (publisher.ToolResult, error) { return publisher.Result(42) })
	require.NoError(t, err)

	// refused stores messages that the fold must refuse, and waits until it has, for the reason, and said so in the log.
	refused := func(t *testing.T, reason schema.Reason, messages ...*nats.Msg) {
		t.Helper()
		before := s.deadLetters(t, fleet)
		for i, m := range messages {
			ack := put(t, u, m.Subject, m.Header, m.Data)
			require.False(t, ack.Duplicate)
			require.Eventually(t, func() bool { return s.deadLetters(t, fleet) == before+uint64(i)+1 }, securedWait, pollEvery, "%s: %v", m.Subject, m.Header)
			require.Eventually(t, func() bool {
				return slices.ContainsFunc(strings.Split(log.String(), "\n"), func(l string) bool {
					return strings.Contains(l, `"message":"event rejected"`) && strings.Contains(l, fmt.Sprintf(`"position":%d,`, ack.Sequence)) &&
						(reason == "" || strings.Contains(l, `"reason":"`+string(reason)+`"`))
				})
			}, securedWait, pollEvery, "%s %d is not in the log as %s:\n%s", m.Subject, ack.Sequence, reason, log)
		}
	}
	// message is a stored event, once more and changed.
	message := func(m *jetstream.RawStreamMsg, change map[string]string) *nats.Msg {
		header := make(nats.Header)
		for name, values := range m.Header {
			if strings.HasPrefix(strings.ToLower(name), "ce-") || strings.EqualFold(name, "content-type") {
				header[name] = values
			}
		}
		for name, value := range change {
			header[name] = []string{value}
		}
		return &nats.Msg{Subject: m.Subject, Header: header, Data: m.Data}
	}
	// same fails unless the run is what it was, but for the count of what was refused.
	head := func() schema.Head {
		h, err := executor.Head(ctx, "r1")
		require.NoError(t, err)
		return h
	}
	was := head()
	own := s.events(t, fleet, "r1")
	require.Len(t, own, 3, "the start, the answer and the outcome of its call")
	same := func(t *testing.T) {
		t.Helper()
		h := head()
		require.Equal(t, was.Sequence, h.Sequence)
		require.Equal(t, was.Counts.Events, h.Counts.Events)
		require.Equal(t, was.Counts.ToolResults, h.Counts.ToolResults)
		require.Equal(t, was.Status, h.Status)
		require.Equal(t, was.Task, h.Task)
		require.Equal(t, was.Executor, h.Executor)
	}

	t.Run("who an event says that it is from does not count", func(t *testing.T) {
		started := own[0]
		refused(t, schema.ReasonInvalidAttribute,
			message(started, map[string]string{"ce-id": "forged-1", "ce-source": "/waymark/payments/one"}),
			message(started, map[string]string{"ce-id": "forged-2", "ce-subject": "another"}),
			message(started, map[string]string{"ce-id": "r1.1.1.00000000", "ce-time": "2026-01-01T00:00:00Z"}), // not the content's
		)
		// As many attributes as a message's headers have room for, and one that takes all of it.
		bomb, long := message(started, map[string]string{"ce-id": "bomb-1"}), message(started, map[string]string{"ce-id": "bomb-2"})
		for i := range 5000 {
			bomb.Header[fmt.Sprintf("ce-x%d", i)] = []string{"v"}
		}
		long.Header["ce-x"] = []string{strings.Repeat("v", 60<<10)}
		refused(t, schema.ReasonInvalidAttribute, bomb, long)
		bomb.Header["ce-more"] = []string{strings.Repeat("v", 64<<10)}
		answer, err := u.RequestMsg(bomb, securedWait)
		require.NoError(t, err)
		require.Contains(t, string(answer.Data), "header size exceeds maximum")
		elsewhere := message(started, nil)
		elsewhere.Subject = n.EventSubject("another")
		refused(t, schema.ReasonInvalidAttribute, elsewhere)
		same(t)
	})

	t.Run("one's own old log played again changes nothing", func(t *testing.T) {
		before := s.deadLetters(t, fleet)
		for _, m := range own {
			put(t, u, m.Subject, message(m, nil).Header, m.Data) // with no message id, so that the server does not know it
		}
		// Behind them one that is refused: then they were read.
		refused(t, "", message(own[0], map[string]string{"ce-id": "behind", "ce-time": "2026-01-01T00:00:00Z"}))
		require.Equal(t, before+1, s.deadLetters(t, fleet))
		same(t)
	})

	t.Run("one's own past is not rewritten", func(t *testing.T) {
		for _, m := range own {
			if m.Header.Get("ce-sequence") == "" {
				continue
			}
			e, err := schema.Decode(m.Header, m.Data)
			require.NoError(t, err)
			e.Data = bytes.ReplaceAll(e.Data, []byte("42"), []byte("43"))
			e.Data = append(bytes.TrimSuffix(e.Data, []byte("}")), []byte(`,"note":"other"}`)...)
			e.ID = schema.EventID("r1", e.Epoch, e.Sequence, e.ContentHash())
			header, body := e.Encode()
			refused(t, schema.ReasonForked, &nats.Msg{Subject: m.Subject, Header: header, Data: body})
		}
		// The server refuses a compare-and-set with an outdated sequence.
		answer, err := u.RequestMsg(&nats.Msg{Subject: n.EventSubject("r1"), Data: []byte("x"), Header: nats.Header{
			"Nats-Expected-Last-Subject-Sequence": {fmt.Sprint(own[0].Sequence)},
		}}, securedWait)
		require.NoError(t, err)
		require.Contains(t, string(answer.Data), "wrong last sequence")
		same(t)
	})

	t.Run("an id that is no name is not taken in any request", func(t *testing.T) {
		var subjects []string
		for _, id := range hostileIDs {
			for _, verb := range []string{
				schema.VerbRecover, schema.VerbGet, schema.VerbHistory, schema.VerbCancel, schema.VerbHandoff, schema.VerbInput, schema.VerbSettle, schema.VerbMark, schema.VerbSignal,
			} {
				subject := schema.ServiceSubject(verb, fleet, "") + "." + id
				answer, err := func() (*nats.Msg, error) {
					if strings.ContainsAny(id, ".") || id == "" {
						return nil, operator.PublishRequest(subject, operator.NewInbox(), nil) // more tokens, or an empty one
					}
					return operator.Request(subject, nil, securedWait)
				}()
				switch {
				case strings.ContainsAny(id, " \r\n"):
					require.ErrorIs(t, err, nats.ErrBadSubject) // the protocol has no such subjects
				case answer == nil:
					require.NoError(t, err)
					subjects = append(subjects, subject)
				default:
					require.NoError(t, err, "%q", subject)
					require.Equal(t, "400", answer.Header.Get(schema.HeaderErrorCode), "%q: %s", subject, answer.Data)
					requireTame(t, answer.Header.Get(schema.HeaderError))
				}
			}
		}
		for _, subject := range subjects {
			require.Eventually(t, func() bool { return operator.wasRefused("Publish to " + fmt.Sprintf("%q", subject)) }, securedWait, pollEvery, "%s", subject)
		}
		require.Eventually(t, func() bool { return strings.Contains(log.String(), `"message":"request refused"`) }, securedWait, pollEvery)

		bodies := 0
		for _, id := range hostileIDs {
			for _, request := range []struct {
				verb, run string
				body      any
			}{
				{schema.VerbRecover, "r1", schema.RecoverRequest{Executor: id, RequestID: "q"}},
				{schema.VerbRecover, "r1", schema.RecoverRequest{Executor: "e", RequestID: id}},
				{schema.VerbRecover, "r1", schema.RecoverRequest{Executor: "e", RequestID: "q", Instance: id}},
				{schema.VerbRecover, "r1", schema.RecoverRequest{Executor: "e", RequestID: "q", Agent: id}},
				{schema.VerbRecover, "r1", schema.RecoverRequest{Executor: "e", RequestID: "q", Reason: id}},
				{schema.VerbRecover, "r1", schema.RecoverRequest{Executor: "e", RequestID: "q", View: id}},
				{schema.VerbClaim, "", schema.ClaimRequest{Executor: id, RequestID: "q"}},
				{schema.VerbClaim, "", schema.ClaimRequest{Executor: "e", RequestID: id}},
				{schema.VerbClaim, "", schema.ClaimRequest{Executor: "e", RequestID: "q", Agents: []string{id}}},
				{schema.VerbCancel, "r1", schema.CancelRequest{By: id}},
				{schema.VerbMark, "r1", schema.MarkRequest{Name: "m", By: id}},
				{schema.VerbSignal, "r1", schema.SignalRequest{SignalID: "s", Name: "n", By: id}},
				{schema.VerbInput, "r1", schema.InputRequest{InterruptID: "i", EventID: "e", By: id}},
				{schema.VerbCancel, "r1", schema.CancelRequest{By: "me", RequestID: id}},
				{schema.VerbSettle, "r1", schema.SettleRequest{CallKey: schema.CallKey{Turn: 1, ToolCallID: "c1"}, How: schema.SettledRerun, By: id}},
				{schema.VerbHandoff, "r1", schema.HandoffRequest{HandoffID: "h", Action: schema.HandoffDecline, By: id}},
				{schema.VerbHandoff, "r1", schema.HandoffRequest{HandoffID: "h", Action: schema.HandoffAccept, By: "me", ChildRun: id, OfferHash: strings.Repeat("0", 64)}},
				{schema.VerbHandoff, "r1", schema.HandoffRequest{HandoffID: "h", Action: schema.HandoffAccept, By: id, ChildRun: "c", OfferHash: strings.Repeat("0", 64)}},
				{schema.VerbList, "", schema.ListRequest{Agent: id}},
				{schema.VerbList, "", schema.ListRequest{Parent: id}},
				{schema.VerbList, "", schema.ListRequest{After: id}},
			} {
				if h, ok := request.body.(schema.HandoffRequest); id == "" && (!ok || h.Action != schema.HandoffAccept) {
					continue // left out is allowed in most: the sender is proven
				}
				body, err := json.Marshal(request.body)
				if err != nil {
					continue // JSON has no such text
				}
				answer, err := operator.Request(schema.ServiceSubject(request.verb, fleet, request.run), body, securedWait)
				require.NoError(t, err)
				if request.verb == schema.VerbList && string(answer.Data) == `{"runs":[]}` {
					continue // nothing has that name
				}
				require.Equal(t, "400", answer.Header.Get(schema.HeaderErrorCode), "%s %q: %s", request.verb, body, answer.Data)
				requireTame(t, answer.Header.Get(schema.HeaderError))
				bodies++
			}
		}
		require.Greater(t, bodies, 300)
		same(t)
	})

	t.Run("an id that is no name becomes no key, object or file", func(t *testing.T) {
		var messages []*nats.Msg
		for _, id := range hostileIDs {
			if strings.ContainsAny(id, " \r\n.") || id == "" || id == ">" || id == schema.BarrierRun {
				continue // no subject, or not the executor's
			}
			messages = append(messages, &nats.Msg{Subject: n.EventSubject(id), Header: message(own[0], map[string]string{"ce-id": "x-" + base64.RawURLEncoding.EncodeToString([]byte(id))[:2]}).Header})
		}
		require.Greater(t, len(messages), 8)
		refused(t, "", messages...)
		js, err := jetstream.New(s.connect(t, fleet, access.Daemon).Conn)
		require.NoError(t, err)
		for _, bucket := range []string{n.CheckpointBucket(), n.SegmentBucket()} {
			stream, err := js.Stream(ctx, "KV_"+bucket)
			require.NoError(t, err)
			info, err := stream.Info(ctx, jetstream.WithSubjectFilter(">"))
			require.NoError(t, err)
			for subject := range info.State.Subjects {
				require.Regexp(t, `^\$KV\.[A-Z]+_[A-Z]+_rivals_0\.[A-Za-z0-9_.-]+$`, subject)
			}
		}
		hash := strings.Repeat("0", 64)
		for _, ref := range []string{
			"http://127.0.0.1/" + hash, "file:///etc/passwd", schema.DataRef("../../etc", hash), schema.DataRef("*", hash), schema.DataRef("", hash),
			schema.DataRef("r1", "../"+hash), schema.DataRef("r1", strings.ToUpper("a")+hash[1:]), "waymark-blob:..", "waymark-blob:>.sha256-" + hash,
		} {
			_, err := executor.Blob(ctx, ref)
			require.ErrorContains(t, err, "is not waymark-blob:", ref)
		}
		for i, id := range hostileIDs {
			if id == "" || strings.HasPrefix(id, "-") {
				continue
			}
			commands := [][]string{
				{"runs", "get", id},
				{"cancel", id},
				{"events", id, "--all", "--no-follow", "--json", "--raw"},
				{"plan", id},
				{"verify", id},
				{"events", id, "--no-follow"},
				{"checkpoint", id, "--name", "name"},
				{"fork", "r1", "--id", id},
			}
			for _, args := range [][]string{
				{"fleet", "add", id, "--dir", filepath.Join(s.dir, "hostile"), "--offline", "--nats", "nats://127.0.0.1:1"}, commands[i%len(commands)],
			} {
				var out lockedBuffer
				args = append([]string{"--context", s.context(fleet, access.Operator), "--fleet", fleet}, args...)
				code := Run(ctx, args, s.getenv, strings.NewReader(""), &out, &out)
				require.Equal(t, int(failure.Usage), code, "%q: %s", args, out.String())
				requireTame(t, out.String())
			}
		}
		require.NoError(t, filepath.WalkDir(filepath.Join(s.dir, "hostile"), func(path string, d fs.DirEntry, err error) error {
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			require.True(t, d.IsDir(), path)
			return err
		}))
		same(t)
	})

	t.Run("a reference leads to the fleet's own blobs and nowhere else", func(t *testing.T) {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		asked := make(chan struct{}, 64)
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			for {
				c, err := listener.Accept()
				if err != nil {
					return
				}
				asked <- struct{}{}
				_ = c.Close()
			}
		}()
		defer func() {
			require.NoError(t, listener.Close())
			<-ended
			require.Empty(t, asked, "the reference was followed")
		}()
		for i, ref := range []string{
			"http://" + listener.Addr().String() + "/blob", "https://" + listener.Addr().String() + "/", "file:///etc/passwd", "http://169.254.169.254/latest/meta-data/",
			"//" + listener.Addr().String(), "waymark-blob:http://" + listener.Addr().String(), "gopher://127.0.0.1:1/_x",
		} {
			refused(t, schema.ReasonInvalidAttribute, message(own[0], map[string]string{"ce-id": fmt.Sprint("attr-", i), "ce-dataref": ref}))
			added := &schema.Event{
				ID: fmt.Sprint("body-", i), Source: schema.Source(fleet, "mallory"), Type: schema.TypePrefix + schema.MessageAdded + schema.TypeSuffix, Subject: "refs",
				DataContentType: schema.ContentTypeJSON,
				Data:            fmt.Appendf(nil, `{"message":{"role":"user","parts":[{"type":"text"}]},"refs":[{"path":"/message/parts/0/content","dataref":%q,"size":1}]}`, ref),
			}
			header, body := added.Encode()
			refused(t, schema.ReasonInvalidData, &nats.Msg{Subject: n.EventSubject("refs"), Header: header, Data: body})
		}
		state := s.as(t, fleet, access.Observer, 0, "runs", "get", "refs", "--view", "state")
		requireHas(t, state, `"dead_letters": 7`)
		require.NotContains(t, state, `"messages"`)
		same(t)
	})

	t.Run("a blob that is swapped is not taken for content", func(t *testing.T) {
		large := strings.Repeat("what was said ", 40<<10)
		b, err := executor.Start(ctx, publisher.RunSpec{ID: "blobs"})
		require.NoError(t, err)
		require.NoError(t, b.AddMessage(ctx, schema.Message{Role: schema.RoleUser, Parts: []schema.Part{schema.Text(large)}}))
		honest, err := executor.Get(ctx, "blobs")
		require.NoError(t, err)
		require.NoError(t, executor.Hydrate(ctx, honest))
		require.Equal(t, large, *honest.Messages[0].Parts[0].Content)

		js, err := jetstream.New(u.Conn)
		require.NoError(t, err)
		store, err := js.ObjectStore(ctx, schema.BlobBucket(fleet))
		require.NoError(t, err)
		events := s.events(t, fleet, "blobs")
		ref := events[len(events)-1].Header.Get("ce-dataref")
		name := strings.TrimPrefix(ref, "waymark-blob:")
		require.NotEqual(t, ref, name)
		// An executor may store objects, and so put another in its place; what it replaces it cannot purge.
		putting, stop := context.WithCancel(ctx)
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			_, _ = store.Put(putting, jetstream.ObjectMeta{Name: name}, strings.NewReader(`"`+strings.Repeat("what was not said", 40<<10)+`"`))
		}()
		defer func() {
			stop()
			<-ended
		}()
		reader, err := publisher.NewReader(ctx, publisher.Config{Conn: executor.Conn(), Fleet: fleet}) // the executor keeps it in memory
		require.NoError(t, err)
		require.Eventually(t, func() bool {
			swapped, err := reader.Get(ctx, "blobs")
			require.NoError(t, err)
			err = reader.Hydrate(ctx, swapped)
			return errors.Is(err, publisher.ErrBlob)
		}, securedWait, pollEvery, "it is told")
	})

	t.Run("text is shown and logged as text", func(t *testing.T) {
		// In every field that takes words, and in those that must be names.
		hostile := strings.ToValidUTF8(strings.Join(hostileTexts, " "), "?")
		h, err := executor.Start(ctx, publisher.RunSpec{ID: "hostile", Task: hostile, Labels: map[string]string{"label": hostile}})
		require.NoError(t, err)
		turn, err := h.StartTurn(ctx, publisher.TurnSpec{})
		require.NoError(t, err)
		arguments, err := json.Marshal(map[string]string{hostile: hostile})
		require.NoError(t, err)
		call := publisher.ToolCall{ID: "c1", Name: "add\u202e\u2066\u200b", Arguments: arguments, Replay: schema.ReplayPure}
		_, err = turn.Answer(ctx, publisher.Answer{Message: schema.Message{Role: schema.RoleAssistant, Parts: []schema.Part{schema.Text(hostile)}}, Calls: []publisher.ToolCall{call}})
		require.NoError(t, err)
		_, err = turn.Tool(ctx, call, func(context.Context, publisher.Invocation) (publisher.ToolResult, error) {
			return publisher.Result(hostile)
		})
		require.NoError(t, err)
		require.NoError(t, h.Error(ctx, schema.Error{Type: hostile, Message: hostile}, ""))
		require.NoError(t, h.Artifact(ctx, schema.ArtifactAddedData{ArtifactID: "a1", Name: hostile, URI: "file:///" + hostile}))
		require.NoError(t, h.Wait(ctx, schema.RunWaitingData{InterruptID: "i\u202e\u2066", Reason: schema.WaitHumanInput, Message: hostile}))
		s.as(t, fleet, access.Operator, 0, "checkpoint", "hostile", "--name", "m\u202e\u2066")

		e := &schema.Event{
			ID: hostile[:20], Source: hostile, Type: hostile, Subject: "hostile2", Extensions: map[string]string{"x": hostile},
			DataContentType: hostile, Data: []byte(hostile),
		}
		header, body := e.Encode()
		refused(t, "", &nats.Msg{Subject: n.EventSubject("hostile2"), Header: header, Data: body})
		refused(t, "", message(own[0], map[string]string{"ce-id": "evil", "ce-source": "/waymark/payments/\u202e\u009b31m"}))
		// Bodies that no JSON document can hold.
		for i, body := range []string{strings.Repeat("[", 10_000) + strings.Repeat("]", 10_000), `{"turn":`} {
			e := &schema.Event{
				ID: fmt.Sprint("body-", i), Source: schema.Source(fleet, "mallory"), Type: schema.TypePrefix + schema.TurnStarted + schema.TypeSuffix,
				Subject: "hostile2", DataContentType: schema.ContentTypeJSON, Data: []byte(body),
			}
			header, data := e.Encode()
			refused(t, schema.ReasonInvalidData, &nats.Msg{Subject: n.EventSubject("hostile2"), Header: header, Data: data})
		}

		odd := filepath.Join(s.dir, "odd\x1b]0;title\x07\u202e")
		conversation, err := json.Marshal(map[string]any{"messages": []map[string]string{{"role": "user", "content": hostile}, {"role": hostile, "content": hostile}}})
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(odd+".jsonl", append(conversation, "\n"+hostile+"\n"...), 0o600))
		words := strings.NewReplacer("ODD", odd, "BACKUP", filepath.Join(s.dir, "hostile.backup"), "TEXT", hostile)
		for _, c := range hostileCommands {
			args := make([]string, len(c.args))
			for i := range c.args {
				args[i] = words.Replace(c.args[i])
			}
			code := s.tame(t, fleet, c.role, args...)
			if c.shows {
				codes := []int{0, int(failure.Differs)}
				if args[0] == "verify" && slices.Contains(args, "--all") {
					codes = []int{int(failure.Damaged)} // a large field was swapped above
				}
				require.Contains(t, codes, code, "%q", args)
			}
		}
		for line := range strings.Lines(log.String()) {
			requireTame(t, line)
			var entry map[string]any
			require.NoError(t, json.Unmarshal([]byte(line), &entry), "%s", line)
			require.NotEqual(t, "forged", entry["message"])
		}
		same(t)
	})
	require.Equal(t, untouched, s.stored(t, "payments"), "the other fleet")
}
