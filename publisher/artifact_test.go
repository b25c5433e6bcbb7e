package publisher_test

import (
	"crypto/sha256"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// Who fetches a text can check it, and its size is that of the text, not of its JSON.
func TestArtifact_TextWithoutADigest_HasThatOfTheText(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	run, err := w.fleet().Start(t.Context(), publisher.RunSpec{ID: "r1"})
	require.NoError(t, err)
	for _, d := range []schema.ArtifactAddedData{
		{ArtifactID: "a1", Content: []byte(`"say \"hi\""`)},
		{ArtifactID: "a1", Content: []byte(`{"a":1}`)},
		{ArtifactID: "a2", Content: []byte(`"x"`), Digest: "sha256-" + fmt.Sprintf("%064d", 0), Size: 7},
	} {
		require.NoError(t, run.Artifact(t.Context(), d))
	}
	made := run.State().Artifacts
	require.Len(t, made, 3, "none replaces another")
	require.Equal(t, fmt.Sprintf("sha256-%x", sha256.Sum256([]byte(`say "hi"`))), made[0].Digest)
	require.EqualValues(t, 8, made[0].Size)
	require.Empty(t, made[1].Digest)
	require.EqualValues(t, 7, made[2].Size, "what the caller says counts")
	require.Contains(t, made[2].Digest, "0000")
}
