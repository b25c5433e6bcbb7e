package fleet

import (
	"context"
	"errors"
	"time"

	"github.com/waymarkio/waymark/internal/base/output"
	"github.com/waymarkio/waymark/kvstore"
)

// backupWarn is the maximum age of a fleet's last backup, and of a fleet without a backup.
const backupWarn = 7 * 24 * time.Hour

// backup checks the age of the fleet's last backup.
func (d *doctor) backup(ctx context.Context, fleet string, streams []kvstore.Inspected, now time.Time) {
	const name = "backup"
	do := d.p.Command("backup DIR")
	last, err := kvstore.LastBackup(ctx, d.js, fleet)
	if errors.Is(err, kvstore.ErrNotFound) {
		made := now
		for i := range streams {
			if s := &streams[i]; s.Truth && s.Info != nil && s.Info.Created.Before(made) {
				made = s.Info.Created
			}
		}
		if now.Sub(made) > backupWarn {
			d.add(name, checkWarning, do, "no backup was recorded, and the fleet is %d days old", int(now.Sub(made)/(24*time.Hour)))
			return
		}
		d.add(name, checkOK, "", "no backup was recorded yet; the fleet is younger than a week")
		return
	}
	if err != nil {
		d.add(name, checkUnknown, "", "%s", err)
		return
	}
	began, err := time.Parse(time.RFC3339Nano, last.Began)
	if err != nil {
		d.add(name, checkUnknown, do, "the record of the last one cannot be read: %s", err)
		return
	}
	age := now.Sub(began)
	if age > backupWarn {
		d.add(name, checkWarning, do, "the last one, %s, is %d days old", last.ID, int(age/(24*time.Hour)))
		return
	}
	d.add(name, checkOK, "", "the last one, %s of %s, was started %s", last.ID, output.Bytes(last.Bytes), output.Ago(last.Began, now))
}
