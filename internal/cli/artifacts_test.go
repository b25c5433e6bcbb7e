package cli

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/publisher/waymarktest"
	"github.com/waymarkio/waymark/schema"
)

func digestOf(content string) string {
	sum := sha256.Sum256([]byte(content))
	return "sha256-" + hex.EncodeToString(sum[:])
}

// listed is an artifact as JSON has it.
type listed struct {
	ArtifactID string `json:"artifact_id"`
	Name       string `json:"name"`
	Size       int64  `json:"size"`
	Turn       int32  `json:"turn"`
	Where      string `json:"where"`
}

// artifacts asks for the artifacts of a run, by their ids.
func (w *world) artifacts(code int, args ...string) map[string]listed {
	w.t.Helper()
	got, out, complaints := w.ask("", "", append([]string{"artifacts", "--json"}, args...)...)
	require.Equal(w.t, code, got, complaints)
	var doc struct{ Artifacts []listed }
	require.NoError(w.t, json.Unmarshal([]byte(out), &doc))
	byID := make(map[string]listed)
	for _, a := range doc.Artifacts {
		byID[a.ArtifactID] = a
	}
	return byID
}

// makes is a run with artifacts of each kind.
func makes(t *testing.T, more ...schema.ArtifactAddedData) *world {
	t.Helper()
	w := &world{waymarktest.Start(t), t}
	f := w.Fleet("ex-1", nil)
	run, err := f.Start(t.Context(), publisher.RunSpec{ID: "r1", Agent: "coder"})
	require.NoError(t, err)
	_, err = run.StartTurn(t.Context(), publisher.TurnSpec{Messages: []schema.Message{{Role: schema.RoleUser, Parts: []schema.Part{schema.Text("Fix it.")}}}})
	require.NoError(t, err)
	text := func(s string) json.RawMessage {
		b, err := json.Marshal(s)
		require.NoError(t, err)
		return b
	}
	large, picture := strings.Repeat("large ", 100_000), "\x89PNG\x00\xff"
	for _, d := range append([]schema.ArtifactAddedData{
		{ArtifactID: "small", Name: "notes/plan.md", MediaType: "text/markdown", Content: []byte(text("# Plan\n")), Digest: digestOf("# Plan\n")},
		{ArtifactID: "large", Name: "log.txt", MediaType: "text/plain", Content: []byte(text(large)), Digest: digestOf(large)},
		{ArtifactID: "picture", Name: "login.png", MediaType: "image/png", Content: []byte(text(base64.StdEncoding.EncodeToString([]byte(picture)))), Digest: digestOf(picture)},
		{ArtifactID: "value", Name: "result.json", Content: []byte(`{"ok":true}`)},
		{ArtifactID: "link", Name: "pull request", URI: "https://example.com/pulls/12", MediaType: "text/html", Size: 2048},
		{ArtifactID: "bare"},
	}, more...) {
		require.NoError(t, run.Artifact(t.Context(), d))
	}
	require.NoError(t, run.End(t.Context(), publisher.RunEnd{}))
	return w
}

func TestArtifacts_List_SaysWhatTheyAreAndWhere(t *testing.T) {
	t.Parallel()
	w := makes(t)
	for _, columns := range []string{"80", "100", "200"} {
		code, out, complaints := w.ask(columns, "", "artifacts", "r1")
		require.Zero(t, code, complaints)
		width := map[string]int{"80": 80, "100": 100, "200": 200}[columns]
		for line := range strings.Lines(out) {
			require.LessOrEqual(t, utf8.RuneCountInString(strings.TrimRight(line, "\n")), width, line)
		}
		require.Regexp(t, `(?m)^notes/plan\.md .* 7 B .*in the run$`, out)
		require.Regexp(t, `(?m)^log\.txt .* object store$`, out)
		require.Regexp(t, `(?m)^pull request .*2\.0 KiB .*link: https://example\.com/`, out)
		require.Regexp(t, `(?m)^bare .*only its name is recorded$`, out)
	}
	_, out, _ := w.ask("", "", "artifacts", "r1")
	require.Regexp(t, `(?m)^notes/plan\.md +small +text/markdown +7 B +`+digestOf("# Plan\n")[:19]+`… +1 +in the run$`, out)
	list := w.artifacts(0, "r1")
	require.Len(t, list, 6)
	require.Equal(t, listed{ArtifactID: "small", Name: "notes/plan.md", Size: 7, Turn: 1, Where: "event"}, list["small"])
	require.Equal(t, "object_store", list["large"].Where)
	require.Equal(t, "link", list["link"].Where)
	require.Equal(t, "nowhere", list["bare"].Where)
	_, err := w.Fleet("ex-1", nil).Start(t.Context(), publisher.RunSpec{ID: "r2", Agent: "coder"})
	require.NoError(t, err)
	code, out, complaints := w.ask("", "", "artifacts", "r2")
	require.Zero(t, code)
	require.Empty(t, out)
	require.Equal(t, "no artifacts\n", complaints)
	code, _, complaints = w.ask("", "", "artifacts", "unknown")
	require.Equal(t, 4, code)
	require.Contains(t, complaints, "has no run unknown")
}

func TestArtifacts_One_IsWrittenWithItsDigestChecked(t *testing.T) {
	t.Parallel()
	w := makes(t,
		schema.ArtifactAddedData{ArtifactID: "forged", Content: []byte(`"x"`), Digest: digestOf("y")},
		schema.ArtifactAddedData{ArtifactID: "odd", Content: []byte(`"x"`), Digest: "md5-9dd4e461268c8034f5c8564e155c67a6"},
		schema.ArtifactAddedData{ArtifactID: "gone", URI: schema.DataRef("r1", strings.Repeat("ab", 32))},
	)
	for id, want := range map[string]string{
		"small": "# Plan\n", "large": strings.Repeat("large ", 100_000), "picture": "\x89PNG\x00\xff", "value": `{"ok":true}`,
	} {
		code, out, complaints := w.ask("", "", "artifacts", "r1", id)
		require.Zero(t, code, complaints)
		require.Equal(t, want, out, id)
	}
	for id, test := range map[string]struct {
		code int
		says string
	}{
		"forged":  {6, "its content has another digest"},
		"odd":     {6, "its digest is not sha256-"},
		"gone":    {6, ""},
		"link":    {4, "is not stored: link: https://example.com/pulls/12"},
		"bare":    {4, "is not stored: only its name is recorded"},
		"unknown": {4, "run r1 has no artifact unknown\nhint: list them with: waymark"},
	} {
		code, out, complaints := w.ask("", "", "artifacts", "r1", id)
		require.Equal(t, test.code, code, complaints)
		require.Empty(t, out, id)
		require.Contains(t, complaints, test.says)
	}
}

// An object whose content was changed by hand is not written.
func TestArtifacts_ObjectStoreIsTamperedWith_IsRefused(t *testing.T) {
	t.Parallel()
	w := makes(t)
	js, err := jetstream.New(w.Conn())
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), startLimit)
	defer cancel()
	store, err := js.ObjectStore(ctx, schema.BlobBucket(w.Fleet("ex-1", nil).Name()))
	require.NoError(t, err)
	objects, err := store.List(ctx)
	require.NoError(t, err)
	require.Len(t, objects, 1)
	_, err = store.PutString(ctx, objects[0].Name, `"another text"`)
	require.NoError(t, err)
	code, out, complaints := w.ask("", "", "artifacts", "r1", "large")
	require.Equal(t, 6, code, complaints)
	require.Empty(t, out)
}

func TestVerify_LargeFieldMissingOrChanged_IsNamed(t *testing.T) {
	t.Parallel()
	w := makes(t)
	js, err := jetstream.New(w.Conn())
	require.NoError(t, err)
	store, err := js.ObjectStore(t.Context(), schema.BlobBucket(schema.DefaultFleet))
	require.NoError(t, err)
	objects, err := store.List(t.Context())
	require.NoError(t, err)
	require.Len(t, objects, 1)
	name := objects[0].Name
	content, err := store.GetBytes(t.Context(), name)
	require.NoError(t, err)
	verify := func(want int, says string) {
		t.Helper()
		code, out, complaints := w.ask("200", "", "verify", "r1")
		require.Equal(t, want, code, out+complaints)
		require.Contains(t, out, says)
	}
	verify(0, "whole")
	require.NoError(t, store.Delete(t.Context(), name))
	verify(6, "blob: large field "+name+": nats: object not found")
	_, err = store.PutBytes(t.Context(), name, []byte(`"another"`))
	require.NoError(t, err)
	verify(6, "blob: large field "+name+": blob does not match its name")
	_, err = store.PutBytes(t.Context(), name, content)
	require.NoError(t, err)
	verify(0, "whole")
	info, err := store.GetInfo(t.Context(), name)
	require.NoError(t, err)
	stream, err := js.Stream(t.Context(), "OBJ_"+schema.BlobBucket(schema.DefaultFleet))
	require.NoError(t, err)
	require.Greater(t, info.Chunks, uint32(1))
	require.NoError(t, stream.Purge(t.Context(), jetstream.WithPurgeSubject("$O."+schema.BlobBucket(schema.DefaultFleet)+".C."+info.NUID), jetstream.WithPurgeKeep(1)))
	verify(6, "blob: large field "+name+": ")
}
