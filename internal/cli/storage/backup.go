package storage

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/waymarkio/waymark/consumer/verify"
	"github.com/waymarkio/waymark/internal/base/output"
	"github.com/waymarkio/waymark/internal/cli/base"
	"github.com/waymarkio/waymark/internal/copy/backup"
	"github.com/waymarkio/waymark/internal/look/failure"
	"github.com/waymarkio/waymark/internal/nats/natsconn"
	"github.com/waymarkio/waymark/internal/nats/natsd"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

// BackupCmd is waymark backup.
type BackupCmd struct {
	Take   backupTakeCmd   `cmd:"" default:"withargs" help:"Back up a fleet to a new directory, while it is in use. This is the default."`
	Verify backupVerifyCmd `cmd:"" serverless:"" help:"Check a backup: every file, and with --runs every run in it."`
}

type backupTakeCmd struct {
	Dir string `arg:"" help:"Directory to create; it appears when complete."`
}

// sizeFlag bounds what a backup may unpack to.
type sizeFlag struct {
	MaxSize base.ByteSize `default:"0" placeholder:"SIZE" help:"Maximum unpacked size (default: 100 times the files' size, at least 64MiB)."`
}

// Help is the text below the flags.
func (backupTakeCmd) Help() string {
	return `Has every event acknowledged before it started, with stream sequences, but no checkpoints, which a restore recreates. Needs the ` +
		`daemon's credentials if roles have separate permissions.

Example:
  waymark backup /var/backups/waymark-2026-01-31`
}

// Run backs the fleet up.
func (c backupTakeCmd) Run(ctx context.Context, a *base.App) error {
	cl, err := a.Connect(ctx)
	if err != nil {
		return err
	}
	js, err := jetstream.New(cl.NATS)
	if err != nil {
		return err
	}
	m, err := backup.Take(ctx, js, backup.Config{
		Fleet: cl.Fleet, Dir: c.Dir, Actor: base.Operator, Now: a.Now, OnStream: streamNotes(a, "reading"),
	})
	if m == nil {
		return err
	}
	return errors.Join(printBackup(a, c.Dir, m), err)
}

// streamNotes reports on standard error, on a terminal, the stream in progress.
func streamNotes(a *base.App, verb string) func(stream string, bytes uint64) {
	if a.Quiet || !output.IsTerminal(a.Stderr) {
		return nil
	}
	return func(stream string, bytes uint64) {
		// An error is ignored: the notes are not required.
		_, _ = fmt.Fprintf(a.Stderr, "%s %s, %s\n", verb, stream, output.Bytes(int64(bytes))) //nolint:gosec // a size
	}
}

// printBackup describes the content of a backup.
func printBackup(a *base.App, dir string, m *backup.Manifest) error {
	if a.JSON {
		return output.Document(a.Stdout, m)
	}
	if a.Quiet {
		return nil
	}
	runs := 0
	for _, s := range m.Shards {
		runs += s.Runs
	}
	return output.Fields(a.Stdout, "backup", dir, "fleet", m.Fleet, "began", m.Began, "runs", output.Number(runs), "messages", output.Number(m.Messages()),
		"size", output.Bytes(m.Bytes()), "id", m.ID)
}

type backupVerifyCmd struct {
	sizeFlag
	Dir  string `arg:"" help:"Directory of the backup."`
	Runs bool   `help:"Restore to a temporary server, and verify every run as waymark verify does."`
	Temp string `placeholder:"DIR" help:"Directory of the temporary server; needs several times the backup's size (default: the system's)."`
}

// Help is the text below the flags.
func (backupVerifyCmd) Help() string {
	return `Compares every file with the manifest. The exit code is 6 if there is any damage.

Example:
  waymark backup verify /var/backups/waymark-2026-01-31 --runs`
}

// Run checks a backup.
func (c backupVerifyCmd) Run(ctx context.Context, a *base.App) error {
	m, err := backup.Check(c.Dir, int64(c.MaxSize))
	if err != nil || !c.Runs {
		if err == nil {
			err = printBackup(a, c.Dir, m)
		}
		return err
	}
	total := verified{Verified: []*verify.Result{}}
	if err := c.rehearse(ctx, a, m, &total); err != nil {
		return err
	}
	whole := VerifyCmd{All: true}
	if err := whole.print(a, &total); err != nil {
		return err
	}
	if total.Damaged > 0 {
		return failure.New(failure.Damaged, "use another backup for them", "%s of the backup %s damaged", output.Plural(total.Damaged, "run"), output.InNumber(total.Damaged, "is", "are"))
	}
	return nil
}

// rehearse restores the backup to a temporary server and verifies all runs there.
func (c backupVerifyCmd) rehearse(ctx context.Context, a *base.App, m *backup.Manifest, total *verified) (err error) {
	dir, err := os.MkdirTemp(c.Temp, "waymark-rehearsal-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	return base.WithServer(ctx, natsd.Config{StateDir: dir, Sync: natsd.SyncInterval}, func(nc *nats.Conn) error {
		js, err := jetstream.New(nc)
		if err != nil {
			return err
		}
		if _, err := backup.Restore(ctx, js, backup.Target{Dir: c.Dir, MaxBytes: int64(c.MaxSize), Replicas: 1, Quota: kvstore.UnlimitedQuota, OnStream: streamNotes(a, "restoring")}); err != nil {
			return err
		}
		settings, _, err := kvstore.NewFleets(js).Get(ctx, m.Fleet)
		if err != nil {
			return err
		}
		return VerifyCmd{}.all(ctx, a, js, settings, total)
	})
}

// RestoreCmd is waymark restore.
type RestoreCmd struct {
	sizeFlag
	Dir      string        `arg:"" help:"Directory of the backup."`
	Replicas base.Positive `placeholder:"N" help:"Replicas of every stream (default: as in the backup)."`
	Quota    base.ByteSize `default:"0" placeholder:"SIZE" help:"Size of the fleet's log, per shard (default: as in the backup)."`
}

// Help is the text below the flags.
func (RestoreCmd) Help() string {
	return `The server must not have the fleet, and no daemon may serve it meanwhile. The whole backup is checked before anything is written. ` +
		`To continue an interrupted restore, repeat the command. Without a server, one is started in the state directory for the restore.

Example:
  waymark restore /var/backups/waymark-2026-01-31 --nats nats://new-cluster:4222 --nkey daemon.seed --replicas 3`
}

// Run restores the fleet of a backup.
func (c RestoreCmd) Run(ctx context.Context, a *base.App) error {
	m, err := backup.Open(c.Dir)
	if err != nil {
		return err
	}
	if a.Fleet != m.Fleet && a.Fleet != schema.DefaultFleet {
		return failure.New(failure.Usage, "omit --fleet", "the backup has fleet %s, not %s: a fleet keeps its name", m.Fleet, a.Fleet)
	}
	a.Fleet = m.Fleet
	var done *backup.Restored
	use := func(nc *nats.Conn) error {
		js, err := jetstream.New(nc)
		if err != nil {
			return err
		}
		done, err = backup.Restore(ctx, js, backup.Target{
			Dir: c.Dir, MaxBytes: int64(c.MaxSize), Replicas: int(c.Replicas), Quota: int64(c.Quota), OnStream: streamNotes(a, "restoring"),
		})
		return err
	}
	cl, err := a.Connect(ctx)
	var down *natsconn.NotRunningError
	switch {
	case err == nil:
		err = use(cl.NATS)
	case errors.As(err, &down), errors.Is(err, natsconn.ErrNoServer):
		var dir string
		if dir, err = a.StateDirectory(); err == nil {
			err = base.WithServer(ctx, natsd.Config{StateDir: dir}, use)
		}
	}
	if err != nil {
		return err
	}
	if a.JSON {
		return output.Document(a.Stdout, done.Manifest)
	}
	if a.Quiet {
		return nil
	}
	age, err := done.Manifest.Age(a.Now())
	if err != nil {
		return err
	}
	if err := output.Fields(a.Stdout, "restored", "fleet "+m.Fleet, "as of", m.Began+", "+age.Round(time.Second).String()+" ago",
		"messages", output.Number(m.Messages()), "streams", fmt.Sprintf("%d, and %d before", done.Streams, done.Before)); err != nil {
		return err
	}
	serve := a.Prompt.Command("serve")
	if len(m.Settings.Keys) == 0 {
		_, err = fmt.Fprintf(a.Stdout, "start a daemon, which recreates the checkpoints: %s\n", serve)
		return err
	}
	conn := a.Conn
	if cl == nil && conn.NKey == "" && conn.Creds == "" {
		serve += " --nkey FILE"
	}
	_, err = fmt.Fprintf(a.Stdout, "the fleet has keys: start a daemon with the key file of one of its daemons; it recreates the checkpoints: %s\n"+
		"without such a file, create another key (nk -gen user), add its public key, and wait a minute: %s\n",
		serve, a.Prompt.Command("fleet keys add PUBLICKEY"))
	return err
}
