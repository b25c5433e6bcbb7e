package nemesis_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go"

	"github.com/waymarkio/waymark/internal/base/failpoint"
	"github.com/waymarkio/waymark/internal/harness/checker"
	"github.com/waymarkio/waymark/internal/harness/testbin"
	"github.com/waymarkio/waymark/internal/nats/eventlog"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

func TestPowerCut_AimedAtOneServer_LosesNothing(t *testing.T) {
	if testing.Short() {
		t.Skip("short: real servers and programs are broken")
	}
	powerCuts(t, 1, 4, aimed)
}

func TestPowerCut_AimedAtThreeServers_LosesNothing(t *testing.T) {
	if testing.Short() {
		t.Skip("short: real servers and programs are broken")
	}
	if !testbin.Full(t) {
		t.Skip("sample: cuts of one server, and of three at any time, take its place: set WAYMARK_E2E_FULL=1, or run make chaos-power")
	}
	powerCuts(t, 3, 4, aimed)
}

// TestPowerCut_UnsyncedSegments_AreFound switches on the mutant that does not sync segments before it purges their events.
func TestPowerCut_UnsyncedSegments_AreFound(t *testing.T) {
	if testing.Short() {
		t.Skip("short: real servers and programs are broken")
	}
	foundByCuts(t, "purge-unsynced", func(r *round, _ uint64) error { return r.halts(failpoint.AfterPurge, 1+r.storm.rnd.IntN(8)) })
}

// aimed takes four moments in turn: a segment is stored and its events are in the log; an event is acknowledged; events are purged, under
// load or while the executors are stopped, so that no write of theirs syncs the purge; an event is acknowledged.
func aimed(r *round, n uint64) error {
	switch n % 4 {
	case 0:
		return r.halts(failpoint.AfterSegmentPut, 1+r.storm.rnd.IntN(20))
	case 2:
		if n%8 == 2 {
			return r.halts(failpoint.AfterPurge, 1+r.storm.rnd.IntN(8))
		}
		return errors.Join(r.rest(), r.halts(failpoint.AfterPurge, 1))
	default:
		return errors.Join(r.rest(), r.acknowledged(n))
	}
}

// rest stops the executors.
func (r *round) rest() error {
	for _, p := range r.executors {
		if err := errors.Join(p.pause(), stands(r.tb.Context(), p)); err != nil {
			return err
		}
	}
	return nil
}

// goOn resumes the executors, and ends daemons that have a failpoint: heal starts them again without it.
func (r *round) goOn() error {
	for _, p := range r.executors {
		if err := p.resume(); err != nil {
			return err
		}
	}
	if r.halt == "" {
		return nil
	}
	r.halt = ""
	return killAll(r.daemons)
}

func killAll(list []*process) error {
	for _, p := range list {
		if err := p.kill(); err != nil {
			return err
		}
	}
	return nil
}

// acknowledged returns right after the acknowledgement of an event.
func (r *round) acknowledged(n uint64) error {
	id := fmt.Sprintf("aimed-%d-%d", r.seed, n)
	token := checker.Token(id, 0)
	op := r.record.Begin(checker.Op{Actor: "judge", Kind: checker.Publish, Run: id, Epoch: 1, Sequence: 1, Token: token, Detail: schema.RunStarted})
	run, err := r.fleet.Start(r.tb.Context(), publisher.RunSpec{ID: id, Task: token})
	r.record.End(op, func(op *checker.Op) { Ended(op, err) })
	if err != nil {
		return err
	}
	token = checker.Token(id, 1)
	return Publish(r.tb.Context(), r.record, checker.Op{Actor: "judge", Token: token, Detail: schema.MessageAdded}, run, func(ctx context.Context) error {
		return run.AddMessage(ctx, schema.Message{Role: schema.RoleUser, Parts: []schema.Part{schema.Text(token)}})
	})
}

// halts restarts the daemons and waits until one of them stops itself at a failpoint, when it gets there for the nth time. It fails unless
// the servers show that the segment is stored, or that n purges are done.
func (r *round) halts(at failpoint.Point, nth int) error {
	if err := killAll(r.daemons); err != nil {
		return err
	}
	subject, done, least := "$JS.API.STREAM.PURGE.*", r.isPurged, nth
	if at == failpoint.AfterSegmentPut {
		subject, done, least = "$KV.*.*.*", r.isPut, 1 // the events of earlier segments may be purged by now
	}
	seen, err := r.js.Conn().SubscribeSync(subject)
	if err != nil {
		return err
	}
	r.halt = fmt.Sprintf("%s:%d:stop", at, nth)
	for _, d := range r.daemons {
		if err := d.start(); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeoutCause(r.tb.Context(), patience, fmt.Errorf("no daemon stops at %s", r.halt))
	defer cancel()
	if err := stands(ctx, r.daemons...); err != nil {
		return err
	}
	met := 0
	for met < least {
		msg, err := seen.NextMsgWithContext(ctx)
		if err != nil {
			return fmt.Errorf("a daemon stands at %s, and the servers show %d of %d: %w", r.halt, met, least, err)
		}
		ok, err := done(ctx, msg)
		if err != nil {
			return err
		}
		if ok {
			met++
		}
	}
	r.tb.Logf("seed %d: a daemon stands at %s", r.seed, r.halt)
	return seen.Unsubscribe()
}

// isPurged reports whether a message asked for a purge of a run that was done.
func (r *round) isPurged(ctx context.Context, msg *nats.Msg) (bool, error) {
	var request struct {
		Filter string `json:"filter"`
		Below  uint64 `json:"seq"`
	}
	if err := json.Unmarshal(msg.Data, &request); err != nil || request.Below == 0 || !strings.Contains(msg.Subject, ".WAYMARK_EVENTS_") {
		return false, err
	}
	first, err := r.firstFrom(ctx, request.Filter[strings.LastIndexByte(request.Filter, '.')+1:], 1)
	return uint64(first) >= request.Below, err
}

// isPut reports whether a message is a segment that is stored, and the log has its events.
func (r *round) isPut(ctx context.Context, msg *nats.Msg) (bool, error) {
	if !strings.HasPrefix(msg.Subject, "$KV.WAYMARK_SEGMENTS_") {
		return false, nil
	}
	info, err := schema.DecodeSegmentInfo(msg.Data)
	if err != nil {
		return false, err
	}
	shard, err := shardOf(ctx, r.js, info.Run)
	if err != nil {
		return false, err
	}
	if _, err := shard.Segments.GetFresh(ctx, info.Run, info.Number); err != nil {
		return false, err
	}
	first, err := r.firstFrom(ctx, info.Run, info.First.Stream)
	return first == info.First.Stream, err
}

// firstFrom is the position of the first event of a run from a position on, from the log's leader.
func (r *round) firstFrom(ctx context.Context, run string, from schema.StreamSequence) (schema.StreamSequence, error) {
	shard, err := shardOf(ctx, r.js, run)
	if err != nil {
		return 0, err
	}
	rec, found, err := eventlog.Next(ctx, r.js, shard.Names, run, from)
	if err == nil && !found {
		err = fmt.Errorf("run %s has no event from %d on", run, from)
	}
	return rec.Stream, err
}
