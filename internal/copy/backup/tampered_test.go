package backup_test

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/copy/backup"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

// tamper changes a backup's manifest, and corrects its sum.
func tamper(t *testing.T, dir string, change func(manifest map[string]any)) {
	t.Helper()
	name := filepath.Join(dir, "manifest.json")
	b, err := os.ReadFile(name)
	require.NoError(t, err)
	var manifest map[string]any
	require.NoError(t, json.Unmarshal(b, &manifest))
	change(manifest)
	require.NoError(t, os.WriteFile(name, backup.Resum(t, manifest), 0o600))
}

// tamperFile changes a file of a backup's first stream, and the manifest with it.
func tamperFile(t *testing.T, dir string, number int, change func([]byte) []byte) {
	t.Helper()
	tamper(t, dir, func(manifest map[string]any) {
		s := as[map[string]any](t, as[[]any](t, manifest["streams"])[0])
		file := as[map[string]any](t, as[[]any](t, s["files"])[number])
		name := filepath.Join(dir, "streams", as[string](t, s["name"]), as[string](t, file["name"]))
		b, err := os.ReadFile(name)
		require.NoError(t, err)
		b = change(b)
		require.NoError(t, os.WriteFile(name, b, 0o600))
		sum := sha256.Sum256(b)
		file["bytes"], file["sha256"] = len(b), hex.EncodeToString(sum[:])
	})
}

// as is a member of a decoded value.
func as[T any](t *testing.T, member any) T {
	t.Helper()
	v, ok := member.(T)
	require.True(t, ok, "%v", member)
	return v
}

func TestRestore_TamperedBackup_NothingIsWritten(t *testing.T) {
	t.Parallel()
	_, _, dir, _ := small(t)
	member := func(object string) func(string, any) func(map[string]any) {
		return func(name string, value any) func(map[string]any) {
			return func(of map[string]any) { as[map[string]any](t, of[object])[name] = value }
		}
	}
	config, state, setting := member("config"), member("state"), member("settings")
	other := empty(t)
	for name, c := range map[string]struct {
		describe, manifest func(map[string]any)
	}{
		"name":              {describe: config("name", "OTHER")},
		"subjects":          {describe: config("subjects", []string{"foreign.>"})},
		"one more subject":  {describe: config("subjects", []string{schema.NamesOf(fleet, 0).EventSubjects(), "foreign.>"})},
		"bytes":             {describe: config("max_bytes", 1<<40)},
		"no bound":          {describe: config("max_bytes", -1)},
		"messages":          {describe: config("max_msgs", 1)},
		"age":               {describe: config("max_age", 1e9)},
		"message size":      {describe: config("max_msg_size", 1<<20)},
		"per subject":       {describe: config("max_msgs_per_subject", 1)},
		"discard":           {describe: config("discard", "old")},
		"retention":         {describe: config("retention", "workqueue")},
		"storage":           {describe: config("storage", "memory")},
		"sources":           {describe: config("sources", []any{map[string]any{"name": "FOREIGN"}})},
		"mirror":            {describe: config("mirror", map[string]any{"name": "FOREIGN"})},
		"republish":         {describe: config("republish", map[string]any{"src": ">", "dest": "stolen.>"})},
		"transform":         {describe: config("subject_transform", map[string]any{"src": ">", "dest": "moved.>"})},
		"replicas":          {describe: config("num_replicas", 3)},
		"sealed":            {describe: config("sealed", true)},
		"first sequence":    {describe: config("first_seq", 1<<40)},
		"no configuration":  {describe: func(about map[string]any) { delete(about, "config") }},
		"state":             {describe: state("last_seq", 1<<40)},
		"settings' format":  {manifest: setting("format", 2)},
		"provisioned":       {manifest: setting("shards", 200)},
		"settings' default": {manifest: setting("checkpoints_per_run", 0)},
		"settings' quota":   {manifest: setting("quota_bytes", 1<<30)},
	} {
		t.Run(name, func(t *testing.T) {
			copied := filepath.Join(t.TempDir(), "backup")
			require.NoError(t, os.CopyFS(copied, os.DirFS(dir)))
			if c.manifest != nil {
				tamper(t, copied, c.manifest)
			} else {
				tamperFile(t, copied, 0, func(b []byte) []byte {
					var about map[string]any
					require.NoError(t, json.Unmarshal(b, &about))
					c.describe(about)
					b, err := json.Marshal(about)
					require.NoError(t, err)
					return b
				})
			}
			_, err := backup.Restore(t.Context(), other.js, backup.Target{Dir: copied})
			require.Error(t, err)
			for stream := range other.js.StreamNames(t.Context()).Name() {
				t.Errorf("stream %s was written", stream)
				require.NoError(t, other.js.DeleteStream(t.Context(), stream))
			}
			_, err = backup.Check(copied, 0)
			require.Error(t, err, "waymark backup verify refuses it, too")
		})
	}
}

func TestCheck_MessageOfAForeignSubject_IsDamaged(t *testing.T) {
	t.Parallel()
	_, _, dir, _ := small(t)
	tamperFile(t, dir, 1, func(b []byte) []byte { return backup.Resubject(t, b, "foreign.x") })
	_, err := backup.Check(dir, 0)
	require.ErrorIs(t, err, backup.ErrDamaged)
	require.ErrorContains(t, err, `subject "foreign.x"`)
}

// A flag that an operator changed on the server neither prevents a backup nor comes back with it.
func TestTake_ForeignFlag_BackupHasTheSettingsConfiguration(t *testing.T) {
	t.Parallel()
	w, x, _, m := small(t)
	stream, err := w.js.Stream(t.Context(), m.Streams[0].Name)
	require.NoError(t, err)
	changed := stream.CachedInfo().Config
	changed.Subjects = append(changed.Subjects, "foreign.>")
	changed.Metadata["owner"] = "team-a"
	_, err = w.js.UpdateStream(t.Context(), changed)
	require.NoError(t, err)
	dir := target(t)
	m, err = w.take(dir, nil)
	require.NoError(t, err)
	other := empty(t)
	_, err = backup.Restore(t.Context(), other.js, backup.Target{Dir: dir})
	require.NoError(t, err)
	other.load()
	other.requireRun(x, m.Shards[0].Cut)
	require.NoError(t, kvstore.Provision(t.Context(), other.js, kvstore.ConfigOf(&other.settings)))
	stream, err = other.js.Stream(t.Context(), m.Streams[0].Name)
	require.NoError(t, err)
	require.Equal(t, "team-a", stream.CachedInfo().Config.Metadata["owner"])
}

// Errors of the last step of a restore are found before the first.
func TestRestore_SharedStreamWithAForeignFlag_NothingIsWritten(t *testing.T) {
	t.Parallel()
	_, _, dir, _ := small(t)
	other := empty(t)
	_, err := other.js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "KV_" + schema.LeaseBucket, Subjects: []string{"leases"}})
	require.NoError(t, err)
	_, err = backup.Restore(t.Context(), other.js, backup.Target{Dir: dir})
	_, ok := errors.AsType[*kvstore.ConfigError](err)
	require.True(t, ok, "%v", err)
	var names []string
	for name := range other.js.StreamNames(t.Context()).Name() {
		names = append(names, name)
	}
	require.Equal(t, []string{"KV_" + schema.LeaseBucket}, names)
}
