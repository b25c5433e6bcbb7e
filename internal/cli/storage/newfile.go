package storage

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"github.com/waymarkio/waymark/internal/look/failure"
)

// newFile is the output file of a command that removes data. It is created before the removal, so that an unwritable
// name stops the command in time.
type newFile struct {
	path string
	file *os.File
}

// createFile creates a file and refuses an existing one. The result is nil without a path; what describes the file in
// errors.
func createFile(what, path string) (*newFile, error) {
	if path == "" {
		return nil, nil
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return nil, failure.New(failure.Conflict, "nothing was removed; name a new file, or remove this one", "%s exists", path)
	}
	if err != nil {
		return nil, &failure.Error{Code: failure.General, What: fmt.Sprintf("%s: %s", what, err), Hint: "nothing was removed; name a writable file", Err: err}
	}
	return &newFile{path: path, file: f}, nil
}

// write completes the file. A partial file is removed, so that the command can be repeated with the same name.
func (n *newFile) write(content func(io.Writer) error) error {
	if n == nil {
		return nil
	}
	err := content(n.file)
	if err == nil {
		err = n.file.Sync()
	}
	if err = errors.Join(err, n.file.Close()); err != nil {
		return errors.Join(err, os.Remove(n.path))
	}
	return nil
}

// discard removes a file that was not written.
func (n *newFile) discard() {
	if n == nil {
		return
	}
	_ = n.file.Close()    // nothing was written
	_ = os.Remove(n.path) // an empty file harms nothing
}
