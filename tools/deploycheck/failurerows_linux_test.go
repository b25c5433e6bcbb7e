package deploycheck_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/harness/natstest"
	"github.com/waymarkio/waymark/internal/nats/access"
	"github.com/waymarkio/waymark/internal/nats/natsconn"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// busy works until its executor ends.
func busy(ctx context.Context, run *publisher.Run) error {
	return call(ctx, run, 0, func(ctx context.Context, _ publisher.Invocation) (publisher.ToolResult, error) {
		<-ctx.Done()
		return publisher.ToolResult{}, ctx.Err()
	})
}

// call calls a tool in the run's turn.
func call(ctx context.Context, run *publisher.Run, limit time.Duration, tool publisher.ToolFunc) (err error) {
	turn := run.OpenTurn()
	if turn == nil {
		if turn, err = run.StartTurn(ctx, publisher.TurnSpec{}); err != nil {
			return err
		}
	}
	_, err = turn.Tool(ctx, publisher.ToolCall{ID: "c1", Name: "compile", Replay: publisher.Pure, Timeout: limit}, tool)
	return err
}

// serves is an executor's spec with one agent.
func serves(agent string, work publisher.Work) publisher.ExecutorSpec {
	return publisher.ExecutorSpec{Agents: map[string]func(context.Context, *publisher.Run) (publisher.Work, error){
		agent: func(context.Context, *publisher.Run) (publisher.Work, error) { return work, nil },
	}}
}

// works waits until these runs work.
func (s *site) works(f *publisher.Fleet, runs ...string) {
	s.Helper()
	for _, run := range runs {
		require.Eventually(s, func() bool {
			got, err := f.Get(s.Context(), run)
			return err == nil && got.Head.Status == schema.StatusRunning && len(got.Head.OpenCalls) > 0
		}, patience, 100*time.Millisecond, run)
	}
}

// loses deletes a stream of the fleet.
func (s *site) loses(stream string) {
	s.Helper()
	require.NoError(s, s.jetStream().DeleteStream(s.Context(), stream))
}

// scenario is a site, and failures that strike it one after the other.
type scenario struct {
	start func(*testing.T) *site
	rows  []*failing
}

// noProof is the answer of a daemon whose servers take no write.
const noProof = "the NATS servers of fleet payments did not confirm in time that the answer is complete"

// revoked is the error of an executor whose key is not valid any more.
const revoked = "not permitted: the server closed the connection for good, for example because the key was revoked"

// noStream is the answer of a daemon without the log.
const noStream = "a stream of fleet payments is missing, or has no leader"

// scenarios are all failures. Those that leave nothing to mend have a site of their own.
func scenarios() []scenario {
	names := schema.NamesOf(payments, 0)
	alone := func(f *failing) scenario { return scenario{embedded, []*failing{f}} }
	return []scenario{
		{with(1, 2), []*failing{
			{
				name:   "A daemon is killed",
				cause:  "does not answer|no answer",
				strike: func(s *site) { s.daemons[0].kill() },
				mend:   func(s *site) { s.startDaemon(0, "--synced", "--name", "daemon-1") },
				said:   said{alert: "WaymarkDown", summary: "Daemon daemon-1 does not answer", ready: "no answer; 200 ok"},
			}, {
				name:  "Two daemons are killed",
				cause: "[Nn]o (waymark )?daemon|no answer",
				strike: func(s *site) {
					s.daemons[0].kill()
					s.daemons[1].kill()
				},
				said: said{
					alert: "WaymarkFleetGone", summary: "No daemon of fleet payments is scraped", ready: "no answer; no answer",
					doctor: "FAILED daemon: no daemon answers", stuck: "no daemon answers for fleet payments", page: "no waymark daemon answers for fleet payments",
					inbox: "no daemon answers for fleet payments",
				},
			},
		}},
		{with(3, 2), []*failing{
			{
				name:   "A NATS server stops",
				cause:  "nats-1 is",
				strike: func(s *site) { s.stopServer(0) },
				mend:   func(s *site) { s.startServer(0) },
				said: said{
					alert: "WaymarkServerAway", summary: "NATS server nats-1 is away", doctor: "warning servers: server nats-1 is down…: 7 streams have a replica there",
					ready: "200 servers: server nats-1 is down",
				},
			}, {
				name:  "Two NATS servers stop",
				cause: "nats-1 is",
				strike: func(s *site) {
					s.stopServer(0)
					s.stopServer(1)
				},
				said: said{
					alert: "WaymarkServerAway", summary: "NATS server nats-1 is away", doctor: "FAILED servers: server nats-1 is down…take no write",
					ready: "503 servers: server nats-1 is down…; 503 servers: server nats-1 is down", stuck: noProof, page: noProof, inbox: noProof,
				},
			},
		}},
		{with(1, 1), []*failing{{
			name:  "The store of the NATS server is lost",
			cause: "missing",
			strike: func(s *site) {
				s.stopServer(0)
				require.NoError(s, os.RemoveAll(s.store(0)))
				s.startServer(0)
			},
			said: said{
				alert: "WaymarkStreamBroken", summary: "Stream WAYMARK_EVENTS_payments_0 of fleet payments is missing", doctor: "FAILED streams: fleet payments is missing at …, although its daemon …runs",
				ready: "503 streams: streams WAYMARK_EVENTS_payments_0, …are missing", stuck: noStream, page: noStream, inbox: noStream,
			},
		}}},
		{with(1, 1), []*failing{{
			name:  "A working executor's key is revoked",
			cause: "key",
			note:  "The daemon cannot know it. The executor ends with:\n" + revoked + ".",
			strike: func(s *site) {
				f, _, ended := s.executor("executor.second", "second", serves("coder", busy))
				s.submit("works", "coder")
				s.works(f, "works")
				key := filepath.Join(s.dir, "fleets", payments+"-executor.second.nk")
				require.NoError(s, os.Remove(key))
				s.must("fleet", "add", payments, "--dir", filepath.Join(s.dir, "fleets"), "--offline")
				require.NoError(s, s.servers[0].Reload())
				first, _, _ := strings.Cut((<-ended).Error(), "\n")
				require.Contains(s, first, revoked)
			},
			said: said{
				alert: "WaymarkRunsUnclaimed", summary: "1 runs of agent coder in fleet payments wait for an executor", stuck: "works orphaned: its executor is gone", page: "no executor of coder is alive",
			},
		}}},
		{with(1, 1), []*failing{{
			name:   "JetStream stops on the NATS server",
			cause:  "JetStream",
			strike: func(s *site) { require.NoError(s, s.servers[0].DisableJetStream()) },
			said: said{
				alert: "WaymarkShardUnseen", summary: "1 shards of fleet payments do not answer", doctor: "FAILED jetstream: JetStream does not answer at",
				ready: "503 jetstream: JetStream does not answer at", stuck: noProof, page: noProof, inbox: noProof,
			},
		}}},
		{with(1, 1), []*failing{{
			name:  "The NATS server has an old version",
			cause: "needed or newer",
			strike: func(s *site) {
				s.daemons[0].kill()
				s.outdated()
				s.daemons[0] = s.start("serve", "--http", strings.TrimPrefix(s.health[0], "http://"), "--fleet", payments, "--context", s.context(access.Daemon), "--synced")
			},
			said: said{
				alert: "WaymarkFleetGone", summary: "No daemon of fleet payments is scraped", doctor: "FAILED server: the nats server cannot be used: nats-server …is needed or newer, and …is version",
				ready: "no answer", stuck: "no daemon answers for fleet payments", page: "no waymark daemon answers for fleet payments", inbox: "no daemon answers for fleet payments",
			},
		}}},
		alone(&failing{
			name:   "The stream of events is lost",
			cause:  "missing",
			strike: func(s *site) { s.loses(names.EventStream()) },
			said: said{
				alert: "WaymarkStreamBroken", summary: "Stream WAYMARK_EVENTS_payments_0 of fleet payments is missing",
				doctor: "FAILED streams: stream WAYMARK_EVENTS_payments_0 is missing", ready: "503 streams: stream WAYMARK_EVENTS_payments_0 is missing",
				stuck: noStream, page: noStream, inbox: noStream,
			},
		}),
		alone(&failing{
			name: "The bucket of checkpoints is lost",
			note: "The daemon makes it again.",
			strike: func(s *site) {
				s.loses("KV_" + names.CheckpointBucket())
				js := s.jetStream()
				require.Eventually(s, func() bool { _, err := js.Stream(s.Context(), "KV_"+names.CheckpointBucket()); return err == nil }, patience, 100*time.Millisecond)
			},
			said: said{alert: noAlert},
		}),
		alone(&failing{
			name:   "The bucket of segments is lost",
			cause:  "missing",
			strike: func(s *site) { s.loses("KV_" + names.SegmentBucket()) },
			said: said{
				alert: "WaymarkStreamBroken", summary: "Stream KV_WAYMARK_SEGMENTS_payments_0 of fleet payments is missing",
				doctor: "FAILED streams: stream KV_WAYMARK_SEGMENTS_payments_0 is missing", ready: "503 streams: stream KV_WAYMARK_SEGMENTS_payments_0 is missing",
			},
		}),
		alone(&failing{
			name:   "The object store of blobs is lost",
			cause:  "missing",
			strike: func(s *site) { s.loses("OBJ_" + schema.BlobBucket(payments)) },
			said: said{
				alert: "WaymarkStreamBroken", summary: "Stream OBJ_WAYMARK_BLOBS_payments of fleet payments is missing",
				doctor: "FAILED streams: stream OBJ_WAYMARK_BLOBS_payments is missing", ready: "503 streams: stream OBJ_WAYMARK_BLOBS_payments is missing",
			},
		}),
		{onSmallDisk, []*failing{{
			name:  "The disk fills up",
			cause: "disk",
			strike: func(s *site) {
				require.ErrorIs(s, os.WriteFile(filepath.Join(filepath.Dir(s.state), "ballast"), make([]byte, 640<<20), 0o600), syscall.ENOSPC)
				nc := s.connect("", access.Executor)
				for range 20 {
					require.NoError(s, nc.Publish(names.EventSubject("large"), make([]byte, 64<<10))) // it has no room
				}
				require.NoError(s, nc.Flush())
			},
			said: said{alert: "WaymarkDiskFull", summary: "The disk of daemon daemon-1 is full", doctor: "FAILED disk: 0 B of 640.0 MiB are free", ready: "503 disk: the disk of …was full"},
		}}},
		{embedded, []*failing{
			{
				name:   "The clock of the NATS server is an hour off",
				cause:  "clock",
				strike: func(s *site) { s.ahead(time.Hour) },
				mend:   func(s *site) { s.doctors = nil },
				said:   said{alert: noAlert, doctor: "FAILED clock: this machine and the server are …apart"},
			}, {
				name:  "The last backup is old",
				cause: "backup",
				strike: func(s *site) {
					began := schema.FormatTime(time.Now().Add(-8 * 24 * time.Hour))
					require.NoError(s, kvstore.PutBackup(s.Context(), s.jetStream(), payments, kvstore.BackupRecord{ID: "b1", Began: began, Ended: began, By: "ann"}))
					require.Eventually(s, func() bool {
						last := s.prom.get(s.health[0])["waymark_fleet_last_backup_timestamp_seconds"]
						return last != nil && last.GetMetric()[0].GetGauge().GetValue() < float64(time.Now().Add(-24*time.Hour).Unix())
					}, patience, 100*time.Millisecond)
					s.prom.at = s.prom.at.Add(time.Hour) // the rule remembers the last backup, before the first that of the fleet's start, for an hour
				},
				said: said{alert: "WaymarkBackupOld", summary: "The last backup of fleet payments began 8d…ago", doctor: "warning backup: the last one, b1"},
			},
		}},
		alone(&failing{
			name:  "All executors of a team are killed",
			cause: "executor",
			strike: func(s *site) {
				f, kill, _ := s.executor("", "one", serves("coder", busy))
				_, killToo, _ := s.executor("", "two", serves("coder", busy))
				runs := []string{"r1", "r2", "r3", "r4", "r5", "r6"}
				for _, run := range runs {
					s.submit(run, "coder")
				}
				s.works(f, runs...)
				s.prom.scrape()
				kill()
				killToo()
			},
			said: said{
				alert: "WaymarkExecutorsLost", summary: "runs of fleet payments lost their executor", stuck: "orphaned: its executor is gone",
				page: "no executor of coder is alive",
			},
		}),
		alone(&failing{
			name:   "No executor of an agent runs",
			cause:  "executor",
			strike: func(s *site) { s.submit("r1", "coder") },
			said: said{
				alert: "WaymarkRunsUnclaimed", summary: "1 runs of agent coder in fleet payments wait for an executor",
				stuck: "r1 submitted: no executor has claimed it", page: "no executor of coder is alive",
			},
		}),
		alone(&failing{
			name:  "An executor hangs in a tool",
			cause: "overdue",
			strike: func(s *site) {
				hangs := make(chan struct{})
				s.Cleanup(func() { close(hangs) })
				s.executor("", "one", serves("coder", func(ctx context.Context, run *publisher.Run) error {
					return call(ctx, run, 10*time.Millisecond, func(context.Context, publisher.Invocation) (publisher.ToolResult, error) {
						<-hangs
						return publisher.ToolResult{}, errors.New("too late")
					})
				}))
				s.submit("r1", "coder")
			},
			said: said{
				alert: "WaymarkRunsOverdue", summary: "1 runs of fleet payments are overdue", doctor: "warning overdue: 1 run with",
				stuck: "r1 overdue: tool compile has not returned within 10ms", page: "1 stuck …overdue: tool compile has not returned",
			},
		}),
		alone(&failing{
			name:  "An executor cannot begin its runs",
			cause: "no such prompt",
			strike: func(s *site) {
				s.executor("", "one", publisher.ExecutorSpec{Agents: map[string]func(context.Context, *publisher.Run) (publisher.Work, error){
					"coder": func(context.Context, *publisher.Run) (publisher.Work, error) {
						return nil, errors.New("no such prompt")
					},
				}})
				s.submit("r1", "coder")
			},
			said: said{
				alert: "WaymarkRunsQuarantined", summary: "1 runs of fleet payments are quarantined", doctor: "warning quarantine: 1 run quarantined",
				stuck: "r1 quarantined: 3 claims in a row made no progress; the last error: …no such prompt", page: "1 stuck …no such prompt", inbox: "r1 (coder)…no such prompt",
			},
		}),
		alone(&failing{
			name:  "The model's provider is down",
			cause: "503",
			strike: func(s *site) {
				down := func(context.Context, publisher.ModelRequest) (publisher.Answer, error) {
					return publisher.Answer{}, errors.New("503 Service Unavailable")
				}
				s.executor("", "one", publisher.ExecutorSpec{Loops: map[string]publisher.Loop{"coder": {Model: down, ModelTries: 1}}})
				for i := range 12 {
					s.submit(fmt.Sprint("r", i), "coder")
				}
			},
			said: said{
				alert: "WaymarkRunsRetrying", summary: "runs of fleet payments wait for a provider or a tool that fails",
				stuck: "waits for the provider until …503 Service Unavailable", page: "12 stuck …503 Service Unavailable",
			},
		}),
	}
}

// outdated lets clients of the only NATS server see an old version.
func (s *site) outdated() {
	s.Helper()
	s.stopServer(0)
	at, elsewhere := strings.TrimPrefix(s.addr[0], "nats://"), fmt.Sprintf("127.0.0.1:%d", natstest.FreePorts(s.T, 1)[0])
	config, err := os.ReadFile(s.config(0))
	require.NoError(s, err)
	require.NoError(s, os.WriteFile(s.config(0), bytes.Replace(config, []byte(at), []byte(elsewhere), 1), 0o600))
	s.startServer(0)
	require.True(s, s.servers[0].ReadyForConnections(patience))
	version := []byte(`"version":"` + server.VERSION + `"`)
	old := []byte(`"version":"2.12.1"`)
	require.Len(s, version, len(old))
	between(s.T, at, elsewhere, func(line []byte) []byte { return bytes.Replace(line, version, old, 1) })
}

// ahead lets the operator's doctor see the clock of the NATS server ahead by d.
func (s *site) ahead(d time.Duration) {
	s.Helper()
	end, err := natsconn.Discover(s.Context(), s.state)
	require.NoError(s, err)
	const hour, before = "2006-01-02T15", `"ts":"`
	stamp := regexp.MustCompile(before + `\d{4}-\d\d-\d\dT\d\d`)
	at := strings.TrimPrefix(end.URL, "nats://")
	address := between(s.T, "127.0.0.1:0", at, func(line []byte) []byte {
		return stamp.ReplaceAllFunc(line, func(b []byte) []byte {
			at, err := time.Parse(before+hour, string(b))
			if err != nil {
				return b
			}
			return []byte(at.Add(d).Format(before + hour))
		})
	})
	text, err := os.ReadFile(end.Context)
	require.NoError(s, err)
	context := filepath.Join(s.dir, "ahead.json")
	require.NoError(s, os.WriteFile(context, bytes.ReplaceAll(text, []byte(at), []byte(address)), 0o600))
	s.doctors = []string{"--context", context}
}

func with(servers, daemons int) func(*testing.T) *site {
	return func(t *testing.T) *site {
		t.Helper()
		return external(t, servers, daemons)
	}
}

func onSmallDisk(t *testing.T) *site {
	t.Helper()
	s := newSite(t)
	return s.embed(filepath.Join(natstest.Disk(t, 640), "state"))
}
