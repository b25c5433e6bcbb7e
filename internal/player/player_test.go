package player_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/consumer"
	"github.com/waymarkio/waymark/consumer/service"
	"github.com/waymarkio/waymark/internal/harness/natstest"
	"github.com/waymarkio/waymark/internal/harness/transcriptcheck"
	"github.com/waymarkio/waymark/internal/journal"
	"github.com/waymarkio/waymark/internal/player"
	"github.com/waymarkio/waymark/internal/transcript"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/publisher"
)

func TestMain(m *testing.M) { natstest.Main(m) }

// newFleet returns a fleet on a server of the test's own, with a service that answers but no fold worker.
func newFleet(t *testing.T) *publisher.Fleet {
	t.Helper()
	server := natstest.Start(t)
	nc := server.Conn(t, nats.ReconnectBufSize(-1))
	js, err := jetstream.New(nc)
	require.NoError(t, err)
	config := kvstore.FleetConfig{Fleet: "default", QuotaBytes: 64 << 20}
	require.NoError(t, kvstore.Provision(t.Context(), js, config))
	daemon, err := consumer.New(t.Context(), consumer.Config{
		Fleet: "default", Name: "test", Service: js, Requests: service.Config{Grace: time.Second},
	}, time.Now, natstest.Logger(t))
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- daemon.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-done)
	})
	<-daemon.Ready()
	fleet, err := publisher.Connect(t.Context(), publisher.Config{Conn: nc, Executor: "player"})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, fleet.Close(context.Background())) })
	return fleet
}

var errStop = errors.New("stopped here")

// memory is a witness that stops the walk after so many boundaries.
type memory struct {
	entries []journal.Entry
	left    int
}

func (m *memory) Write(e journal.Entry) error {
	e.At = time.Now().UnixNano()
	m.entries = append(m.entries, e)
	if e.Op == journal.Ack || e.Op == journal.Begin {
		if m.left--; m.left == 0 {
			return errStop
		}
	}
	return nil
}

func scripts(t *testing.T, file string, format transcript.Format) []*transcript.Run {
	t.Helper()
	f, err := transcript.Open(filepath.Join("..", "transcript", "testdata", "small", file), transcript.Options{Format: format})
	require.NoError(t, err)
	runs := slices.Collect(f.Runs())
	require.NoError(t, f.Err())
	return runs
}

func TestPlayer_StoppedRepeatedly_EndsAsSource(t *testing.T) {
	t.Parallel()
	fleet := newFleet(t)
	for _, file := range inputs {
		for _, script := range scripts(t, file.name, file.format) {
			witness := new(memory)
			p := &player.Player{Fleet: fleet, Journal: witness, Tool: player.Recorded, Now: time.Now}
			play := p.Play
			for {
				// A call takes two: it is begun and returned. With fewer no executor would ever get on.
				witness.left = 2
				err := play(t.Context(), script)
				if err == nil {
					break
				}
				require.ErrorIs(t, err, errStop)
				play = p.Resume
			}
			require.Greater(t, compare(t, fleet, file, script, script.ID, witness.entries).Takeovers, 2)
		}
	}
}

func TestPlayer_StoppedOnceAnywhere_EndsAsSource(t *testing.T) {
	t.Parallel()
	fleet := newFleet(t)
	for _, file := range inputs {
		for _, script := range scripts(t, file.name, file.format) {
			name := script.ID
			for stop, stopped := 1, true; stopped; stop++ {
				script.ID = fmt.Sprintf("%s-%d", name, stop)
				witness := &memory{left: stop}
				p := &player.Player{Fleet: fleet, Journal: witness, Tool: player.Recorded, Now: time.Now}
				err := p.Play(t.Context(), script)
				if stopped = err != nil; stopped {
					require.ErrorIs(t, err, errStop)
					require.NoError(t, p.Resume(t.Context(), script))
				}
				compare(t, fleet, file, script, name, witness.entries)
			}
		}
	}
}

type input struct {
	name   string
	format transcript.Format
}

var inputs = []input{
	{"support.jsonl", transcript.OpenAIChat},
	{"coding-session.jsonl", transcript.ClaudeCode},
	{"fix-rounding.traj", transcript.SWEAgent},
}

func compare(t *testing.T, fleet *publisher.Fleet, file input, script *transcript.Run, name string, history []journal.Entry) journal.Facts {
	t.Helper()
	events, err := player.ReadBack(t.Context(), fleet, script.ID)
	require.NoError(t, err)
	facts := journal.Check(history, map[string][]journal.Event{script.ID: events})
	require.Empty(t, facts.Problems)

	state, err := fleet.Get(t.Context(), script.ID)
	require.NoError(t, err)
	source, err := transcriptcheck.Read(filepath.Join("..", "transcript", "testdata", "small", file.name), string(file.format))
	require.NoError(t, err)
	i := slices.IndexFunc(source.Conversations, func(c *transcriptcheck.Conversation) bool { return c.Name == name })
	require.GreaterOrEqual(t, i, 0, name)
	require.NoError(t, source.Conversations[i].State(state))
	var export bytes.Buffer
	require.NoError(t, transcript.Export(&export, state, script.Format))
	require.NoError(t, source.Conversations[i].Export(export.Bytes()))
	return facts
}
