package cli

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/nats/access"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// lose ends a server, and loses its disk.
func (s *secured) lose(t *testing.T, i int) {
	t.Helper()
	s.servers[i].Shutdown()
	s.servers[i].WaitForShutdown()
	require.NoError(t, os.RemoveAll(filepath.Join(s.dir, fmt.Sprintf("nats-%d", i+1))))
}

// heals waits until doctor names no server.
func (s *secured) heals(t *testing.T) {
	t.Helper()
	said := s.doctor(t)
	healthy := func() bool {
		return strings.Contains(said, "daemon") && !strings.Contains(said, "nats-") && !strings.Contains(said, "FAILED")
	}
	for end := time.Now().Add(2 * securedWait); !healthy() && time.Now().Before(end); said = s.doctor(t) {
		within(t.Context(), 100*time.Millisecond)
	}
	require.True(t, healthy(), said)
}

// doctor is what an observer's doctor prints, whatever its exit code.
func (s *secured) doctor(t *testing.T) string {
	t.Helper()
	var out, complaints strings.Builder
	Run(t.Context(), []string{"doctor", "--fleet", "payments", "--context", s.context("payments", access.Observer)}, s.getenv, strings.NewReader(""), &out, &complaints)
	return out.String() + complaints.String()
}

// The steps of docs/deploy.md, "A lost server": nothing that was acknowledged is lost while one disk is left.
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
	s.lose(t, 1)
	add()
	s.start(t, 1)
	s.heals(t)
	add()
	s.lose(t, 0)
	s.lose(t, 2)
	s.start(t, 0)
	s.start(t, 2)
	s.heals(t)
	add()
	requireHas(t, s.as(t, "payments", access.Observer, 0, "verify", "--all"), "0 damaged")
	got := s.as(t, "payments", access.Observer, 0, "runs", "get", "r1", "--view", "state")
	for _, text := range stored {
		require.Contains(t, got, text)
	}
}
