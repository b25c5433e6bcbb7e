package natsd

import "errors"

// DiskRoom is not known on this system.
func DiskRoom(string) (free, total int64, err error) {
	return 0, 0, errors.New("the free disk space is not known on this system")
}
