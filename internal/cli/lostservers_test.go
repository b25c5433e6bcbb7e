package cli

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/nats/access"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// stop ends a server.
func (s *secured) stop(i int) {
	s.servers[i].Shutdown()
	s.servers[i].WaitForShutdown()
}

// lose ends a server, and loses its disk.
func (s *secured) lose(t *testing.T, i int) {
	t.Helper()
	s.stop(i)
	require.NoError(t, os.RemoveAll(filepath.Join(s.dir, fmt.Sprintf("nats-%d", i+1))))
}

// heals waits until each server counts the same streams and messages, and then until doctor names none.
func (s *secured) heals(t *testing.T) {
	t.Helper()
	require.Eventually(t, func() bool { return s.held(t, 0) == s.held(t, 1) && s.held(t, 0) == s.held(t, 2) }, 2*securedWait, pollEvery, "%v", s.logs)
	said := s.doctor(t)
	healthy := func() bool {
		return strings.Contains(said, "daemon") && !strings.Contains(said, "nats-") && !strings.Contains(said, "FAILED")
	}
	for end := time.Now().Add(2 * securedWait); !healthy() && time.Now().Before(end); said = s.doctor(t) {
		within(t.Context(), 100*time.Millisecond)
	}
	require.True(t, healthy(), said)
}

// held is what a server's /jsz counts on its own disk.
func (s *secured) held(t *testing.T, i int) string {
	t.Helper()
	own, err := s.servers[i].Jsz(nil)
	require.NoError(t, err)
	return fmt.Sprintf("%d streams, %d messages", own.Streams, own.Messages)
}

// doctor is what an observer's doctor prints, whatever its exit code.
func (s *secured) doctor(t *testing.T) string {
	t.Helper()
	var out, complaints strings.Builder
	Run(t.Context(), []string{"doctor", "--fleet", "payments", "--context", s.context("payments", access.Observer)}, s.getenv, strings.NewReader(""), &out, &complaints)
	return out.String() + complaints.String()
}

// The steps of docs/deploy.md, "A lost server".
func TestLostServers_ReplacedByEmptyOnes_LoseNothing(t *testing.T) {
	if testing.Short() {
		t.Skip("short: a cluster of three servers")
	}
	s := startSecured(t, "payments")
	s.daemon(t, "payments")
	ctx, cancel := context.WithTimeout(t.Context(), 4*securedWait)
	defer cancel()
	f := s.executor(t, "payments", "one")
	r, err := f.Start(ctx, publisher.RunSpec{ID: "r1"})
	require.NoError(t, err)
	var stored []string
	add := func() {
		t.Helper()
		require.Eventually(t, func() bool { // while a leader is elected a try may fail, and may be stored all the same
			text := fmt.Sprintf("message-%d-", len(stored))
			err := r.AddMessage(ctx, schema.Message{Role: schema.RoleUser, Parts: []schema.Part{schema.Text(text)}})
			if err == nil {
				stored = append(stored, text)
			}
			return err == nil
		}, 2*securedWait, pollEvery)
	}
	add()
	s.heals(t) // the third server has what the two acknowledged
	// The leader of JetStream's metadata has made its snapshot before these streams: that is what its restart is for.
	third := slices.IndexFunc(s.servers[:], (*server.Server).JetStreamIsLeader)
	require.GreaterOrEqual(t, third, 0, "%v", s.logs)
	first, second := (third+1)%3, (third+2)%3
	s.lose(t, first)
	s.lose(t, second)
	s.stop(third)
	s.start(t, third)
	s.start(t, first)
	s.start(t, second)
	s.heals(t)
	add()
	s.lose(t, third)
	add()
	s.start(t, third)
	s.heals(t)
	add()
	requireHas(t, s.as(t, "payments", access.Observer, 0, "verify", "--all"), "0 damaged")
	got := s.as(t, "payments", access.Observer, 0, "runs", "get", "r1", "--view", "state")
	for _, text := range stored {
		require.Contains(t, got, text)
	}
}
