package schema

import (
	"crypto/sha256"
	"encoding/hex"
)

// blobMarkSize is the length of a run's mark in the ids of its objects: the first half of a SHA-256 in hex.
const blobMarkSize = 32

// BlobMark is what the ids of a run's objects in the object store begin with: the first 32 hex digits of the SHA-256 of the run id.
// It is of a fixed length, so that no run's mark is the beginning of another's.
func BlobMark(run string) string {
	sum := sha256.Sum256([]byte(run))
	return hex.EncodeToString(sum[:blobMarkSize/2])
}

// BlobID is the id of an object of a run (its "nuid"), of which its chunks bear the name: the run's mark, a "-", and up to 31 letters
// and digits that nobody else uses. So chunks that no description names are still known to be of that run.
func BlobID(run, unique string) string { return BlobMark(run) + "-" + unique }

// MarkOfBlobID returns the mark that an object's id begins with. Ids that other clients of the object store make
// have none.
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

// ForeignBlobID reports whether an object's id has the mark of another run. Content belongs to the run whose mark its id has, whoever
// describes it: such a description is false.
func ForeignBlobID(run, id string) bool {
	mark, ok := MarkOfBlobID(id)
	return ok && mark != BlobMark(run)
}
