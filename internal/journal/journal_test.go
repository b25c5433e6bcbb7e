package journal_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/waymarkio/waymark/internal/journal"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestReader_SeveralWriters_Follows(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "journal")
	reader := journal.NewReader(path)
	entries, err := reader.Next()
	require.NoError(t, err)
	require.Empty(t, entries, "the file is not there yet")

	clock := func() time.Time { return time.Unix(1, 5) }
	for run, open := range map[string]func(string, func() time.Time) (*journal.Writer, error){"a": journal.Open, "b": journal.OpenUnsynced} {
		w, err := open(path, clock)
		require.NoError(t, err)
		require.NoError(t, w.Write(journal.Entry{Op: journal.Ack, Run: run}))
		require.NoError(t, w.Close())
	}
	entries, err = reader.Next()
	require.NoError(t, err)
	require.Len(t, entries, 2)
	slices.SortFunc(entries, func(a, b journal.Entry) int { return strings.Compare(a.Run, b.Run) })
	require.Equal(t, journal.Entry{Op: journal.Ack, Run: "b", At: 1_000_000_005, PID: os.Getpid()}, entries[1])

	appendText(t, path, `{"op":"done","at":1,`)
	entries, err = reader.Next()
	require.NoError(t, err)
	require.Empty(t, entries, "the line is not whole")
	appendText(t, path, `"pid":1}`+"\n")
	entries, err = reader.Next()
	require.NoError(t, err)
	require.Len(t, entries, 1)

	appendText(t, path, "{broken\n")
	_, err = reader.Next()
	require.ErrorContains(t, err, "line 6")
}

// A write across the end of a page of the file ends there when its process is killed.
func TestReader_KilledWriter_TornLineIsCountedAndTheNextIsRead(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "journal")
	w, err := journal.OpenUnsynced(path, time.Now)
	require.NoError(t, err)
	require.NoError(t, w.Write(journal.Entry{Op: journal.Ack, Run: "whole"}))
	require.NoError(t, w.Close())
	whole, err := os.ReadFile(path)
	require.NoError(t, err)
	for end := range whole {
		torn := filepath.Join(t.TempDir(), "torn")
		require.NoError(t, os.WriteFile(torn, whole[:end], 0o600))
		w, err := journal.OpenUnsynced(torn, time.Now)
		require.NoError(t, err)
		require.NoError(t, w.Write(journal.Entry{Op: journal.Done, Run: "next"}))
		require.NoError(t, w.Close())
		reader := journal.NewReader(torn)
		entries, err := reader.Next()
		require.NoError(t, err, "cut at %d", end)
		require.Equal(t, "next", entries[len(entries)-1].Run)
		if end == len(whole)-1 { // all but the line break
			require.Len(t, entries, 2)
			continue
		}
		require.Len(t, entries, 1)
		if end > 1 {
			require.Equal(t, 1, reader.Torn())
		}
	}
}

func appendText(t *testing.T, path, text string) {
	t.Helper()
	file, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	require.NoError(t, err)
	_, err = file.WriteString(text)
	require.NoError(t, err)
	require.NoError(t, file.Close())
}

func TestJournal_Check_FindsViolations(t *testing.T) {
	t.Parallel()
	call := journal.Call{Turn: 1, ID: "x", Occurrence: 1}
	ack := func(epoch, sequence uint64) journal.Entry {
		return journal.Entry{Op: journal.Ack, Run: "r", Epoch: epoch, Sequence: sequence, At: int64(10*epoch + sequence)}
	}
	about := func(e journal.Entry, kind string) journal.Entry { e.Kind, e.Call = kind, call; return e }
	begin := journal.Entry{Op: journal.Begin, Run: "r", Call: call, Replay: "pure"}
	held := journal.Entry{Op: journal.Begin, Run: "r", Call: call, Replay: "hold"}
	rerun := journal.Entry{Op: journal.Settled, Run: "r", Call: call, Note: journal.Rerun}
	resumed := func(epoch, sequence uint64, start int64) journal.Entry {
		return journal.Entry{Op: journal.Resumed, Run: "r", Epoch: epoch, Sequence: sequence, Start: start}
	}
	ev := func(epoch, sequence uint64) journal.Event { return journal.Event{Epoch: epoch, Sequence: sequence} }
	tests := []struct {
		name    string
		history []journal.Entry
		events  []journal.Event
		want    string // "" without problems
	}{
		{"all acknowledged events came back", []journal.Entry{ack(1, 1), ack(1, 2)}, []journal.Event{ev(1, 1), ev(1, 2)}, ""},
		{"an unacknowledged event may be there", []journal.Entry{ack(1, 1)}, []journal.Event{ev(1, 1), ev(1, 2)}, ""},
		{"a lost event", []journal.Entry{ack(1, 1), ack(1, 2)}, []journal.Event{ev(1, 1)}, "is lost"},
		{"an event twice", nil, []journal.Event{ev(1, 1), ev(1, 1)}, "twice"},
		{"a hole", nil, []journal.Event{ev(1, 1), ev(1, 3)}, "follows"},
		{"an epoch that does not begin at 1", nil, []journal.Event{ev(1, 1), ev(2, 2)}, "follows"},
		{"an older epoch behind a newer one", nil, []journal.Event{ev(2, 1), ev(1, 1)}, "after one of epoch 2"},
		{"an event about another call", []journal.Entry{about(ack(1, 1), journal.KindCalled)}, []journal.Event{ev(1, 1)}, "came back as"},
		{
			"a takeover that misses an event",
			[]journal.Entry{ack(1, 1), ack(1, 2), resumed(1, 1, 100)},
			[]journal.Event{ev(1, 1), ev(1, 2)},
			"although 2 was acknowledged before",
		},
		{"a takeover during the acknowledgement", []journal.Entry{ack(1, 1), resumed(1, 1, 5)}, []journal.Event{ev(1, 1)}, ""},
		{
			"an older executor that goes on",
			[]journal.Entry{ack(1, 1), resumed(1, 1, 5), ack(1, 2)},
			[]journal.Event{ev(1, 1), ev(1, 2)},
			"acknowledged after the takeover",
		},
		{
			"a call run again after its result",
			[]journal.Entry{begin, about(ack(1, 1), journal.KindReturned), resumed(1, 1, 100), begin},
			[]journal.Event{{Epoch: 1, Sequence: 1, Kind: journal.KindReturned, Call: call}},
			"its result was recorded",
		},
		{"a pure call run twice by one executor", []journal.Entry{begin, begin}, nil, "by the same executor"},
		{"a pure call run again after a takeover", []journal.Entry{begin, resumed(1, 1, 5), begin}, nil, ""},
		{"a held call run again after a takeover", []journal.Entry{held, resumed(1, 1, 5), held}, nil, "no person settled"},
		{"a held call run again as a person said", []journal.Entry{held, resumed(1, 1, 5), rerun, held}, nil, ""},
		{"a held call run a third time", []journal.Entry{held, resumed(1, 1, 5), rerun, held, resumed(2, 1, 6), held}, nil, "no person settled"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			facts := journal.Check(test.history, map[string][]journal.Event{"r": test.events})
			if test.want == "" {
				require.Empty(t, facts.Problems)
				return
			}
			require.Len(t, facts.Problems, 1)
			require.Contains(t, facts.Problems[0], test.want)
		})
	}
}
