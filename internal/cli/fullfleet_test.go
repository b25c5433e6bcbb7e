package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/nats/access"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// fullWays are the ways in which a fleet can be full: the stream, and how it was filled. Executors fill the log, the blobs
// and the letters themselves; the fold fills the buckets, so there the daemon's key stands for many runs.
var fullWays = []struct {
	name, stream string
	fill         func(t *testing.T, k *keyed)
}{
	{"log", "WAYMARK_EVENTS_payments_0", func(t *testing.T, k *keyed) {
		t.Helper()
		for _, size := range []int{400 << 10, 10 << 10, 1 << 10, 1} {
			k.pour(t, access.Executor, func(int) string { return "waymark.events.payments.0.filler" }, size, 0)
		}
	}},
	{"blobs", "OBJ_WAYMARK_BLOBS_payments", func(t *testing.T, k *keyed) {
		t.Helper()
		for _, size := range []int{1_000_000, 10_000} { // of them none is named by an event
			k.pour(t, access.Executor, func(i int) string { return fmt.Sprintf("$O.WAYMARK_BLOBS_payments.C.flood%d", i) }, size, 0)
		}
	}},
	{"segments", "KV_WAYMARK_SEGMENTS_payments_0", func(t *testing.T, k *keyed) {
		t.Helper()
		k.pour(t, access.Daemon, func(i int) string { return fmt.Sprintf("$KV.WAYMARK_SEGMENTS_payments_0.flood.a.%d", i) }, 500<<10, kvstore.MinQuotaBytes)
	}},
	{"checkpoints", "KV_WAYMARK_CHECKPOINTS_payments_0", func(t *testing.T, k *keyed) {
		t.Helper()
		k.pour(t, access.Daemon, func(i int) string { return fmt.Sprintf("$KV.WAYMARK_CHECKPOINTS_payments_0.flood.a.%d", i) }, 500<<10, kvstore.MinQuotaBytes)
		js := k.jetStream(t, access.Daemon)
		require.Eventually(t, func() bool { // the daemon closes the log
			s, err := js.Stream(t.Context(), "WAYMARK_EVENTS_payments_0")
			return err == nil && s.CachedInfo().Config.MaxBytes < kvstore.MinQuotaBytes
		}, securedWait, pollEvery)
	}},
	{"letters", "WAYMARK_DEADLETTERS_payments", func(t *testing.T, k *keyed) {
		t.Helper()
		js := k.jetStream(t, access.Daemon)
		k.pour(t, access.Executor, func(i int) string { return fmt.Sprintf("waymark.events.payments.0.garbage-%d", i) }, 400<<10, kvstore.MinQuotaBytes/2)
		require.Eventually(t, func() bool {
			s, err := js.Stream(t.Context(), "WAYMARK_DEADLETTERS_payments")
			return err == nil && s.CachedInfo().State.FirstSeq > 1 // the oldest made room
		}, securedWait, pollEvery)
	}},
	{"connections of executors", "", func(t *testing.T, k *keyed) {
		t.Helper()
		for range access.DefaultConnections {
			nc, err := k.dial(t, access.Executor)
			if err != nil {
				require.ErrorContains(t, err, "maximum account active connections exceeded")
				return
			}
			t.Cleanup(nc.Close)
		}
		require.Fail(t, "no connection was refused")
	}},
	{"subscriptions of a connection", "", func(t *testing.T, k *keyed) {
		t.Helper()
		nc := k.jetStream(t, access.Executor).Conn()
		for i := range access.ClientSubscriptions + 1 {
			_, err := nc.Subscribe(fmt.Sprintf("%s.full.%d", access.InboxPrefix(access.Executor), i), func(*nats.Msg) {})
			require.NoError(t, err)
		}
		require.NoError(t, nc.Flush())
		require.ErrorIs(t, nc.LastError(), nats.ErrMaxSubscriptionsExceeded)
	}},
}

func (k *keyed) dial(t *testing.T, role access.Role) (*nats.Conn, error) {
	t.Helper()
	nkey, err := nats.NkeyOptionFromSeed(filepath.Join(k.fleets, keyedFleet+"-"+string(role)+".nk"))
	require.NoError(t, err)
	return nats.Connect(k.addr, nkey, nats.CustomInboxPrefix(access.InboxPrefix(role)))
}

func (k *keyed) jetStream(t *testing.T, role access.Role) jetstream.JetStream {
	t.Helper()
	nc, err := k.dial(t, role)
	require.NoError(t, err)
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	require.NoError(t, err)
	return js
}

// pour publishes until so many bytes are stored, or for 0 until the stream is full.
func (k *keyed) pour(t *testing.T, role access.Role, subject func(i int) string, size, most int) {
	t.Helper()
	js := k.jetStream(t, role)
	for i := 0; most == 0 || i*size < most; i++ {
		require.Less(t, i*size, 100<<20, "it has no limit")
		_, err := js.PublishMsg(t.Context(), &nats.Msg{Subject: subject(i), Data: make([]byte, size)})
		if most == 0 && err != nil {
			require.ErrorContains(t, err, "maximum bytes exceeded")
			return
		}
		require.NoError(t, err)
	}
}

// What works on a fleet that is full in one way, and that it heals. The accounts are those that "fleet add" writes.
func TestFullFleet_EachWay_TakeoversReadsAndDecisionsWork(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("short: seven fleets are filled")
	}
	const head = "| full | publish | large field | read | take over | claim | cancel | settle | erase |\n|---|---|---|---|---|---|---|---|---|\n"
	rows := make([]string, len(fullWays))
	t.Run("each", func(t *testing.T) {
		for i, way := range fullWays {
			t.Run(way.name, func(t *testing.T) {
				t.Parallel()
				rows[i] = fmt.Sprintf("| %s | %s |\n", way.name, strings.Join(fullFleet(t, way.stream, way.fill), " | "))
			})
		}
	})
	if t.Failed() {
		return
	}
	requirePart(t, "limits.md", "full fleets", head+strings.Join(rows, ""), "FullFleet")
}

// fullFleet fills a fleet in one way, and returns what then works, in the order of the table.
func fullFleet(t *testing.T, stream string, fill func(*testing.T, *keyed)) (cells []string) {
	t.Helper()
	const inline = 100 << 10
	k := startKeyed(t, "--quota", "16MiB", "--operator", "ann")
	k.serve(t)
	ctx, cancel := context.WithTimeout(t.Context(), 3*securedWait)
	defer cancel()
	one, two := k.hasty(t, "one"), k.hasty(t, "two")
	start := func(run string) *publisher.Run {
		r, err := one.Start(ctx, publisher.RunSpec{ID: run})
		require.NoError(t, err)
		return r
	}
	say := func(r *publisher.Run, size int) error {
		return r.AddMessage(ctx, schema.Message{Role: schema.RoleUser, Parts: []schema.Part{schema.Text(strings.Repeat("x", size))}})
	}
	work, gone, left, doubt := start("work"), start("gone"), start("left"), start("doubt")
	start("moved")
	start("stop")
	require.NoError(t, say(gone, 300<<10))
	require.NoError(t, gone.End(ctx, publisher.RunEnd{}))
	require.NoError(t, doubt.Publish(ctx, &schema.TurnStartedData{Turn: 1}, 1))
	require.NoError(t, doubt.Publish(ctx, &schema.ToolCalledData{ToolCallID: "c1", Name: "mail", Replay: schema.ReplayHold}, 1))
	require.NoError(t, left.Interrupt(ctx, "shutdown"))
	fill(t, k)

	works := func(err error) {
		t.Helper()
		switch {
		case err == nil:
			cells = append(cells, "yes")
		case errors.Is(err, publisher.ErrFleetFull):
			cells = append(cells, "waits")
		default:
			require.NoError(t, err)
		}
	}
	works(say(work, inline)) // no room that is lifted for a control event has it
	if cells[0] == "waits" {
		cells = append(cells, "waits") // its event is small, and may find the room that a control event left
	} else {
		works(say(work, 300<<10))
	}
	_, err := two.Get(ctx, "work")
	works(err)
	moved, err := two.Resume(ctx, "moved", publisher.ResumeSpec{})
	works(err)
	require.EqualValues(t, 2, moved.Epoch())
	require.Eventually(t, func() bool {
		_, err = two.Claim(ctx, publisher.ClaimSpec{})
		return !errors.Is(err, publisher.ErrNothing)
	}, securedWait, pollEvery)
	works(err)
	k.person(t, "ann", 0, "cancel", "stop")
	works(nil)
	_, err = two.Resume(ctx, "doubt", publisher.ResumeSpec{})
	require.NoError(t, err)
	k.person(t, "ann", 0, "settle", "doubt", "1", "c1", "--how", "abandoned")
	works(nil)
	k.person(t, "ann", 0, "erase", "gone", "--force")
	require.Eventually(t, func() bool {
		_, err = two.Get(ctx, "gone")
		return err != nil
	}, securedWait, pollEvery)
	works(nil)

	// Once there is room, the publishers that waited go on.
	if stream == "" {
		return cells
	}
	s, err := k.jetStream(t, access.Daemon).Stream(ctx, stream)
	require.NoError(t, err)
	for _, junk := range []string{"waymark.events.payments.0.filler", "$O.WAYMARK_BLOBS_payments.C.*", "$KV.*.flood.>"} {
		require.NoError(t, s.Purge(ctx, jetstream.WithPurgeSubject(junk)))
	}
	for _, size := range []int{inline, 300 << 10} {
		require.Eventually(t, func() bool {
			err = say(work, size)
			return err == nil || !errors.Is(err, publisher.ErrFleetFull)
		}, securedWait, pollEvery)
		require.NoError(t, err)
	}
	return cells
}

// hasty is an executor that waits for a second in a full fleet.
func (k *keyed) hasty(t *testing.T, name string) *publisher.Fleet {
	t.Helper()
	nkey, err := nats.NkeyOptionFromSeed(filepath.Join(k.fleets, keyedFleet+"-executor.nk"))
	require.NoError(t, err)
	f, err := publisher.Connect(t.Context(), publisher.Config{
		URL: k.addr, Options: []nats.Option{nkey, nats.CustomInboxPrefix(access.InboxPrefix(access.Executor))}, Fleet: keyedFleet, Executor: name, Agent: "clerk",
		FullPatience: time.Second,
	})
	require.NoError(t, err)
	t.Cleanup(func() { _ = f.Close(context.WithoutCancel(t.Context())) }) // runs stay open
	return f
}

// requirePart compares a part of a page, between two marks, with text, or with -update writes it there.
func requirePart(t *testing.T, page, part, text, run string) {
	t.Helper()
	begin, end := "<!-- "+part+": made by a test -->\n", "<!-- end of "+part+" -->\n"
	path := filepath.Join("..", "..", "docs", page)
	have, err := os.ReadFile(path)
	require.NoError(t, err)
	before, rest, ok := strings.Cut(string(have), begin)
	require.True(t, ok, "the page has no mark %q", begin)
	old, after, ok := strings.Cut(rest, end)
	require.True(t, ok, "the page has no mark %q", end)
	if *update {
		require.NoError(t, os.WriteFile(path, []byte(before+begin+text+end+after), 0o600))
		return
	}
	require.Equal(t, text, old, "run: go test ./internal/cli -run %s -update", run)
}
