package backup

import (
	"context"
	"encoding/base64"
	stdjson "encoding/json" // the form of object descriptions is defined by it
	"errors"
	"fmt"
	"maps"
	"os"
	"strconv"
	"strings"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/waymarkio/waymark/internal/base/keyring"
	"github.com/waymarkio/waymark/internal/nats/eventlog"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

// A run can be removed while the streams are read, one after the other. Nothing of a run is deleted before the event
// that removes it is in the log, so the leader's log after all streams are read decides:
//
//	run.erased in the log's file ──▶ the run stays as read: the restored fleet continues its removal
//	no run.erased on the leader  ──▶ the run was read completely
//	run.erased after the file    ──▶ the run may have been read in part: its content is left out, and run.erased replaces it

// removedSince finds the runs that were removed after a shard's log was read, and the messages that remove them.
func (t *taker) removedSince(ctx context.Context, names schema.Names, cut schema.StreamSequence) (map[string]message, error) {
	keys, err := keyring.Parse(t.cfg.Fleet, t.m.Settings.Keys)
	if err != nil {
		return nil, err
	}
	shard, err := kvstore.OpenShard(t.js, t.m.Settings, names.Shard, t.cfg.Actor)
	if err != nil {
		return nil, err
	}
	usage, err := shard.Usage(ctx)
	if err != nil || usage.Last <= cut {
		return nil, err
	}
	follower, err := eventlog.Follow(ctx, t.js.Conn(), t.js, names, eventlog.FollowFrom{Stream: cut + 1, HeadersOnly: true})
	if err != nil {
		return nil, err
	}
	defer follower.Close(ctx, t.js)
	removed := map[string]message{}
	for pending := follower.Pending(); pending > 0; {
		a, err := follower.Next(ctx)
		if err != nil {
			return nil, err
		}
		if pending = a.Pending; a.Record.Stream >= usage.Last {
			pending = 0
		}
		if !schema.IsErasedMark(&a.Record) {
			continue
		}
		rec, there, err := eventlog.At(ctx, t.js, names, a.Record.Stream)
		if err != nil {
			return nil, err
		}
		if !there {
			continue // a later one replaced it
		}
		if r := schema.Removes(keys, &rec); r != nil {
			removed[r.Run] = removing(names, &rec)
		}
	}
	return removed, nil
}

// removing is the message of a record that removes its run. It keeps the place for which it was signed.
func removing(names schema.Names, rec *schema.Record) message {
	header := maps.Clone(rec.Header)
	header[jetstream.ExpectedLastSubjSeqHeader] = []string{strconv.FormatUint(uint64(rec.Behind), 10)}
	e, _ := schema.Decode(rec.Header, rec.Body) // it removes a run, so it is readable
	return message{subject: names.EventSubject(e.Subject), at: rec.Stored, header: encodeHeader(header), body: rec.Body}
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
