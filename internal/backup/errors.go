package backup

import "errors"

var (
	// ErrExists comes when the directory of a new backup is there already. Name another.
	ErrExists = errors.New("it exists already")
	// ErrFleetExists comes when the fleet to restore, or a stream of it, exists on the server. Nothing was changed. Restore into
	// an empty server or account; a fleet is never merged with another.
	ErrFleetExists = errors.New("the fleet exists already")
	// ErrNotABackup comes for a directory without a manifest, such as one that a backup which broke off left behind.
	ErrNotABackup = errors.New("not a backup")
	// ErrDamaged comes when a file of a backup is not what the manifest says. Use another backup.
	ErrDamaged = errors.New("the backup is damaged")
	// ErrSignature comes for a backup that is not signed with the key that was named. Nothing was written. Do not trust where it came from.
	ErrSignature = errors.New("the backup is not signed as it must be")
	// ErrTooLarge comes for a backup whose messages are more than allowed when unpacked. Nothing was written.
	ErrTooLarge = errors.New("the backup is too large when unpacked")
	// ErrFormat comes for a backup of a later version of Waymark. Use that version.
	ErrFormat = errors.New("unknown format of a backup")
	// ErrSnapshot comes when the server did not deliver a stream to its end. Nothing was kept. Try again.
	ErrSnapshot = errors.New("the server did not deliver the stream")
	// ErrRestore comes when the server refused a stream, or stopped taking it. Repeat the restore: it goes on.
	ErrRestore = errors.New("the server did not take the stream")
	// ErrLone comes when the fleet had several copies of its streams, and the server, which has no cluster, can have one. Restore with
	// one replica.
	ErrLone = errors.New("a server without a cluster has one copy of each stream")
	// ErrStale comes when a server answered that does not know what was acknowledged before the backup began: a leader that is
	// cut off. Nothing was kept. Try again.
	ErrStale = errors.New("a server answered that is behind")
	// ErrChanged comes when the fleet's settings were changed while it was backed up. Nothing was kept. Try again.
	ErrChanged = errors.New("the fleet was changed meanwhile")
	// ErrConfig comes for a configuration that cannot be used; the message names the field.
	ErrConfig = errors.New("wrong configuration of a backup")
)
