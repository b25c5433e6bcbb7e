package story

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/waymarkio/waymark/internal/base/encryption"
	"github.com/waymarkio/waymark/internal/base/output"
	"github.com/waymarkio/waymark/schema"
)

// Places of an artifact's content, as JSON has them.
const (
	placeEvent     = "event"
	placeStore     = "object_store"
	placeLink      = "link"
	placeEncrypted = "encrypted"
	placeNowhere   = "nowhere"
)

// Artifact is an artifact in a list.
type Artifact struct {
	ArtifactID string `json:"artifact_id"`
	Name       string `json:"name,omitzero"`
	MediaType  string `json:"media_type,omitzero"`
	// Size in bytes: what the executor said, else that of the content as it is stored.
	Size   int64  `json:"size,omitzero"`
	Digest string `json:"digest,omitzero"`
	Turn   int32  `json:"turn,omitzero"`
	Time   string `json:"time,omitzero"`
	// Where the content is: event, object_store, link, encrypted or nowhere.
	Where string `json:"where"`
	URI   string `json:"uri,omitzero"`
	// KeyID names the key of an encrypted content.
	KeyID string `json:"key_id,omitzero"`
	// Content in the event, or DataRef of the content in the object store.
	Content jsontext.Value `json:"-"`
	DataRef string         `json:"-"`
	// Refs of the content.
	Refs []schema.Ref `json:"-"`
}

// ArtifactOf says where the content of an artifact is.
func ArtifactOf(s *schema.StateArtifact) *Artifact {
	a := &Artifact{
		ArtifactID: s.ArtifactID, Name: encryption.ReadableField(s.Name, s.Refs, "/name"), MediaType: s.MediaType, Size: s.Size, Digest: encryption.ReadableField(s.Digest, s.Refs, "/digest"),
		Turn: s.Turn, Time: s.Time, URI: encryption.ReadableField(s.URI, s.Refs, "/uri"), Where: placeNowhere,
	}
	stored := schema.Ref{}
	if i := slices.IndexFunc(s.Refs, func(r schema.Ref) bool { return r.Path == "/content" }); i >= 0 {
		stored, a.Refs = s.Refs[i], s.Refs[i:i+1]
	}
	_, _, notOurs := schema.ParseDataRef(a.URI)
	switch {
	case stored.KeyID != "":
		a.Where, a.KeyID, a.Content, a.DataRef = placeEncrypted, stored.KeyID, s.Content, stored.DataRef
	case len(s.Content) > 0:
		a.Where, a.Content = placeEvent, s.Content
		a.Size = cmp.Or(a.Size, int64(len(Contents(s.Content)[0])))
	case stored.DataRef != "":
		a.Where, a.DataRef = placeStore, stored.DataRef
		a.Size = cmp.Or(a.Size, stored.Size)
	case notOurs == nil:
		a.Where, a.DataRef = placeStore, a.URI
	case a.URI != "":
		a.Where = placeLink
	}
	return a
}

// Contents are the bytes that a value may stand for, the first of them where no digest decides: a text itself or what it is the base64 of,
// and the JSON of any value.
func Contents(v jsontext.Value) [][]byte {
	var text string
	if v.Kind() != '"' || json.Unmarshal(v, &text) != nil {
		return [][]byte{v}
	}
	list := [][]byte{[]byte(text)}
	if decoded, err := base64.StdEncoding.DecodeString(text); err == nil {
		list = append(list, decoded)
	}
	return append(list, v)
}

var (
	// ErrDigest says that an artifact's content is not what its digest names: do not use it.
	ErrDigest = errors.New("its content has another digest")
	// ErrDigestForm says that an artifact's digest cannot be checked: have its executor write a sha256 digest.
	ErrDigestForm = errors.New("its digest is not sha256- and 64 hex digits")
)

// CheckedContent is the content with the digest; without a digest it is as it was stored.
func (f *Artifact) CheckedContent(v jsontext.Value) ([]byte, error) {
	list := Contents(v)
	if f.Digest == "" {
		return list[0], nil
	}
	digits, _ := strings.CutPrefix(f.Digest, "sha256-")
	want, err := hex.DecodeString(digits)
	if err != nil || len(want) != sha256.Size || digits == f.Digest {
		return nil, ErrDigestForm
	}
	for _, content := range list {
		if sum := sha256.Sum256(content); bytes.Equal(sum[:], want) {
			return content, nil
		}
	}
	return nil, ErrDigest
}

// WhereText is where the content is, for people.
func (f *Artifact) WhereText() string {
	switch f.Where {
	case placeEvent:
		return "in the run"
	case placeStore:
		return "object store"
	case placeLink:
		return "link: " + f.URI
	case placeEncrypted:
		return encryption.Placeholder(f.KeyID)
	}
	return "only its name is recorded"
}

// SizeText is the size for people.
func (f *Artifact) SizeText() string {
	if f.Size == 0 {
		return ""
	}
	return output.Bytes(f.Size)
}
