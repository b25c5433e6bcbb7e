//go:build unix

package nemesis_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/harness/testbin"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// memoryMore is how much more resident memory a process may have at its peak with a large run than with one a tenth
// of its size: its working set is bounded, and random effects add a little.
const memoryMore = 64 << 20

// memoryMost is the limit of resident memory for a daemon, or a command that reads a run, for any run.
const memoryMost = 256 << 20

// weight is how much a run has, and how.
type weight struct {
	bytes int64
	// large is the size of a text of every other turn, which the SDK moves to the blob store; 0 means that no text is so large.
	large int
}

// It writes a run, and another of ten times its size, while the daemon moves it to segments and purges its log. All
// acknowledged events are read back and taken over, and the memory of the daemon and of reading commands does not
// depend on the size of the run.
func TestLargeRun_500MB_RecoveredInBoundedMemory(t *testing.T) {
	t.Parallel() // it mostly waits
	if testing.Short() {
		t.Skip("short: real servers and programs are broken")
	}
	small, great := int64(1<<20), int64(10<<20)
	if testbin.Full(t) {
		small, great = 50_000_000, 500_000_000
	}
	kinds := map[string]int{"inline": 0}
	if testbin.Full(t) {
		kinds["most of it in blobs"] = 2_000_000
	}
	for kind, large := range kinds {
		t.Run(kind, func(t *testing.T) {
			less, more := weigh(t, weight{small, large}), weigh(t, weight{great, large})
			if len(less) == 0 {
				t.Log("memory is measured on Linux only")
			}
			for process := range less {
				require.LessOrEqual(t, more[process], less[process]+memoryMore, "%s took %d MiB for %d bytes, and %d MiB for %d", process, less[process]>>20, small, more[process]>>20, great)
				require.LessOrEqual(t, more[process], int64(memoryMost), "resident memory of %s", process)
			}
		})
	}
}

// weigh writes a run and reads it in every way, and returns the most resident memory that each process took.
func weigh(t *testing.T, of weight) map[string]int64 {
	t.Helper()
	s := scaleOf(1)
	s.executors = 0
	w := newWorld(t, s, number(t, "WAYMARK_CHAOS_SEED", 1))
	run := "heavy"
	writer := w.patientFleet("writer")
	begun := time.Now()
	h := write(t, writer, run, of)
	wrote := time.Since(begun)
	t.Logf("%d bytes in %d events written in %s, of them %d in blobs; the fleet was full %d times", h.bytes, h.run.Head().Counts.Events, wrote.Round(time.Millisecond), h.blobs, h.full)

	// Sealed events have left the log, except the last ones, which are too few for a segment.
	js, err := jetstream.New(w.dial("nemesis", 0))
	require.NoError(t, err)
	w.eventually("the log is not purged", func() error {
		settings, _, err := kvstore.NewFleets(js).Get(t.Context(), schema.DefaultFleet)
		if err != nil {
			return err
		}
		stream, err := js.Stream(t.Context(), schema.NamesOf(schema.DefaultFleet, schema.ShardOf(run, settings.Shards)).EventStream())
		if err != nil {
			return err
		}
		if state := stream.CachedInfo().State; state.Bytes > 2<<20 || state.NumDeleted == 0 && state.FirstSeq == 1 {
			return fmt.Errorf("the log has %d bytes from %d on", state.Bytes, state.FirstSeq)
		}
		return nil
	})
	// A daemon that has just begun knows nothing of the run.
	peaks := map[string]int64{"the daemon that wrote it down": peak(w.daemons[0])}
	w.must(w.daemons[0].kill())
	w.must(w.serve(w.daemons[0]))

	reader := w.patientFleet("reader")
	head, err := reader.Head(t.Context(), run)
	require.NoError(t, err)
	require.Equal(t, h.run.Head().Digest, head.Digest)
	begun = time.Now()
	h.whole(t, reader)
	t.Logf("read whole in %s", time.Since(begun).Round(time.Millisecond))

	// The daemon does not hold a run of this size, and says what to do.
	if of.large == 0 && h.bytes > schema.MaxStateView {
		var refused schema.ServiceError
		require.NoError(t, json.Unmarshal(w.plainRequest(t, schema.VerbGet, run).Data, &refused))
		require.Equal(t, schema.CodeTooLarge, refused.Code)
		require.Contains(t, refused.Hint, "events")
	}

	successor := w.patientFleet("successor")
	begun = time.Now()
	taken, err := successor.Resume(t.Context(), run, publisher.ResumeSpec{Agent: "writer"})
	require.NoError(t, err)
	t.Logf("taken over in %s", time.Since(begun).Round(time.Millisecond))
	before := taken.Head()
	require.EqualValues(t, 2, before.Epoch)
	require.Equal(t, h.run.Head().Counts.Events+1, before.Counts.Events, "all that was acknowledged, and the takeover")
	require.NoError(t, taken.AddMessage(t.Context(), h.message("the successor goes on", 100)))
	require.ErrorIs(t, h.run.AddMessage(t.Context(), h.message("the writer knows of nothing", 100)), publisher.ErrFenced)
	require.NoError(t, taken.End(t.Context(), publisher.RunEnd{}))
	h.texts = h.texts[:len(h.texts)-1] // the fenced one's
	h.whole(t, reader)

	for what, args := range map[string][]string{
		"waymark verify":             {"verify", run, "--json"},
		"waymark events --all":       {"events", run, "--all", "--no-follow", "--json"},
		"waymark events --all --raw": {"events", run, "--all", "--no-follow", "--json", "--raw"},
	} {
		begun = time.Now()
		out, most := w.command(t, args...)
		peaks[what] = most
		t.Logf("%s took %s", what, time.Since(begun).Round(time.Millisecond))
		if args[0] == "events" {
			require.GreaterOrEqual(t, out.lines, before.Counts.Events+2, "every event is shown")
			require.Greater(t, out.bytes, h.bytes-h.blobs)
		}
	}

	peaks["the daemon that answered"] = peak(w.daemons[0])
	server := peak(w.nodes[0])
	if server == 0 {
		return nil
	}
	var said []string
	for process, most := range peaks {
		said = append(said, fmt.Sprintf("%s %d MiB", process, most>>20))
	}
	t.Logf("%d bytes: resident memory at most: %s; the server %d MiB", h.bytes, strings.Join(said, ", "), server>>20)
	return peaks
}

// heavy is a run and the hashes of its texts in their order.
type heavy struct {
	run   *publisher.Run
	rnd   *rand.Rand
	texts [][sha256.Size]byte
	// bytes of all texts, and of those that went to the blob store; full counts the events that found the fleet full.
	bytes, blobs int64
	full         int
}

// write makes a run of so many bytes, of turns with texts of all sizes up to the limit of an event. It keeps none of
// it.
func write(t *testing.T, fleet *publisher.Fleet, id string, of weight) *heavy {
	t.Helper()
	h := &heavy{rnd: rand.New(rand.NewPCG(number(t, "WAYMARK_CHAOS_SEED", 1), 4))} //nolint:gosec // chooses texts
	run, err := fleet.Start(t.Context(), publisher.RunSpec{ID: id, Task: "grow"})
	require.NoError(t, err)
	h.run = run
	for n := 0; h.bytes < of.bytes; n++ {
		// A question, and four answers that ask for nothing.
		question := h.message("a question", 2_000)
		question.Role = schema.RoleUser
		spec := publisher.TurnSpec{Messages: []schema.Message{question}}
		for i := range 4 {
			var turn *publisher.Turn
			h.acknowledged(t, func() (err error) {
				turn, err = run.StartTurn(t.Context(), spec)
				return err
			})
			spec = publisher.TurnSpec{}
			size := 1_000 + h.rnd.IntN(30_000)
			switch {
			case of.large > 0 && n%2 == 0 && i == 0:
				size = of.large
				h.blobs += int64(size)
			case i%2 == 0:
				size = 240_000 + h.rnd.IntN(20_000)
			}
			m := h.message("an answer", size)
			h.acknowledged(t, func() error {
				_, err := turn.Answer(t.Context(), publisher.Answer{Message: m})
				return err
			})
		}
	}
	return h
}

// acknowledged publishes until it is acknowledged. A full fleet returns an error, and it waits: the daemon makes
// room.
func (h *heavy) acknowledged(t *testing.T, do func() error) {
	t.Helper()
	for {
		err := do()
		if errors.Is(err, publisher.ErrFleetFull) {
			h.full++
			require.Less(t, h.full, 100, "the daemon makes no room")
			continue
		}
		require.NoError(t, err)
		return
	}
}

// message has a text that nothing else has, of so many bytes that do not compress better than by half.
func (h *heavy) message(about string, size int) schema.Message {
	random := make([]byte, size/2)
	for at := 0; at+8 <= len(random); at += 8 {
		word := h.rnd.Uint64()
		for i := range 8 {
			random[at+i] = byte(word >> (8 * i))
		}
	}
	text := fmt.Sprintf("%s, %d: %s", about, len(h.texts), hex.EncodeToString(random))
	h.texts, h.bytes = append(h.texts, sha256.Sum256([]byte(text))), h.bytes+int64(len(text))
	return schema.Message{Role: schema.RoleAssistant, Parts: []schema.Part{schema.Text(text)}}
}

// whole reads the run, including its blobs, and requires every acknowledged text at its place.
func (h *heavy) whole(t *testing.T, fleet *publisher.Fleet) {
	t.Helper()
	n := 0
	require.NoError(t, fleet.Events(t.Context(), h.run.ID(), func(rec schema.Record) error {
		e, err := schema.Decode(rec.Header, rec.Body)
		if err != nil {
			return err
		}
		data, err := schema.ParseData(e)
		if err != nil {
			return err
		}
		var messages []schema.Message
		var refs []schema.Ref
		switch d := data.(type) {
		case *schema.TurnStartedData:
			messages, refs = d.Messages, d.Refs
		case *schema.TurnAnsweredData:
			messages, refs = []schema.Message{d.Message}, d.Refs
		case *schema.MessageAddedData:
			messages, refs = []schema.Message{d.Message}, d.Refs
		}
		for _, m := range messages {
			var text []byte
			if m.Parts[0].Content != nil {
				text = []byte(*m.Parts[0].Content)
			} else {
				// The blob is the field as in the event.
				var whole string
				stored, err := fleet.Blob(t.Context(), refs[0].DataRef)
				if err == nil {
					err = json.Unmarshal(stored, &whole)
				}
				if err != nil {
					return err
				}
				text = []byte(whole)
			}
			if n >= len(h.texts) || sha256.Sum256(text) != h.texts[n] {
				return fmt.Errorf("text %d of %d is not what was acknowledged: %.80q", n, len(h.texts), text)
			}
			n++
		}
		return nil
	}))
	require.Len(t, h.texts, n, "every text that was acknowledged is there")
}

// patientFleet is the SDK in this process, with time for a machine that is busy.
func (w *world) patientFleet(name string) *publisher.Fleet {
	w.tb.Helper()
	return w.fleet(name, 0, patience)
}

// plainRequest asks as a client does that knows nothing but request and reply.
func (w *world) plainRequest(t *testing.T, verb, run string) *nats.Msg {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	answer, err := w.dial("asker-"+verb, 0).RequestWithContext(ctx, schema.ServiceSubject(verb, schema.DefaultFleet, run), nil)
	require.NoError(t, err)
	return answer
}

// lineCount counts the lines that are written to it.
type lineCount struct{ lines, bytes int64 }

func (c *lineCount) Write(p []byte) (int, error) {
	c.lines += int64(bytes.Count(p, []byte("\n")))
	c.bytes += int64(len(p))
	return len(p), nil
}

// command runs one of the operator's commands, which must end well, and returns how much it wrote and the most memory that it took, 0
// where that is not known.
func (w *world) command(t *testing.T, args ...string) (out *lineCount, most int64) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), waymarkBinary, append(args, "--nats", w.urls("commands", 0))...)
	cmd.Env = testbin.Environment("NATS_USER="+w.user, "NATS_PASSWORD="+w.password, "WAYMARK_STATE_DIR="+filepath.Join(w.dir, "commands"))
	var said bytes.Buffer
	out = new(lineCount)
	cmd.Stdout, cmd.Stderr = out, &said
	require.NoError(t, cmd.Start())
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	// The usage of a process is known while it lives.
	look := time.NewTicker(5 * time.Millisecond)
	defer look.Stop()
	for {
		select {
		case err := <-ended:
			require.NoError(t, err, "waymark %s: %s", strings.Join(args, " "), said.String())
			return out, most
		case <-look.C:
			most = max(most, peakOf(cmd.Process.Pid))
		}
	}
}

// peak is the most resident memory that a process of the world has taken since it was started.
func peak(p *process) int64 { return peakOf(p.life.cmd.Process.Pid) }

// peakOf is the most resident memory that a process has taken, as Linux counts it; 0 elsewhere, or when it has ended.
func peakOf(pid int) int64 {
	if runtime.GOOS != "linux" {
		return 0
	}
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0
	}
	_, rest, _ := strings.Cut(string(text), "VmHWM:")
	kilobytes, _, _ := strings.Cut(strings.TrimSpace(rest), " ")
	n, err := strconv.ParseInt(kilobytes, 10, 64)
	if err != nil {
		return 0 // it has no memory any more
	}
	return n << 10
}
