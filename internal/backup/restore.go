package backup

import (
	"context"
	stdjson "encoding/json" // configurations of streams have their form for it
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/waymarkio/waymark/kvstore"
)

// Target says how to restore a backup.
type Target struct {
	// Dir of the backup. Required.
	Dir string
	// Replicas of every stream; 0 means as they were. A lone server can have 1.
	Replicas int
	// Quota of each shard's log in bytes, as kvstore.FleetConfig has it; 0 means as it was.
	Quota int64
	// OnStream is called when a stream is about to be restored, with the bytes of its file. It may be nil.
	OnStream func(stream string, bytes uint64)
}

// Restored says what a restore did.
type Restored struct {
	Manifest *Manifest
	// Streams restored now, and those that an earlier try had restored.
	Streams, Before int
}

// Restore brings a backup into a server or account that does not have the fleet. The whole backup is checked first; the
// fleet exists once all of it is there. A daemon must not serve the fleet meanwhile. It may be repeated
// after a failure, and goes on. Checkpoints are made by the daemon that starts next.
//
// It returns [ErrFleetExists], [ErrRestore], and what [Check] returns.
func Restore(ctx context.Context, js jetstream.JetStream, to Target) (*Restored, error) {
	m, err := Check(to.Dir)
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
	settings := m.Settings
	if to.Replicas != 0 {
		settings.Replicas = to.Replicas
	}
	if to.Quota != 0 {
		settings.QuotaBytes = to.Quota
	}
	if err := settings.Config().Validate(); err != nil {
		return nil, err
	}
	_, _, err := kvstore.NewFleets(js).Get(ctx, m.Fleet)
	if err == nil {
		return nil, fmt.Errorf("%w: its settings are there", ErrFleetExists)
	}
	if !errors.Is(err, kvstore.ErrNotFound) && !errors.Is(err, kvstore.ErrStreamMissing) {
		return nil, err
	}
	todo, err := begunBefore(ctx, js, m)
	if err != nil {
		return nil, err
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

// begunBefore looks at the streams that are there. It returns those that are to be restored, and takes away what a restore of the
// same backup left unfinished. Nothing is changed when any stream is another's.
func begunBefore(ctx context.Context, js jetstream.JetStream, m *Manifest) ([]*Stream, error) {
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
		if info.Config.Metadata[kvstore.RestoredMetadata] != m.ID {
			return nil, fmt.Errorf("%w: stream %s is there, and not of this backup", ErrFleetExists, s.Name)
		}
		switch {
		case info.State.Msgs == s.Messages && info.State.LastSeq == s.LastSeq:
		case info.State.LastSeq < s.LastSeq:
			todo, unfinished = append(todo, s), append(unfinished, s)
		default:
			// A restore never gets beyond what the backup has: somebody wrote to it, or purged it, since.
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

// restoreStream makes one stream of its files.
func restoreStream(ctx context.Context, js jetstream.JetStream, m *Manifest, s *Stream, to *Target) error {
	about, err := readAbout(to.Dir, s)
	if err != nil {
		return err
	}
	changes := map[string]any{}
	if to.Replicas != 0 {
		changes["num_replicas"] = to.Replicas
	}
	if to.Quota != 0 && slices.ContainsFunc(streamNames(&m.Settings), func(n named) bool { return n.name == s.Name && n.kind == logStream }) {
		changes["max_bytes"] = to.Quota
	}
	if about.Config, err = adapt(about.Config, m.ID, changes); err != nil {
		return fmt.Errorf("stream %s: %w: %w", s.Name, ErrDamaged, err)
	}
	content, err := openChecked(filepath.Join(to.Dir, streamsDir, s.Name, contentName), s.Files[1])
	if err != nil {
		return err
	}
	has, err := restore(ctx, js, s.Name, about, content)
	if err == nil {
		err = content.finish() // it was checked before: this is for a file that was changed meanwhile
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

// adapt gives a stream's configuration the backup's name and what is to be otherwise. Everything else stays as it was.
func adapt(config stdjson.RawMessage, id string, changes map[string]any) (stdjson.RawMessage, error) {
	var members map[string]stdjson.RawMessage
	if err := stdjson.Unmarshal(config, &members); err != nil {
		return nil, err
	}
	if members == nil {
		return nil, fmt.Errorf("%w: a stream has no configuration", ErrDamaged)
	}
	var meta map[string]string
	if b, ok := members["metadata"]; ok {
		if err := stdjson.Unmarshal(b, &meta); err != nil {
			return nil, err
		}
	}
	if meta == nil {
		meta = map[string]string{}
	}
	// What the server itself notes there is of the server that had the stream.
	maps.DeleteFunc(meta, func(name, _ string) bool { return strings.HasPrefix(name, "_nats.") })
	meta[kvstore.RestoredMetadata] = id
	changes["metadata"] = meta
	for name, value := range changes {
		b, err := stdjson.Marshal(value)
		if err != nil {
			return nil, err
		}
		members[name] = b
	}
	delete(members, "placement") // it names servers and tags of where the stream was
	return stdjson.Marshal(members)
}

// Check reads a whole backup and compares every file with the manifest: sums, sizes, and that each stream is whole, in order and
// ends where it should. It needs no server. It returns [ErrNotABackup], [ErrFormat] or [ErrDamaged], with all files that are.
func Check(dir string) (*Manifest, error) {
	m, err := Open(dir)
	if err != nil {
		return nil, err
	}
	var errs []error
	for i := range m.Streams {
		if err := checkStream(dir, &m.Streams[i]); err != nil {
			errs = append(errs, fmt.Errorf("stream %s: %w", m.Streams[i].Name, err))
		}
	}
	return m, errors.Join(errs...)
}

func checkStream(dir string, s *Stream) error {
	about, err := readAbout(dir, s)
	if err != nil {
		return err
	}
	var config struct {
		Name string `json:"name"`
	}
	if err := stdjson.Unmarshal(about.Config, &config); err != nil || config.Name != s.Name {
		return fmt.Errorf("%w: its configuration is that of %.80q", ErrDamaged, config.Name)
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
		return nil
	})
	// A sum that differs says more than where the content breaks.
	if sumErr := f.finish(); sumErr != nil {
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

// Partial lists the directories beside a backup's that backups which broke off left behind: they are no backups, and may be
// removed.
func Partial(dir string) ([]string, error) {
	parent, base := filepath.Split(filepath.Clean(dir))
	entries, err := os.ReadDir(filepath.Join(parent, "."))
	if err != nil {
		return nil, err
	}
	var left []string
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), "."+base+".partial-") {
			left = append(left, filepath.Join(parent, e.Name()))
		}
	}
	return left, nil
}
