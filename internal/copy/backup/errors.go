package backup

import "errors"

var (
	// ErrExists comes when the directory of a new backup already exists. Name another.
	ErrExists = errors.New("it exists already")
	// ErrFleetExists comes when the fleet to restore, or a stream of it, exists on the server. Nothing was changed. Restore into
	// an empty server or account; a fleet is never merged with another.
	ErrFleetExists = errors.New("the fleet exists already")
	// ErrServed comes when a daemon serves the fleet without events whose place the backup would take. Nothing was changed. Stop
	// the daemon.
	ErrServed = errors.New("a daemon serves the fleet")
	// ErrNotABackup comes for a directory without a manifest, such as that of an interrupted backup.
	ErrNotABackup = errors.New("not a backup")
	// ErrDamaged comes when a file of a backup does not match the manifest. Use another backup.
	ErrDamaged = errors.New("the backup is damaged")
	// ErrTooLarge comes for a backup whose unpacked messages exceed the limit. Nothing was written.
	ErrTooLarge = errors.New("the unpacked backup is too large")
	// ErrFormat comes for a backup of a later version of Waymark. Use that version.
	ErrFormat = errors.New("unknown format of a backup")
	// ErrSnapshot comes when the server did not deliver a stream to its end. Nothing was kept. Try again.
	ErrSnapshot = errors.New("the server did not deliver the stream")
	// ErrRestore comes when the server refused a stream, or stopped accepting it. Repeat the restore: it continues.
	ErrRestore = errors.New("the server did not take the stream")
	// ErrLone comes when the fleet had several replicas of its streams, and the server, which has no cluster,
	// supports only one. Restore with one replica.
	ErrLone = errors.New("a server without a cluster has one replica of each stream")
	// ErrStale comes when the answering server does not know messages that were acknowledged before the backup began:
	// an isolated leader. Nothing was kept. Try again.
	ErrStale = errors.New("the answering server lags behind")
	// ErrChanged comes when the fleet's settings were changed, or data left it, while it was backed up: a log that is nearly
	// full is purged all the same. Nothing was kept. Try again.
	ErrChanged = errors.New("the fleet was changed during the backup")
	// ErrConfig comes for an invalid configuration; the message names the field.
	ErrConfig = errors.New("wrong configuration of a backup")
)
