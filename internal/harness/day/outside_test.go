//go:build unix

package day_test

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/waymarkio/waymark/publisher/wire"
	"github.com/waymarkio/waymark/schema"
)

// What tools return, and the provider looks for in the conversation.
const (
	lookDone = "the bill is found"
	payDone  = "the bill is paid"
	fileDone = "the receipt is filed"
)

// heard is what the model is told of the end of a child.
func heard(agent string, status schema.Status) string {
	return fmt.Sprintf("the helper %s is %s", agent, status)
}

// asked is a request to the provider.
type asked struct {
	run, agent, life string
	at               time.Time
	status           int
}

// told is the latest refusal of a run's request that named a time.
type told struct {
	until time.Time
	life  string
}

// effect is a change of the outside by a tool.
type effect struct {
	run, call, key, tool, life string
	epoch                      schema.Epoch
	at                         time.Time
}

// post is one to the webhook.
type post struct {
	at        time.Time
	id        string
	run, kind string
}

// early is a request before the time that the provider had told to the run.
type early struct {
	asked asked
	told  told
}

// refusal is how the provider answers instead of its model.
type refusal func(n int, now time.Time) (status int, header http.Header, text string, until time.Time)

// outside is all that the fleet talks to: the model's provider, the systems that tools change, the receiver of the
// webhook. It remembers each request.
type outside struct {
	server *httptest.Server
	// think is how long the model takes at most.
	think time.Duration

	mu      sync.Mutex
	refuse  map[string]refusal // by agent
	refused int
	asked   []asked
	told    map[string]told
	early   []early
	effects []effect
	// closed are the calls that a person has settled, with the first epoch that may have an effect.
	closed map[string]schema.Epoch
	// gate holds payments back while it is not nil; held counts them.
	gate  chan struct{}
	held  int
	posts []post
}

func newOutside(tb testing.TB, think time.Duration) *outside {
	tb.Helper()
	o := &outside{think: think, refuse: map[string]refusal{}, told: map[string]told{}, closed: map[string]schema.Epoch{}}
	mux := http.NewServeMux()
	mux.HandleFunc("/model", o.model)
	mux.HandleFunc("/effect", o.effect)
	mux.HandleFunc("/webhook", o.webhook)
	o.server = httptest.NewServer(mux)
	tb.Cleanup(o.server.Close)
	return o
}

// change changes what the handlers see.
func (o *outside) change(how func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	how()
}

// model is the provider's API.
func (o *outside) model(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return // its client was killed
	}
	q, now := r.URL.Query(), time.Now()
	a := asked{run: q.Get("run"), agent: q.Get("agent"), life: q.Get("life"), at: now}
	var header http.Header
	var text string
	o.change(func() {
		if before, ok := o.told[a.run]; ok && now.Before(before.until) {
			o.early = append(o.early, early{a, before})
		}
		if refuse := o.refuse[a.agent]; refuse != nil {
			o.refused++
			var until time.Time
			if a.status, header, text, until = refuse(o.refused, now); !until.IsZero() {
				o.told[a.run] = told{until, a.life}
			}
		}
		switch own := strings.HasSuffix(a.run, ownFailure); {
		case a.status != 0: // refused
		case own:
			a.status, text = http.StatusBadRequest, `{"error":{"message":"this bill cannot be read"}}`
		default:
			a.status = http.StatusOK
		}
		o.asked = append(o.asked, a)
	})
	w.Header().Set("Content-Type", "application/json")
	if a.status != http.StatusOK {
		maps.Copy(w.Header(), header)
		w.WriteHeader(a.status)
		_, _ = io.WriteString(w, text)
		return
	}
	turn, _ := strconv.Atoi(q.Get("turn"))
	if wait(r.Context(), o.think/2+time.Duration(chance(a.run, turn)%1000)*o.think/2000) {
		_, _ = io.WriteString(w, answer(wire.Form(q.Get("form")), a.run, turn, body))
	}
}

// chance is a number that follows from a run and a turn.
func chance(run string, turn int) (n uint32) {
	for _, b := range []byte(run) {
		n = n*31 + uint32(b)
	}
	return n*31 + uint32(turn) //nolint:gosec // small
}

// request is one call of a tool.
type request struct{ id, name, arguments string }

// answer is what the model says. It follows from the conversation and the tools alone: look for the bill, pay it, file the
// receipt. Of three runs one pays and looks in one answer.
func answer(f wire.Form, run string, turn int, body []byte) string {
	var said struct {
		Tools []jsontext.Value `json:"tools"`
	}
	_ = json.Unmarshal(body, &said) // the SDK made it
	var tools strings.Builder
	for _, t := range said.Tools {
		tools.Write(t)
	}
	has := func(text string) bool { return strings.Contains(string(body), text) }
	var calls []request
	add := func(name, arguments string) {
		calls = append(calls, request{fmt.Sprintf("%s-%d", name, turn), name, arguments})
	}
	look, pay := "search", `{"amount":5}`
	if !strings.Contains(tools.String(), `"search"`) {
		look = "find"
	}
	if strings.Contains(tools.String(), `"currency"`) {
		pay = `{"amount":5,"currency":"CHF"}`
	}
	if strings.HasSuffix(run, lead) && !has(heard(digger, "")) {
		add("ask", `{"agent":"digger"}`)
		calls[0].id += "-digger"
		add("ask", `{"agent":"clerk"}`)
		return response(f, turn, calls)
	}
	both := chance(run, 0)%3 == 0
	if !has(payDone) && (both || has(lookDone)) {
		add("pay", pay)
	}
	if !has(lookDone) {
		add(look, `{"for":"`+run+`"}`)
	}
	if len(calls) == 0 && !has(fileDone) {
		add("file", `{"text":"paid"}`)
	}
	return response(f, turn, calls)
}

// response is an answer in a provider's form; without calls it is the last one.
func response(f wire.Form, turn int, calls []request) string {
	type object = map[string]any
	id, text := fmt.Sprintf("answer-%d", turn), "The bill is settled."
	var body object
	switch f {
	case wire.Anthropic:
		content, reason := []any{object{"type": "text", "text": text}}, "end_turn"
		if len(calls) > 0 {
			content, reason = nil, "tool_use"
		}
		for _, c := range calls {
			content = append(content, object{"type": "tool_use", "id": c.id, "name": c.name, "input": jsontext.Value(c.arguments)})
		}
		body = object{
			"id": id, "type": "message", "role": "assistant", "model": "day", "content": content, "stop_reason": reason,
			"usage": object{"input_tokens": 10, "output_tokens": 5},
		}
	case wire.OpenAIChat:
		message, reason := object{"role": "assistant", "content": text}, "stop"
		if len(calls) > 0 {
			message["content"], reason = nil, "tool_calls"
			var list []any
			for _, c := range calls {
				list = append(list, object{"id": c.id, "type": "function", "function": object{"name": c.name, "arguments": c.arguments}})
			}
			message["tool_calls"] = list
		}
		body = object{"id": id, "model": "day", "choices": []any{object{"index": 0, "message": message, "finish_reason": reason}}}
	default:
		output := []any{object{"type": "message", "id": "m" + id, "role": "assistant", "status": "completed", "content": []any{
			object{"type": "output_text", "text": text, "annotations": []any{}},
		}}}
		if len(calls) > 0 {
			output = nil
		}
		for _, c := range calls {
			output = append(output, object{"type": "function_call", "id": "f" + c.id, "call_id": c.id, "name": c.name, "arguments": c.arguments, "status": "completed"})
		}
		body = object{"id": id, "object": "response", "status": "completed", "model": "day", "output": output}
	}
	out, _ := json.Marshal(body, json.Deterministic(true)) // of what is above
	return string(out)
}

// effect is a system that tools change. It keeps idempotency keys.
func (o *outside) effect(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	epoch, _ := strconv.ParseUint(q.Get("epoch"), 10, 64)
	e := effect{run: q.Get("run"), call: q.Get("call"), key: q.Get("key"), tool: q.Get("tool"), life: q.Get("life"), epoch: schema.Epoch(epoch)}
	var gate chan struct{}
	o.change(func() {
		if e.tool == "pay" && o.gate != nil {
			gate = o.gate
			o.held++
		}
	})
	if gate != nil {
		select {
		case <-gate:
		case <-r.Context().Done():
			return // its client has ended: it had no effect
		}
	}
	status := http.StatusOK
	o.change(func() {
		switch {
		case e.epoch < o.closed[e.run+" "+e.call]:
			status = http.StatusConflict
			return
		case e.tool == "file":
			for i := range o.effects {
				if o.effects[i].key == e.key {
					return // it was done for this key
				}
			}
		}
		e.at = time.Now()
		o.effects = append(o.effects, e)
	})
	wait(r.Context(), o.think/4) // an executor may die between the effect and its result
	w.WriteHeader(status)
}

// settle tells whether a call had its effect. An attempt of an earlier epoch has none afterwards.
func (o *outside) settle(run, call string, epoch schema.Epoch) (had bool) {
	o.change(func() {
		o.closed[run+" "+call] = max(o.closed[run+" "+call], epoch)
		for i := range o.effects {
			had = had || o.effects[i].run == run && o.effects[i].call == call
		}
	})
	return had
}

// webhook is the receiver.
func (o *outside) webhook(w http.ResponseWriter, r *http.Request) {
	var event struct {
		Data struct {
			Run  string `json:"run"`
			Kind string `json:"kind"`
		} `json:"data"`
	}
	text, err := io.ReadAll(r.Body)
	if err = errors.Join(err, json.Unmarshal(text, &event)); err != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	o.change(func() {
		o.posts = append(o.posts, post{time.Now(), r.Header.Get("webhook-id"), event.Data.Run, event.Data.Kind})
	})
	w.WriteHeader(http.StatusNoContent)
}
