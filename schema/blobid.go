package schema

import (
	"crypto/sha256"
	"encoding/hex"
)

// blobMarkSize is the length of a run's prefix in object ids: half of a SHA-256 in hex.
const blobMarkSize = 32

// BlobMark is the prefix of the ids of a run's objects in the object store: the first 32 hex digits of the SHA-256 of
// the run id. Its length is fixed, so no run's prefix is the beginning of another's.
func BlobMark(run string) string {
	sum := sha256.Sum256([]byte(run))
	return hex.EncodeToString(sum[:blobMarkSize/2])
}

// BlobID is the id of an object of a run (its "nuid"), which its chunks have in their subjects: the run's prefix,
// "-", and up to 31 unique letters and digits. So chunks without a description can still be attributed to their run.
func BlobID(run, unique string) string { return BlobMark(run) + "-" + unique }

// MarkOfBlobID returns the run prefix of an object's id. Ids made by other object store clients have none.
func MarkOfBlobID(id string) (mark string, ok bool) {
	if len(id) <= blobMarkSize+1 || id[blobMarkSize] != '-' {
		return "", false
	}
	for i := range blobMarkSize {
		if c := id[i]; (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return "", false
		}
	}
	return id[:blobMarkSize], true
}

// ForeignBlobID reports whether an object's id has the prefix of another run. Content belongs to the run in its id,
// so a description of it in another run is false.
func ForeignBlobID(run, id string) bool {
	mark, ok := MarkOfBlobID(id)
	return ok && mark != BlobMark(run)
}
