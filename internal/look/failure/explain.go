package failure

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/waymarkio/waymark/internal/base/output"
	"github.com/waymarkio/waymark/internal/copy/backup"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/publisher"
)

// sentinel is the message for an error. Its hint contains no text from outside: see [prompt.Prompt.Fill].
type sentinel struct {
	err  error
	code Code
	hint string
}

// find returns the failure of the first sentinel that err wraps.
func find(err error, list []sentinel) *Error {
	for _, s := range list {
		if errors.Is(err, s.err) {
			return &Error{Code: s.code, Hint: s.hint, Own: true}
		}
	}
	return nil
}

var publisherErrors = []sentinel{
	{publisher.ErrFenced, Conflict, "see which executor has the run: waymark runs get RUN"},
	{publisher.ErrForked, Conflict, "find the other process that writes this run, and end it; then make the run claimable: waymark release RUN --force"},
	{publisher.ErrLogRegressed, Damaged, "see the remaining part: waymark runs get RUN"},
	{publisher.ErrFleetFull, Full, hintFleetFull},
	{publisher.ErrPayloadTooLarge, Usage, ""},
	{publisher.ErrRunExists, Conflict, "show it with: waymark runs get RUN; or choose another id with --run-id"},
	{publisher.ErrRunNotFound, NotFound, "list the runs with: waymark runs ls"},
	{publisher.ErrRunErased, NotFound, "its data is gone and its id is never used again: choose another id"},
	{publisher.ErrRunEnded, Conflict, "see how it ended: waymark runs get RUN"},
	{publisher.ErrWrongAgent, Conflict, "see its agent: waymark runs get RUN"},
	{publisher.ErrUnknownInterrupt, NotFound, "see its open questions: waymark input RUN"},
	{publisher.ErrInvalidAnswer, Usage, "see the question and its schema: waymark input RUN"},
	{publisher.ErrUnknownHandoff, NotFound, "list the open hand-offs: waymark runs get RUN"},
	{publisher.ErrHandoffTaken, Conflict, "see which executor has it: waymark runs get RUN"},
	{publisher.ErrQuarantined, Conflict, "make it claimable again: waymark release RUN"},
	{publisher.ErrPaused, Conflict, "see who paused it and why: waymark pause ls"},
	{publisher.ErrNotInDoubt, Conflict, "list the calls in doubt: waymark runs get RUN"},
	{publisher.ErrPointNotFound, NotFound, "list its points: waymark runs history RUN"},
	{publisher.ErrPointAmbiguous, Conflict, "name its epoch: seq:EPOCH.N"},
	{publisher.ErrPointPurged, NotFound, "list its points: waymark runs history RUN"},
	{publisher.ErrHeld, Conflict, "see how to settle the call: waymark plan RUN"},
	{publisher.ErrConflict, Conflict, "look at the run and try again: waymark runs get RUN"},
	{publisher.ErrCancelRequested, Conflict, "see who requested it and why: waymark events RUN --all --no-follow"},
	{publisher.ErrRejected, Conflict, "see the run's state: waymark runs get RUN"},
	{publisher.ErrIncomplete, Damaged, "see the existing part: waymark runs get RUN"},
	{publisher.ErrBlob, Damaged, ""},
	{publisher.ErrBadAnswer, General, "use the same version here and for the daemon: waymark --version"},
	{publisher.ErrNotProvisioned, NotFound, "start a daemon for the fleet: waymark serve"},
	{publisher.ErrNoService, Unavailable, "start the daemon on that server: waymark serve; add --context if nats context select chose the server"},
	{publisher.ErrUnresolved, Unavailable, "try again: an event is never stored twice"},
	{publisher.ErrNotPermitted, Refused, ""},
	{publisher.ErrUnavailable, Unavailable, "try again"},
	{publisher.ErrNotDecrypted, Damaged, "provide the key that the run was written with; if this is that key, do not trust the run"},
	{publisher.ErrEncrypted, Usage, "provide the key with --key-file FILE, or in WAYMARK_KEY_FILE"},
	{publisher.ErrConfig, Usage, ""},
}

// explainPublisher explains errors of the executor SDK.
func explainPublisher(err error) *Error {
	if full, ok := errors.AsType[*publisher.FullError](err); ok {
		f := &Error{Code: Full, Hint: hintFleetFull, Own: true, What: fmt.Sprintf("stream %s of fleet %s is full", full.Stream, full.Fleet)}
		if full.Quota > 0 {
			f.What += fmt.Sprintf(": %s of %s used", output.Bytes(full.Used), output.Bytes(full.Quota))
		}
		f.What += "; the event was not stored, no other data was lost"
		return f
	}
	return find(err, publisherErrors)
}

var storageErrors = []sentinel{
	{kvstore.ErrSettingsMissing, Damaged, "restore a backup into an empty server; or stop the daemon, then make the settings again: waymark serve --shards N, with that number of shards and the " +
		"fleet's --quota, --silence and --replicas, then set its retention and keys"},
	{kvstore.ErrStreamMissing, Damaged, "restore the stream from a backup; it is never recreated silently"},
	{kvstore.ErrSettings, Usage, "see: waymark serve --help"},
	{kvstore.ErrFull, Full, "use a smaller quota (waymark serve --quota SIZE), or free space on the disk"},
	{kvstore.ErrUnavailable, Unavailable, "check that JetStream is enabled on the servers, that more than half of them run and that their disks have free space (restart a server whose disk was full), then try again"},
	{kvstore.ErrServer, Unavailable, "update the server, or change its configuration, then start again"},
	{kvstore.ErrHeld, Conflict, "another daemon does this work: wait for it, or stop it"},
	{kvstore.ErrNotFound, NotFound, ""},
	{kvstore.ErrConflict, Conflict, "try again"},
}

// ExplainStorage explains errors of provisioning and of stored data.
func ExplainStorage(err error) *Error {
	if all := configErrors(err); len(all) > 0 {
		return explainConfig(all)
	}
	return find(err, storageErrors)
}

// configErrors are all configuration errors that err wraps: provisioning reports several streams at once.
func configErrors(err error) (list []*kvstore.ConfigError) {
	switch e := err.(type) { //nolint:errorlint // the tree is walked here
	case *kvstore.ConfigError:
		return append(list, e)
	case interface{ Unwrap() []error }:
		for _, err := range e.Unwrap() {
			list = append(list, configErrors(err)...)
		}
	case interface{ Unwrap() error }:
		return configErrors(e.Unwrap())
	}
	return list
}

// explainConfig has one line for each stream, and the commands that fix them.
func explainConfig(all []*kvstore.ConfigError) *Error {
	var whats, commands, hints []string
	for _, config := range all {
		differences := make([]string, len(config.Differences))
		for i, d := range config.Differences {
			differences[i] = fmt.Sprintf("%s is %s, want %s", d.Flag, d.Have, d.Want)
		}
		whats = append(whats, fmt.Sprintf("stream %s has the wrong configuration: %s", config.Stream, strings.Join(differences, ", ")))
		if config.Command != "" {
			commands = append(commands, config.Command)
		} else if !slices.Contains(hints, config.Hint) {
			hints = append(hints, config.Hint)
		}
	}
	if len(commands) > 0 {
		hints = append([]string{"fix " + output.InNumber(len(commands), "it", "them") + " with: " + strings.Join(commands, " && ")}, hints...)
	}
	return &Error{Code: Conflict, What: strings.Join(whats, "\n"), Hint: strings.Join(hints, "; ")}
}

var backupErrors = []sentinel{
	{backup.ErrExists, Conflict, "name a directory that does not exist; existing files are never overwritten"},
	{backup.ErrFleetExists, Conflict, "restore into a server or account where the fleet has no events; nothing was changed"},
	{backup.ErrServed, Conflict, "stop the daemon that holds the lease, then repeat the restore; nothing was changed"},
	{backup.ErrNotABackup, NotFound, "name the directory of a backup: it has a manifest.json"},
	{backup.ErrLone, Usage, "nothing was restored; repeat the restore with --replicas 1"},
	{backup.ErrTooLarge, Damaged, "nothing was written; if you trust the backup, allow more with --max-size"},
	{backup.ErrDamaged, Damaged, "use another backup"},
	{backup.ErrFormat, Damaged, "use the waymark version that wrote it, or a later one"},
	{backup.ErrStale, Unavailable, "try again: nothing was kept"},
	{backup.ErrChanged, Conflict, "try again: nothing was kept"},
	{backup.ErrConfig, Usage, ""},
}

// explainBackup explains errors of backups and cuts. If the server did not deliver or accept data, the underlying cause
// comes first.
func explainBackup(err error) *Error {
	if f := find(err, backupErrors); f != nil {
		return f
	}
	broke := find(err, []sentinel{
		{backup.ErrSnapshot, Unavailable, "try again: nothing was kept"},
		{backup.ErrRestore, Unavailable, "repeat the restore: it continues where it stopped"},
	})
	if broke == nil {
		return nil
	}
	if f := ExplainStorage(err); f != nil && f.Code != Damaged {
		return f
	}
	return broke
}

// LeastRoom is the free space required before a server that ran out of space starts again: on a small disk a twentieth
// of it. With less, the disk would be full again at once.
func LeastRoom(total int64) int64 { return min(64<<20, total/20) }

// MakeRoom is the next step for a full disk of a size; 0 if the size is unknown.
func MakeRoom(dir string, total int64) string {
	if total == 0 {
		return fmt.Sprintf("free space on the disk of %s; acknowledged data is kept", dir)
	}
	return fmt.Sprintf("free at least %s on the disk of %s; acknowledged data is kept", output.Bytes(LeastRoom(total)), dir)
}
