package nemesis_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/harness/checker"
	"github.com/waymarkio/waymark/internal/harness/testbin"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// room is a small disk, which a ballast can fill.
type room struct{ dir string }

// newRoom mounts one, or skips the test when that needs rights that this process does not have.
func newRoom(t *testing.T, dir string, megabytes int) *room {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("a full disk needs root, to mount a small one: run make chaos CHAOSFLAGS=\"-run FullDisk\" as root")
	}
	require.NoError(t, os.MkdirAll(dir, 0o700))
	if out, err := run("mount", "-t", "tmpfs", "-o", "size="+strconv.Itoa(megabytes)+"m", "tmpfs", dir); err != nil {
		t.Skipf("a full disk needs tmpfs, which this machine does not allow: %v: %s", err, out)
	}
	t.Cleanup(func() {
		if out, err := run("umount", dir); err != nil {
			t.Errorf("%v: %s", err, out)
		}
	})
	return &room{dir}
}

func (r *room) ballast() string { return filepath.Join(r.dir, "ballast") }

// fill takes all that is free.
func (r *room) fill() error {
	file, err := os.OpenFile(r.ballast(), os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	size := int64(0)
	// In smaller and smaller pieces: space that does not fit as a whole is returned as a whole, and there would be
	// room in between.
	for piece := int64(32 << 20); piece >= 4<<10 && err == nil; {
		switch err = syscall.Fallocate(int(file.Fd()), 0, size, piece); { //nolint:gosec // a file's number
		case err == nil:
			size += piece
		case errors.Is(err, syscall.ENOSPC):
			piece, err = piece/2, nil
		}
	}
	return errors.Join(err, file.Close())
}

// free gives it back.
func (r *room) free() error { return os.Remove(r.ballast()) }

// fullWorld is a world whose servers each have a small disk.
func fullWorld(t *testing.T, s scale, megabytes int) (*round, []*room) {
	t.Helper()
	if !testbin.Full(t) {
		t.Skip("sample: a full disk takes a minute: set WAYMARK_E2E_FULL=1, or run make chaos CHAOSFLAGS=\"-run FullDisk\"")
	}
	if only := number(t, "WAYMARK_CHAOS_SERVERS", 0); only != 0 && only != uint64(s.servers) {
		t.Skipf("WAYMARK_CHAOS_SERVERS=%d leaves out worlds of %d servers", only, s.servers)
	}
	var rooms []*room
	base := t.TempDir()
	for i := range s.servers {
		d := newRoom(t, filepath.Join(base, fmt.Sprintf("disk-%d", i)), megabytes)
		rooms = append(rooms, d)
		s.storeDirs = append(s.storeDirs, filepath.Join(d.dir, "state"))
	}
	return newRound(t, s, number(t, "WAYMARK_CHAOS_SEED", 1)), rooms
}

// TestFullDisk_Embedded_ReportedAndHeals fills the disk below a daemon with a server of its own, and makes room again.
func TestFullDisk_Embedded_ReportedAndHeals(t *testing.T) {
	t.Parallel() // it mostly waits
	if testing.Short() {
		t.Skip("short: real servers and programs are broken")
	}
	s := scaleOf(1)
	s.embedded, s.daemons = true, 0
	r, rooms := fullWorld(t, s, 768) // the server reserves the maximal size of the streams
	for range 2 {
		held := r.held()
		r.suffer(fault{name: "full-disk-embedded", strike: func(ctx context.Context, _ *storm) error {
			if err := rooms[0].fill(); err != nil {
				return err
			}
			r.toldByPublish(held)
			text := r.notReady(r.nodes[0])
			require.Contains(t, text, "disk of "+r.store(0))
			require.Contains(t, text, "next: make room on that disk")
			r.toldByCommands("disk", "WAYMARK_STATE_DIR="+r.store(0))
			return rooms[0].free()
		}})
		r.goesOn(held)
	}
	r.judge()
}

// It fills the disk of a server that no daemon owns. Only its operator can start it again, and every process says so.
func TestFullDisk_ExternalServer_Reported(t *testing.T) {
	t.Parallel() // it mostly waits
	if testing.Short() {
		t.Skip("short: real servers and programs are broken")
	}
	s := scaleOf(1)
	s.maxStore = 8 << 30
	r, rooms := fullWorld(t, s, 64)
	for range 2 {
		held := r.held()
		r.suffer(fault{name: "full-disk", strike: func(ctx context.Context, _ *storm) error {
			if err := rooms[0].fill(); err != nil {
				return err
			}
			r.toldByPublish(held)
			r.toldFromOutside()
			return errors.Join(rooms[0].free(), terminate(ctx, r.nodes[0]))
		}})
		r.goesOn(held)
	}
	r.judge()
}

// It fills the disk of one server of a cluster, then those of all.
func TestFullDisk_OneOfThree_StopsNothing(t *testing.T) {
	t.Parallel() // it mostly waits
	if testing.Short() {
		t.Skip("short: real servers and programs are broken")
	}
	s := scaleOf(3)
	s.maxStore = 8 << 30
	r, rooms := fullWorld(t, s, 64)
	for range 2 {
		r.suffer(fault{name: "full-disk-of-one", strike: func(ctx context.Context, st *storm) error {
			i := st.rnd.IntN(len(rooms))
			if st.rnd.IntN(2) == 0 {
				leader, err := st.leader(ctx)
				if err != nil {
					return err
				}
				i = leader
			}
			if err := rooms[i].fill(); err != nil {
				return err
			}
			r.stored(i)
			since := r.prober.recovered.Load()
			r.eventually("no process works while one disk is full", func() error {
				if r.prober.recovered.Load() < since+20 {
					return errors.New("too few recoveries")
				}
				return nil
			})
			return errors.Join(rooms[i].free(), terminate(ctx, r.nodes[i]))
		}})
		held := r.held()
		r.suffer(fault{name: "full-disk-of-all", strike: func(ctx context.Context, _ *storm) error {
			for _, d := range rooms {
				if err := d.fill(); err != nil {
					return err
				}
			}
			r.toldByPublish(held)
			r.toldFromOutside()
			for i, d := range rooms {
				if err := errors.Join(d.free(), terminate(ctx, r.nodes[i])); err != nil {
					return err
				}
			}
			return nil
		}})
		r.goesOn(held)
	}
	r.judge()
}

// held is a run of this process.
func (r *round) held() *publisher.Run {
	r.tb.Helper()
	id := fmt.Sprintf("held-%d-%d", r.seed, len(r.struck))
	token := checker.Token(id, 0)
	op := r.record.Begin(checker.Op{Actor: "judge", Kind: checker.Publish, Run: id, Epoch: 1, Sequence: 1, Token: token, Detail: schema.RunStarted})
	held, err := r.fleet.Start(r.tb.Context(), publisher.RunSpec{ID: id, Task: token})
	r.record.End(op, func(op *checker.Op) { Ended(op, err) })
	r.must(err)
	return held
}

// toldByPublish publishes until an event is not acknowledged: the error comes in time, says that a disk may be full,
// and what to run.
func (r *round) toldByPublish(held *publisher.Run) {
	r.tb.Helper()
	for n := 1; ; n++ {
		token := checker.Token(held.ID(), n)
		op := r.record.Begin(checker.Op{
			Actor: "judge", Kind: checker.Publish, Run: held.ID(), Epoch: held.Epoch(), Sequence: held.Head().Sequence + 1, Token: token, Detail: schema.MessageAdded,
		})
		begun := time.Now()
		err := held.AddMessage(r.tb.Context(), schema.Message{Role: schema.RoleUser, Parts: []schema.Part{schema.Text(token)}})
		took := time.Since(begun)
		r.record.End(op, func(op *checker.Op) { Ended(op, err) })
		if err == nil {
			require.Less(r.tb, n, 10_000, "a full disk takes events")
			continue
		}
		r.tb.Logf("after %s: %v", took.Round(time.Millisecond), err)
		require.Less(r.tb, took, patience, "no caller is blocked forever")
		if !errors.Is(err, publisher.ErrUnavailable) {
			require.ErrorIs(r.tb, err, publisher.ErrUnresolved)
		}
		require.ErrorContains(r.tb, err, "a disk of its servers may be full")
		require.ErrorContains(r.tb, err, "waymark doctor")
		return
	}
}

// goesOn resolves unacknowledged events, and publishes more: the handle outlived the full disk.
func (r *round) goesOn(held *publisher.Run) {
	r.tb.Helper()
	r.eventually("the handle does not go on", func() error { return held.Resolve(r.tb.Context()) })
	token := checker.Token(held.ID(), rand.IntN(1<<30)+1<<30) //nolint:gosec // any number that is new
	r.must(Publish(r.tb.Context(), r.record, checker.Op{Actor: "judge", Token: token, Detail: schema.MessageAdded}, held, func(ctx context.Context) error {
		return held.AddMessage(ctx, schema.Message{Role: schema.RoleUser, Parts: []schema.Part{schema.Text(token)}})
	}))
}

// stored waits until a server has hit its full disk.
func (r *round) stored(i int) {
	r.tb.Helper()
	r.eventually("the server does not notice that its disk is full", func() error {
		text, err := os.ReadFile(filepath.Join(r.logs(), r.nodes[i].name+".log"))
		if err == nil && !bytes.Contains(text, []byte("no space left on device")) {
			err = errors.New("it has not said so")
		}
		return err
	})
}

// notReady waits until a daemon says that it is not ready, and returns why. It is alive: a restart would not help.
func (r *round) notReady(daemon *process) (text string) {
	r.tb.Helper()
	address := regexp.MustCompile(`http://127[.:0-9]+`).FindString(daemon.said)
	require.NotEmpty(r.tb, address, daemon.said)
	look := func(path string) (status int, text string) {
		request, err := http.NewRequestWithContext(r.tb.Context(), http.MethodGet, address+path, nil)
		r.must(err)
		answer, err := http.DefaultClient.Do(request)
		r.must(err)
		body, err := io.ReadAll(answer.Body)
		r.must(errors.Join(err, answer.Body.Close()))
		return answer.StatusCode, string(body)
	}
	r.eventually("the daemon says that it is ready", func() error {
		status, body := look("/readyz")
		text = body
		if status == http.StatusOK {
			return errors.New(body)
		}
		return nil
	})
	status, body := look("/healthz")
	require.Equal(r.tb, http.StatusOK, status, "no restart mends a full disk: %s", body)
	r.tb.Logf("/readyz: %s", text)
	return text
}

// toldByCommands runs the commands of an operator: doctor names the problem, and others refer to doctor.
func (r *round) toldByCommands(check string, env ...string) {
	r.tb.Helper()
	ask := func(args ...string) (int, string) {
		ctx, cancel := context.WithTimeout(r.tb.Context(), patience)
		defer cancel()
		cmd := exec.CommandContext(ctx, waymarkBinary, args...)
		cmd.Env = testbin.Environment(env...)
		out, err := cmd.CombinedOutput()
		if exit, ok := errors.AsType[*exec.ExitError](err); ok {
			return exit.ExitCode(), string(out)
		}
		r.must(err)
		return 0, string(out)
	}
	code, out := ask("runs", "get", probeRun)
	if r.scale.servers > 1 {
		require.Equal(r.tb, 3, code, out)
		require.Contains(r.tb, out, "waymark doctor")
	} else {
		// A single server answers from its store: reading one replica stores no barrier (decision 47).
		require.Zero(r.tb, code, out)
	}
	code, out = ask("--json", "doctor")
	if r.scale.servers > 1 {
		// Where no server has JetStream any more, not even the fleet's settings can be read.
		require.Equal(r.tb, 1, code, out)
		require.Contains(r.tb, out, "restart one whose disk was full")
		return
	}
	require.Equal(r.tb, 1, code, out)
	var said struct {
		Checks []struct {
			Check  string `json:"check"`
			Result string `json:"result"`
			Detail string `json:"detail"`
			Do     string `json:"do"`
		} `json:"checks"`
	}
	r.must(json.UnmarshalDecode(jsontext.NewDecoder(strings.NewReader(out)), &said)) // the failure follows as a value of its own
	failed := make(map[string]string)
	for _, c := range said.Checks {
		if c.Result == "FAILED" {
			failed[c.Check] = c.Detail + ": " + c.Do
		}
	}
	require.Contains(r.tb, failed[check], "room", "%s", out)
	r.tb.Logf("doctor: %v", failed)
}

// toldFromOutside checks daemons and commands that only know the servers by their answers.
func (r *round) toldFromOutside() {
	r.tb.Helper()
	text := r.notReady(r.daemons[0])
	require.Contains(r.tb, text, "takes no writes")
	require.Contains(r.tb, text, "the disk of each server has room")
	r.toldByCommands("writes", "NATS_URL=nats://127.0.0.1:"+strconv.Itoa(r.ports[0]), "NATS_USER="+r.user, "NATS_PASSWORD="+r.password)
}
