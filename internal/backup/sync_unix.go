//go:build !windows

package backup

import "os"

func syncOpenDir(d *os.File) error { return d.Sync() }
