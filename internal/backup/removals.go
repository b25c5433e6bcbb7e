package backup

import (
	"context"
	"encoding/base64"
	stdjson "encoding/json" // the form of object descriptions is defined by it
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/nats-io/nats.go"

	"github.com/waymarkio/waymark/internal/eventlog"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

// A run can be removed while the streams are read, one after the other. Nothing of a run is deleted before the
// tombstone of its removal is in the log, so the leader's state of it after all streams are read decides:
//
//	tombstone in the log's file, of the record in the segments' file ──▶ the run stays as read: the restored fleet continues its removal
//	no tombstone on the leader                                       ──▶ the run was read completely: it stays, and an order does not
//	tombstone only on the leader                                     ──▶ the run may have been read in part: its content is left out, and
//	                                                                     with a record in the segments' file the tombstone replaces it

// removal is the state of one run's removal in a backup.
type removal struct {
	// order and receipt: the segments' file has them.
	order   *schema.Erasure
	receipt bool
	// marked: the log's file has a tombstone of one of them.
	marked bool
	// last message of the run in the log's file.
	last uint64
	// decided: the leader has the tombstone, or the receipt.
	decided bool
}

// gone reports whether the run's content is left out of the backup.
func (r *removal) gone() bool { return r != nil && r.decided && !r.marked }

// withdrawn reports whether the order to remove the run is left out: the run stays, or has no events.
func (r *removal) withdrawn() bool { return r.order != nil && !r.marked && (!r.decided || r.last == 0) }

// recordOf returns the run of a removal record's key in the segment bucket; "" for other keys.
func recordOf(key string) string {
	for _, prefix := range []string{schema.ErasingKeyPrefix, schema.ErasedKeyPrefix, schema.SettlingKeyPrefix} {
		if run, ok := strings.CutPrefix(key, prefix); ok {
			return run
		}
	}
	return ""
}

// removals are those of a shard, by run.
type removals map[string]*removal

func (rs removals) of(run string) *removal {
	r := rs[run]
	if r == nil {
		r = &removal{}
		rs[run] = r
	}
	return r
}

// note handles a message of the segments' file, and reports whether it is the record of a removal.
func (rs removals) note(key string, value []byte) (bool, error) {
	run := recordOf(key)
	if run == "" {
		return false, nil
	}
	if len(value) == 0 {
		return true, nil // it was withdrawn
	}
	switch {
	case strings.HasPrefix(key, schema.ErasedKeyPrefix):
		rs.of(run).receipt = true
	case strings.HasPrefix(key, schema.ErasingKeyPrefix):
		order, err := kvstore.DecodeErasure(run, value)
		if err != nil {
			return true, err
		}
		rs.of(run).order = order
	}
	return true, nil
}

// meet handles a message of the log's file.
func (rs removals) meet(run string, m *message) {
	r := rs[run]
	if r == nil {
		return
	}
	r.last = m.seq
	if r.marked || r.order == nil && !r.receipt {
		return
	}
	header := nats.Header{}
	if len(m.header) > 0 {
		var err error
		if header, err = nats.DecodeHeadersMsg(m.header); err != nil {
			return // damaged headers are no tombstone
		}
	}
	e, err := schema.Decode(header, m.body)
	r.marked = err == nil && schema.ErasedMark(e) && (r.receipt || r.order.Marks(e.ID))
}

// changes reports whether an order must be left out.
func (rs removals) changes() bool {
	for _, r := range rs {
		if r.withdrawn() {
			return true
		}
	}
	return false
}

// decide asks the leaders about each removal whose end the files do not show. All streams must have been read before.
func (rs removals) decide(ctx context.Context, t *taker, shard int) error {
	store, err := kvstore.OpenShard(t.js, t.m.Settings, shard, t.cfg.Actor)
	if err != nil {
		return err
	}
	for run, r := range rs {
		if r.marked || r.decided {
			continue
		}
		if r.decided, err = decided(ctx, t, store, run); err != nil {
			return fmt.Errorf("removal of run %s: %w", run, err)
		}
	}
	return nil
}

// decided reports whether a run's removal is decided.
func decided(ctx context.Context, t *taker, store *kvstore.Shard, run string) (bool, error) {
	record, _, done, err := store.Erasures.Get(ctx, run)
	switch {
	case errors.Is(err, kvstore.ErrNotFound):
		return false, nil // withdrawn
	case err != nil || done:
		return done, err
	}
	// The tombstone was stored by compare-and-set on the run's last event, so nothing is between the two.
	next, found, err := eventlog.Next(ctx, t.js, store.Names, run, record.Position.Stream+1)
	return found && record.Decided() && record.Marks(schema.PositionOf(&next).ID), err
}

// mark is the message that replaces a run's content.
func (r *removal) mark(t *taker, names schema.Names, run string) message {
	id := "restored"
	if r.order != nil {
		id = r.order.ID
	}
	e := schema.NewErased(t.cfg.Fleet, t.cfg.Actor, run, id+"."+t.m.ID, t.cfg.Now())
	header, body := e.Encode()
	return message{subject: names.EventSubject(run), seq: r.last, header: encodeHeader(header), body: body}
}

// leaveOut also leaves out large payloads and dead letters of runs that are not in the backup.
func (t *taker) leaveOut(gone map[string]bool, letters, blobs *Stream) error {
	if len(gone) == 0 {
		return nil
	}
	if err := t.leave(letters, func(m *message) bool {
		tokens := strings.Split(m.subject, ".")
		return gone[tokens[len(tokens)-1]]
	}); err != nil {
		return err
	}
	// Content with a run's prefix belongs to that run, whatever describes it. For content without one, the
	// description names the owner, and content described by a run that stays is kept.
	prefix := "$O." + schema.BlobBucket(t.cfg.Fleet)
	theirs, others, marks := map[string]bool{}, map[string]bool{}, map[string]bool{}
	for run := range gone {
		marks[schema.BlobMark(run)] = true
	}
	runOf := func(subject string) (string, bool) {
		about, ok := strings.CutPrefix(subject, prefix+".M.")
		if !ok {
			return "", false
		}
		name, err := base64.URLEncoding.DecodeString(about)
		run, _, named := strings.Cut(string(name), ".")
		return run, err == nil && named
	}
	if err := t.messages(blobs, func(m *message) error {
		run, ok := runOf(m.subject)
		if !ok {
			return nil
		}
		if nuid := payloadName(m.body); gone[run] {
			theirs[nuid] = true
		} else {
			others[nuid] = true
		}
		return nil
	}); err != nil {
		return err
	}
	return t.leave(blobs, func(m *message) bool {
		if run, ok := runOf(m.subject); ok {
			return gone[run]
		}
		nuid, ok := strings.CutPrefix(m.subject, prefix+".C.")
		if mark, marked := schema.MarkOfBlobID(nuid); marked {
			return ok && marks[mark]
		}
		return ok && theirs[nuid] && !others[nuid]
	})
}

// payloadName is the id of a payload's content, from its description, which an executor wrote. It is empty for an
// invalid one.
func payloadName(description []byte) string {
	var about struct {
		NUID string `json:"nuid"`
	}
	if stdjson.Unmarshal(description, &about) != nil || !schema.ValidName(about.NUID) {
		return ""
	}
	return about.NUID
}

// leave rewrites a stream's file without some messages, if it has any of them.
func (t *taker) leave(s *Stream, what func(*message) bool) error {
	any := false
	if err := t.messages(s, func(m *message) error {
		any = any || what(m)
		return nil
	}); err != nil || !any {
		return err
	}
	if err := t.rewrite(s, nil, func(m *message) bool { return !what(m) }); err != nil {
		return fmt.Errorf("stream %s: %w", s.Name, err)
	}
	return nil
}

// messages reads the messages of a stream's file.
func (t *taker) messages(s *Stream, yield func(*message) error) error {
	f, err := os.Open(t.path(s.Name, contentName))
	if err != nil {
		return err
	}
	err = readContent(f, func(stdjson.RawMessage) error { return nil }, yield)
	if err := errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("stream %s: %w", s.Name, err)
	}
	return nil
}
