package backup

import (
	"context"
	stdjson "encoding/json" // configurations of streams have their form for it
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/waymarkio/waymark/kvstore"

	"github.com/waymarkio/waymark/schema"
)

// Target describes the restore of a backup.
type Target struct {
	// Dir of the backup. Required.
	Dir string
	// MaxBytes bounds the messages of the backup when unpacked; 0 means 100 times the size of its files, and 64 MiB at
	// least.
	MaxBytes int64
	// Replicas of every stream; 0 means as before. A single server can have 1.
	Replicas int
	// Quota of each shard's log in bytes, as in kvstore.FleetConfig; 0 means as before.
	Quota int64
	// OnStream is called when a stream is about to be restored, with the bytes of its file. It may be nil.
	OnStream func(stream string, bytes uint64)
}

// Restored is the result of a restore.
type Restored struct {
	Manifest *Manifest
	// Streams restored now, and those that an earlier try had restored.
	Streams, Before int
}

// Restore restores a backup into a server or account without the fleet, or in place of a fleet in which no event was ever
// stored and whose daemons are stopped. The whole backup is checked first; the fleet exists once all of it is there. A daemon
// must not serve the fleet during the restore. It may be repeated after a failure, and continues. The daemon that starts next
// makes the checkpoints.
//
// It returns [ErrFleetExists], [ErrServed], [ErrRestore], [ErrLone], and what [Check] returns.
func Restore(ctx context.Context, js jetstream.JetStream, to Target) (*Restored, error) {
	m, err := Check(to.Dir, to.MaxBytes)
	if err != nil {
		return nil, err
	}
	done, err := bringBack(ctx, js, m, &to)
	if err != nil {
		return nil, fmt.Errorf("restore fleet %s: %w", m.Fleet, err)
	}
	return done, nil
}

func bringBack(ctx context.Context, js jetstream.JetStream, m *Manifest, to *Target) (*Restored, error) {
	settings := to.settings(m)
	if err := kvstore.Adoptable(ctx, js, settings); err != nil {
		return nil, err
	}
	there, _, err := kvstore.NewFleets(js).Get(ctx, m.Fleet)
	known := err == nil
	if !known && !errors.Is(err, kvstore.ErrNotFound) && !errors.Is(err, kvstore.ErrStreamMissing) {
		return nil, err
	}
	todo, err := begunBefore(ctx, js, m, &there)
	if err != nil {
		return nil, err
	}
	if known {
		switch err := kvstore.Vacate(ctx, js, there); {
		case errors.Is(err, kvstore.ErrExists):
			return nil, fmt.Errorf("%w: %w", ErrFleetExists, err)
		case errors.Is(err, kvstore.ErrHeld):
			return nil, fmt.Errorf("%w: %w", ErrServed, err)
		case err != nil:
			return nil, err
		}
	}
	done := &Restored{Manifest: m, Before: len(m.Streams) - len(todo)}
	for _, s := range todo {
		if to.OnStream != nil {
			to.OnStream(s.Name, uint64(s.Files[1].Bytes)) //nolint:gosec // a size
		}
		if err := restoreStream(ctx, js, m, s, to); err != nil {
			return nil, err
		}
		done.Streams++
	}
	if err := kvstore.Adopt(ctx, js, settings); err != nil {
		if errors.Is(err, kvstore.ErrExists) {
			err = fmt.Errorf("%w: %w", ErrFleetExists, err)
		}
		return nil, err
	}
	return done, nil
}

// begunBefore checks the existing streams. It returns those to restore, and deletes those that a restore of the same
// backup left unfinished. Nothing is changed if any stream has another origin. Streams of the fleet with the settings there
// make room.
func begunBefore(ctx context.Context, js jetstream.JetStream, m *Manifest, there *schema.FleetSettings) ([]*Stream, error) {
	var todo, unfinished []*Stream
	for i := range m.Streams {
		s := &m.Streams[i]
		has, err := js.Stream(ctx, s.Name)
		if errors.Is(err, jetstream.ErrStreamNotFound) {
			todo = append(todo, s)
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("stream %s: %w", s.Name, err)
		}
		info := has.CachedInfo()
		if _, _, err := kvstore.StreamOf(there, &info.Config, 0); there.Format != 0 && err == nil {
			todo = append(todo, s)
			continue
		}
		if info.Config.Metadata[kvstore.RestoredMetadata] != m.ID {
			return nil, fmt.Errorf("%w: stream %s is there, and not of this backup", ErrFleetExists, s.Name)
		}
		switch {
		case info.State.Msgs == s.Messages && info.State.LastSeq == s.LastSeq:
		case info.State.LastSeq < s.LastSeq:
			todo, unfinished = append(todo, s), append(unfinished, s)
		default:
			// A restore never gets beyond the backup: a client wrote to the stream, or purged it, since.
			return nil, fmt.Errorf("%w: stream %s was restored from this backup and used since: it has %d messages up to %d, the backup has %d up to %d; nothing was changed",
				ErrFleetExists, s.Name, info.State.Msgs, info.State.LastSeq, s.Messages, s.LastSeq)
		}
	}
	for _, s := range unfinished {
		if err := js.DeleteStream(ctx, s.Name); err != nil {
			return nil, fmt.Errorf("stream %s, which an earlier restore began: %w", s.Name, err)
		}
	}
	return todo, nil
}

// restoreStream restores one stream from its files.
func restoreStream(ctx context.Context, js jetstream.JetStream, m *Manifest, s *Stream, to *Target) error {
	about, err := readAbout(to.Dir, s)
	if err != nil {
		return err
	}
	config, had, err := checkedConfig(&about, m, s)
	if err != nil {
		return fmt.Errorf("stream %s: %w", s.Name, err)
	}
	if config, err = adapt(config, had, m, to); err == nil {
		about.Config, err = stdjson.Marshal(config)
	}
	if err != nil {
		return fmt.Errorf("stream %s: %w", s.Name, err)
	}
	content, err := openChecked(filepath.Join(to.Dir, streamsDir, s.Name, contentName), s.Files[1])
	if err != nil {
		return err
	}
	has, err := restore(ctx, js, s.Name, about, content)
	if err == nil {
		err = content.finish() // it was checked before: this finds a file that was changed since
	}
	if errors.Is(err, ErrRestore) && config.Replicas > 1 && js.Conn().ConnectedClusterName() == "" {
		err = fmt.Errorf("stream %s: %w, and it is to have %d: %w", s.Name, ErrLone, config.Replicas, err)
	}
	if err = errors.Join(err, content.Close()); err != nil {
		return err
	}
	if has.Messages != s.Messages || has.LastSeq != s.LastSeq {
		return fmt.Errorf("stream %s: %w: it has %d messages up to %d, the backup has %d up to %d", s.Name, ErrRestore,
			has.Messages, has.LastSeq, s.Messages, s.LastSeq)
	}
	return nil
}

// readAbout reads a stream's description.
func readAbout(dir string, s *Stream) (description, error) {
	var about description
	f, err := openChecked(filepath.Join(dir, streamsDir, s.Name, aboutName), s.Files[0])
	if err != nil {
		return about, err
	}
	b, err := io.ReadAll(io.LimitReader(f, maxManifest))
	if err == nil {
		err = f.finish()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return about, err
	}
	if err := stdjson.Unmarshal(b, &about); err != nil {
		return about, fmt.Errorf("stream %s: %w: %w", s.Name, ErrDamaged, err)
	}
	return about, nil
}

// checkedConfig returns the configuration of a stream to restore: the one of this version. A description with another
// one is [ErrDamaged]: a stream with it would send its messages elsewhere, accept foreign ones or drop some, and the
// daemon would refuse it.
func checkedConfig(about *description, m *Manifest, s *Stream) (jetstream.StreamConfig, state, error) {
	want, differences, has, err := about.configOf(&m.Settings, s)
	switch {
	case err != nil:
		return want, has, err
	case len(differences) > 0:
		d := differences[0]
		return want, has, fmt.Errorf("%w: %d flags of its configuration are not those of the fleet's settings; %s is %.80s, it must be %.80s", ErrDamaged,
			len(differences), d.Flag, d.Have, d.Want)
	case has.FirstSeq != s.FirstSeq || has.LastSeq != s.LastSeq || want.FirstSeq > s.LastSeq+1:
		return want, has, fmt.Errorf("%w: its description says %d to %d, begun at %d, the manifest %d to %d", ErrDamaged, has.FirstSeq, has.LastSeq,
			want.FirstSeq, s.FirstSeq, s.LastSeq)
	}
	return want, has, nil
}

// settings are the backup's, changed by the target.
func (to *Target) settings(m *Manifest) schema.FleetSettings {
	settings := m.Settings
	if to.Replicas != 0 {
		settings.Replicas = to.Replicas
	}
	if to.Quota != 0 {
		settings.QuotaBytes = to.Quota
	}
	return settings
}

// adapt adds the backup's id and the target's settings to a stream's configuration.
func adapt(config jetstream.StreamConfig, has state, m *Manifest, to *Target) (jetstream.StreamConfig, error) {
	settings := to.settings(m)
	used := has.stored()
	if to.Quota != 0 {
		config.MaxBytes = used // a limit that drops nothing, if the new quota has a smaller one
	}
	config, _, err := kvstore.StreamOf(&settings, &config, max(used, config.MaxBytes))
	if err != nil {
		return config, err
	}
	meta := map[string]string{}
	for name, value := range config.Metadata {
		// The server's own notes there belong to the server that had the stream.
		if !strings.HasPrefix(name, "_nats.") {
			meta[name] = value
		}
	}
	meta[kvstore.RestoredMetadata] = m.ID
	config.Metadata = meta
	return config, nil
}

// Check reads a whole backup and compares every file with the manifest: sums, sizes, and that each stream is
// complete, in order, has this version's configuration, only has messages of its subjects, and ends where it should.
// maxBytes is that of [Target]. It needs no server. It returns [ErrNotABackup], [ErrFormat], [ErrTooLarge] or [ErrDamaged], naming
// all damaged files.
func Check(dir string, maxBytes int64) (*Manifest, error) {
	m, err := Open(dir)
	if err != nil {
		return nil, err
	}
	var errs []error
	left := uint64(max(maxBytes, 0)) //nolint:gosec // not below 0
	if left == 0 {
		left = max(64<<20, 100*uint64(max(m.Bytes(), 0))) //nolint:gosec // not below 0
	}
	for i := range m.Streams {
		if err := checkStream(dir, m, &m.Streams[i], &left); err != nil {
			errs = append(errs, fmt.Errorf("stream %s: %w", m.Streams[i].Name, err))
		}
	}
	return m, errors.Join(errs...)
}

// takes reports whether a stream with the filter stores a message of the subject.
func takes(filter, subject string) bool {
	for {
		f, filterRest, more := strings.Cut(filter, ".")
		token, rest, moreTokens := strings.Cut(subject, ".")
		switch {
		case f == ">":
			return subject != ""
		case token == "", f != "*" && f != token, more != moreTokens:
			return false
		case !more:
			return true
		}
		filter, subject = filterRest, rest
	}
}

// checkStream checks one stream. It subtracts the stream's messages from the bytes left for the whole backup.
func checkStream(dir string, m *Manifest, s *Stream, left *uint64) error {
	about, err := readAbout(dir, s)
	if err != nil {
		return err
	}
	config, _, err := checkedConfig(&about, m, s)
	if err != nil {
		return err
	}
	f, err := openChecked(filepath.Join(dir, streamsDir, s.Name, contentName), s.Files[1])
	if err != nil {
		return err
	}
	n, last := uint64(0), uint64(0)
	err = readContent(f, func(b stdjson.RawMessage) error {
		var st state
		if err := stdjson.Unmarshal(b, &st); err != nil || st.LastSeq != s.LastSeq || st.FirstSeq != s.FirstSeq {
			return fmt.Errorf("%w: it says %d to %d, the manifest %d to %d", ErrDamaged, st.FirstSeq, st.LastSeq, s.FirstSeq, s.LastSeq)
		}
		return nil
	}, func(m *message) error {
		n, last = n+1, m.seq
		if m.stored() > *left {
			return fmt.Errorf("%w: after message %d of %d", ErrTooLarge, m.seq, s.Messages)
		}
		*left -= m.stored()
		if !slices.ContainsFunc(config.Subjects, func(filter string) bool { return takes(filter, m.subject) }) {
			return fmt.Errorf("%w: message %d has subject %.80q, which is none of the stream's", ErrDamaged, m.seq, m.subject)
		}
		return nil
	})
	// A different sum says more than where the content breaks.
	if sumErr := f.finish(); sumErr != nil && !errors.Is(err, ErrTooLarge) {
		err = sumErr
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	if n != s.Messages || last > s.LastSeq {
		return fmt.Errorf("%w: it has %d messages up to %d, the manifest says %d up to %d", ErrDamaged, n, last, s.Messages, s.LastSeq)
	}
	return nil
}
