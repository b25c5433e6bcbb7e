package tested

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/publisher/waymarktest"
	"github.com/waymarkio/waymark/schema"
)

// snippet: crash

func TestClerk_KilledAnywhere_SendsOnce(t *testing.T) {
	waymarktest.CrashEverywhere(t, func(out *waymarktest.Outside) publisher.Work {
		return Clerk(scripted, outbox{out}).Work
	})
}

// outbox is the outside of the test: what was sent stays sent when the executor dies.
type outbox struct{ out *waymarktest.Outside }

func (o outbox) Send(ctx context.Context, to, text string) error {
	return o.out.Effect(ctx, "mail to "+to+": "+text)
}

// scripted stands for a model. What it answers follows from the conversation alone.
func scripted(_ context.Context, request publisher.ModelRequest) (publisher.Answer, error) {
	if request.Turn == 1 {
		mail := []byte(`{"to":"bob","text":"Thank you."}`)
		return publisher.Answer{Calls: []publisher.ToolCall{{ID: "call_1", Name: "send_mail", Arguments: mail}}}, nil
	}
	return publisher.Answer{Message: schema.Message{Role: schema.RoleAssistant, Parts: []schema.Part{schema.Text("Bob is answered.")}}}, nil
}

// end of crash

// snippet: keys

func TestPayer_KilledAnywhere_PaysOnce(t *testing.T) {
	waymarktest.CrashEverywhere(t, func(out *waymarktest.Outside) publisher.Work {
		return Payer(pays, bank{out}).Work
	})
}

// bank is a fake of an API that keeps keys: what has the key of an earlier payment is not paid again.
type bank struct{ out *waymarktest.Outside }

func (b bank) Pay(ctx context.Context, key string, cents int) error {
	return b.out.Once(ctx, key, fmt.Sprintf("payment of %d cents", cents))
}

// end of keys

// pays stands for a model.
func pays(_ context.Context, request publisher.ModelRequest) (publisher.Answer, error) {
	if request.Turn == 1 {
		return publisher.Answer{Calls: []publisher.ToolCall{{ID: "call_1", Name: "pay", Arguments: []byte(`{"cents":5}`)}}}, nil
	}
	return publisher.Answer{Message: schema.Message{Role: schema.RoleAssistant, Parts: []schema.Part{schema.Text("Paid.")}}}, nil
}

// snippet: replay

func TestClerk_RecordedRun_IsTheSame(t *testing.T) {
	waymarktest.Replay(t, "testdata/answer-bob.jsonl", nil, func(r *waymarktest.Recorded) publisher.Work {
		return Clerk(r.Model, nil).Work
	})
}

// end of replay

// snippet: deploy

func TestClerk_Deployed_LivingRunsGoOn(t *testing.T) {
	before := func(out *waymarktest.Outside) publisher.Work {
		clerk := Clerk(scripted, outbox{out})
		clerk.System = "You answer letters."
		return clerk.Work
	}
	waymarktest.CrashEverywhereWith(t, waymarktest.Crash{Before: before}, func(out *waymarktest.Outside) publisher.Work {
		return Clerk(scripted, outbox{out}).Work
	})
	waymarktest.ReplayFromEach(t, "testdata/answer-bob.jsonl", nil, func(r *waymarktest.Recorded) publisher.Work {
		return Clerk(r.Model, nil).Work
	})
}

// end of deploy

// snippet: world

func TestClerk_ExecutorDies_AnotherAnswers(t *testing.T) {
	w := waymarktest.Start(t)
	asked := make(chan struct{})
	hangs := func(ctx context.Context, _ publisher.ModelRequest) (publisher.Answer, error) {
		close(asked)
		<-ctx.Done()
		return publisher.Answer{}, ctx.Err()
	}
	first := w.Serve("first", publisher.ExecutorSpec{Loops: map[string]publisher.Loop{"clerk": Clerk(hangs, nil)}}, nil)
	if _, err := first.Fleet().Submit(t.Context(), publisher.RunSpec{ID: "r1", Agent: "clerk", Task: "Answer Bob."}); err != nil {
		t.Fatal(err)
	}
	<-asked
	first.Kill()
	w.Advance(time.Minute) // the daemon has not heard of it for a minute
	w.Await("r1", schema.StatusOrphaned)
	w.Serve("second", publisher.ExecutorSpec{Loops: map[string]publisher.Loop{"clerk": Clerk(scripted, sent{})}}, nil)
	if ended := w.Ended("r1"); ended.Summary != "Bob is answered." {
		t.Error(ended.Summary)
	}
}

type sent struct{}

func (sent) Send(context.Context, string, string) error { return nil }

// end of world
