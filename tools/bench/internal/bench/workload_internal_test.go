package bench

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/harness/natstest"
	"github.com/waymarkio/waymark/schema"
)

// playedBy returns what the fleet has of a run that a player has played on, behind run.started.
func playedBy(t *testing.T, w *World, id string, shape Shape, play func(context.Context, *Player) error) []*schema.Event {
	t.Helper()
	f, err := w.Fleet(t.Context(), "executor-"+id)
	require.NoError(t, err)
	p, err := StartRun(t.Context(), f, id, shape)
	require.NoError(t, err)
	p.text = NewText(1)
	require.NoError(t, play(t.Context(), p))
	head := p.Run.Head()
	require.False(t, head.TurnOpen, "the turn is over with its last outcome")
	require.Empty(t, head.OpenCalls)
	var events []*schema.Event
	require.NoError(t, f.Events(t.Context(), id, func(r schema.Record) error {
		e, err := schema.Decode(r.Header, r.Body)
		events = append(events, e)
		return err
	}))
	return events[1:]
}

func TestTurn_EveryForm_IsTheDocumentedEvents(t *testing.T) {
	w, err := openWorld(t.Context(), WorldSpec{Server: Embedded, Sync: SyncDefault, Shards: 1},
		Options{Store: t.TempDir(), Logger: natstest.Logger(t)}.Defaults())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, w.close(context.WithoutCancel(t.Context()))) })
	for name, shape := range map[string]Shape{"full": FullTurn, "small": SmallTurn} {
		t.Run(name, func(t *testing.T) {
			want := append([]string{schema.TurnAnswered}, slices.Repeat([]string{schema.ToolReturned}, shape.Calls)...)
			steps := 0
			played := playedBy(t, w, name+"-played", shape, func(ctx context.Context, p *Player) error {
				return p.Turn(ctx, func(ctx context.Context, step Step) error { steps++; return step(ctx) })
			})
			require.Equal(t, shape.Boundaries(), steps, "each boundary is a step")
			types, payload := []string{}, 0
			for _, e := range played {
				types = append(types, e.Name())
				payload += payloadOf(t, e)
			}
			require.Equal(t, want, types)
			require.Equal(t, shape.Payload(), payload, "what is counted as payload is what is stored")
		})
	}
	played := playedBy(t, w, "fold", FullTurn, func(ctx context.Context, p *Player) error {
		return p.Turn(ctx, func(ctx context.Context, step Step) error { return step(ctx) })
	})
	for i, d := range turnData(NewText(1), 1) {
		e, err := (&schema.Writer{Fleet: FleetName, Run: "fold", Executor: "e", Epoch: 1}).Event(d, 1, time.Now(), 0)
		require.NoError(t, err)
		_, body := e.Encode()
		require.Equal(t, string(played[i].Data), string(body), "case fold publishes the same")
	}
}

func TestExecutorRole_EveryShape_ReachesItsProcess(t *testing.T) {
	for name, shape := range map[string]Shape{"full": FullTurn, "timed": TimedTurn, "small": SmallTurn} {
		want := childRole{Executor: &executorRole{Name: name, Runs: 2, Shape: shape, Sizes: []int{1, 2, 3}}}
		line, err := json.Marshal(want)
		require.NoError(t, err)
		var got childRole
		require.NoError(t, json.Unmarshal(line, &got))
		require.Equal(t, want, got)
	}
}

// payloadOf adds up what an executor wanted to be kept of an event: texts, arguments and results.
func payloadOf(t *testing.T, e *schema.Event) (n int) {
	t.Helper()
	var data struct {
		Message struct {
			Parts []struct {
				Content string `json:"content"`
			} `json:"parts"`
		} `json:"message"`
		Calls []struct {
			Arguments jsontext.Value `json:"arguments"`
		} `json:"calls"`
		Result jsontext.Value `json:"result"`
	}
	require.NoError(t, json.Unmarshal(e.Data, &data))
	for _, p := range data.Message.Parts {
		n += len(p.Content)
	}
	for _, c := range data.Calls {
		n += len(c.Arguments)
	}
	return n + len(data.Result)
}
