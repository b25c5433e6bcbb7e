package cli

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/waymarkio/waymark/internal/archive"
	"github.com/waymarkio/waymark/internal/backup"
	"github.com/waymarkio/waymark/internal/transcript"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/publisher"
)

// sentinel is what a user is told for an error. Its hint is text of this program alone: see [prompt.fill].
type sentinel struct {
	err  error
	code exitCode
	hint string
}

// find returns the failure of the first sentinel that err wraps.
func find(err error, list []sentinel) *failure {
	for _, s := range list {
		if errors.Is(err, s.err) {
			return &failure{code: s.code, hint: s.hint, own: true}
		}
	}
	return nil
}

var publisherErrors = []sentinel{
	{publisher.ErrFenced, exitConflict, "see who holds the run: waymark runs get RUN"},
	{publisher.ErrForked, exitConflict, "find the other process that writes this run, then take it over: waymark recover RUN"},
	{publisher.ErrLogRegressed, exitDamaged, "see what is left: waymark runs get RUN"},
	{publisher.ErrFleetFull, exitFull, hintFleetFull},
	{publisher.ErrPayloadTooLarge, exitUsage, ""},
	{publisher.ErrRunExists, exitConflict, "show it with: waymark runs get RUN; or choose another id with --run-id"},
	{publisher.ErrRunNotFound, exitNotFound, "list the runs with: waymark runs ls"},
	{publisher.ErrRunErased, exitNotFound, "nothing of it is left, and its id is never used again"},
	{publisher.ErrRunEnded, exitConflict, "see how it ended: waymark runs get RUN"},
	{publisher.ErrWrongAgent, exitConflict, "see whose it is: waymark runs get RUN"},
	{publisher.ErrUnknownInterrupt, exitNotFound, "see what it waits for: waymark input RUN"},
	{publisher.ErrInvalidAnswer, exitUsage, "see what is asked: waymark input RUN"},
	{publisher.ErrUnknownHandoff, exitNotFound, "list the hand-offs: waymark handoff ls RUN"},
	{publisher.ErrHandoffTaken, exitConflict, "see who has it: waymark handoff ls RUN"},
	{publisher.ErrQuarantined, exitConflict, "let the fleet try again with: waymark release RUN"},
	{publisher.ErrNotInDoubt, exitConflict, "list the calls in doubt: waymark runs get RUN"},
	{publisher.ErrPointNotFound, exitNotFound, "list the points there are: waymark runs history RUN"},
	{publisher.ErrPointAmbiguous, exitConflict, "name its epoch: seq:EPOCH.N"},
	{publisher.ErrPointPurged, exitNotFound, "list the points there are: waymark runs history RUN"},
	{publisher.ErrHeld, exitConflict, "settle the call: waymark settle RUN TURN CALL --how abandoned"},
	{publisher.ErrConflict, exitConflict, "look at the run and try again: waymark runs get RUN"},
	{publisher.ErrCancelRequested, exitConflict, "see who asked and why: waymark events RUN --all --no-follow"},
	{publisher.ErrRejected, exitConflict, "see where the run stands: waymark runs get RUN"},
	{publisher.ErrIncomplete, exitDamaged, "what is there: waymark runs get RUN"},
	{publisher.ErrBlob, exitDamaged, ""},
	{publisher.ErrBadAnswer, exitFailure, "use the same version here and for the daemon: waymark version"},
	{publisher.ErrNotProvisioned, exitNotFound, "start a daemon for the fleet: waymark serve"},
	{publisher.ErrNoService, exitUnavailable, "start the daemon on that server: waymark serve, with --context if nats context select chose it"},
	{publisher.ErrUnresolved, exitUnavailable, "try again: what was stored is not stored twice"},
	{publisher.ErrNotPermitted, exitRefused, ""},
	{publisher.ErrUnavailable, exitUnavailable, "try again"},
	{publisher.ErrConfig, exitUsage, ""},
}

// explainPublisher words the errors of the executor's SDK.
func explainPublisher(err error) *failure {
	if full, ok := errors.AsType[*publisher.FullError](err); ok {
		f := &failure{code: exitFull, hint: hintFleetFull, own: true, what: fmt.Sprintf("fleet %s is full", full.Fleet)}
		if full.Quota > 0 {
			f.what += fmt.Sprintf(": %s of %s used", bytesText(full.Used), bytesText(full.Quota))
		}
		f.what += "; the event was not stored, nothing else was lost"
		if full.Relieved {
			f.hint = hintFleetRelieved
		}
		return f
	}
	return find(err, publisherErrors)
}

var storageErrors = []sentinel{
	{kvstore.ErrStreamMissing, exitDamaged, "restore the stream from a backup; it is never made anew in silence"},
	{kvstore.ErrSettings, exitUsage, "see: waymark serve --help"},
	{kvstore.ErrGenerations, exitUsage, "use a number of shards that the fleet has had: waymark shards"},
	{kvstore.ErrFull, exitFull, "use a smaller quota (waymark serve --quota SIZE), or make room on the disk"},
	{kvstore.ErrUnavailable, exitUnavailable, "check that JetStream is enabled on the servers, that more than half of them run and that their disks have room (restart one whose disk was full), and try again"},
	{kvstore.ErrHeld, exitConflict, "another daemon does this work; wait for it or stop it"},
	{kvstore.ErrNotFound, exitNotFound, ""},
	{kvstore.ErrConflict, exitConflict, "try again"},
}

// explainStorage words the errors of provisioning and of stored data.
func explainStorage(err error) *failure {
	if all := configErrors(err); len(all) > 0 {
		return explainConfig(all)
	}
	return find(err, storageErrors)
}

// configErrors are all that err wraps: provisioning finds those of several streams at once.
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

// explainConfig has a line for each stream, and what mends them all.
func explainConfig(all []*kvstore.ConfigError) *failure {
	var whats, commands, hints []string
	for _, config := range all {
		differences := make([]string, len(config.Differences))
		for i, d := range config.Differences {
			differences[i] = fmt.Sprintf("%s is %s, want %s", d.Flag, d.Have, d.Want)
		}
		whats = append(whats, fmt.Sprintf("stream %s is not configured as it must be: %s", config.Stream, strings.Join(differences, ", ")))
		if config.Command != "" {
			commands = append(commands, config.Command)
		} else if !slices.Contains(hints, config.Hint) {
			hints = append(hints, config.Hint)
		}
	}
	if len(commands) > 0 {
		hints = append([]string{"mend " + inNumber(len(commands), "it", "them") + " with: " + strings.Join(commands, " && ")}, hints...)
	}
	return &failure{code: exitConflict, what: strings.Join(whats, "\n"), hint: strings.Join(hints, "; ")}
}

var backupErrors = []sentinel{
	{backup.ErrExists, exitConflict, "name a directory that does not exist; nothing is written over"},
	{backup.ErrFleetExists, exitConflict, "restore into a server or account without the fleet; nothing was changed"},
	{backup.ErrNotABackup, exitNotFound, "name the directory of a backup: it has a manifest.json"},
	{backup.ErrSignature, exitDamaged, "do not use this backup; nothing was written. Use one that this key has signed"},
	{backup.ErrLone, exitUsage, "nothing was restored; repeat the restore with --replicas 1"},
	{backup.ErrTooLarge, exitDamaged, "nothing was written; allow more with --max-size if you know what it is"},
	{backup.ErrDamaged, exitDamaged, "use another backup"},
	{backup.ErrFormat, exitDamaged, "use the version of waymark that made it, or a later one"},
	{backup.ErrStale, exitUnavailable, "try again: nothing was kept"},
	{backup.ErrChanged, exitConflict, "try again: nothing was kept"},
	{backup.ErrFuture, exitUsage, "name a time or a place that is past"},
	{backup.ErrMoving, exitUnavailable, "try again"},
	{backup.ErrConfig, exitUsage, ""},
}

// explainBackup words the errors of backups and cuts. What the server did not deliver or take may have any cause, which comes first.
func explainBackup(err error) *failure {
	if f := find(err, backupErrors); f != nil {
		return f
	}
	broke := find(err, []sentinel{
		{backup.ErrSnapshot, exitUnavailable, "try again: nothing was kept"},
		{backup.ErrRestore, exitUnavailable, "repeat the restore: it goes on where it was"},
	})
	if broke == nil {
		return nil
	}
	if f := explainStorage(err); f != nil && f.code != exitDamaged {
		return f
	}
	return broke
}

// hintNotWritten is completed by [importer.underAnotherID], which knows the file.
const hintNotWritten = "nothing was written to it"

var transcriptErrors = []sentinel{
	{transcript.ErrUnknownFormat, exitUsage, "name the format, openai-chat, claude-code or swe-agent: waymark import --format openai-chat FILE"},
	{transcript.ErrSeveralRuns, exitUsage, "leave out --run-id: each run is named by its conversation"},
	{transcript.ErrDiverged, exitConflict, hintNotWritten},
	{transcript.ErrInUse, exitConflict, hintNotWritten + "; wait until that executor has ended it or, if it is gone for good, add --take-over"},
	{transcript.ErrCancelled, exitConflict, hintNotWritten + "; to complete it all the same, add --take-over"},
	{transcript.ErrUnresolvedBlob, exitDamaged, ""},
	{transcript.ErrEncrypted, exitUsage, "waymark has no keys and decrypts nothing; export the events as they are: waymark export RUN --format cloudevents"},
}

var archiveErrors = []sentinel{
	{archive.ErrHostile, exitDamaged, ""},
	{archive.ErrTooLarge, exitDamaged, ""},
	{archive.ErrDamaged, exitDamaged, ""},
	{archive.ErrFormat, exitDamaged, ""},
	{archive.ErrOtherFleet, exitConflict, "nothing was written; name the fleet of the archive with --fleet"},
	{archive.ErrOtherKeys, exitConflict, "nothing was written; import it into a fleet that has the keys that signed its control events"},
	{archive.ErrRunExists, exitConflict, "nothing was written; import the archive into another server, in a fleet of the same name"},
	{archive.ErrPartly, exitConflict, "nothing was written; add --continue if an import was interrupted"},
	{archive.ErrNotEnded, exitConflict, "add --live to import it all the same: the fleet's executors will go on with it"},
	{archive.ErrBase, exitNotFound, "export it with --with-bases, or import the base first"},
	{archive.ErrIncomplete, exitDamaged, "see what is missing: waymark verify RUN; export what is there with --format cloudevents"},
}

// explainArchive words the errors of archives. What is wrong with one brings its own next step.
func explainArchive(err error) *failure {
	f := find(err, archiveErrors)
	if said, ok := errors.AsType[*archive.EntryError](err); ok && f != nil {
		f.hint = said.Hint
	}
	return f
}

// explainTranscript words the errors of import and export.
func explainTranscript(err error) *failure { return find(err, transcriptErrors) }
