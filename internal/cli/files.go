package cli

import (
	"io/fs"
	"os"
	"reflect"
	"strings"

	"github.com/alecthomas/kong"

	"github.com/waymarkio/waymark/internal/cli/failure"
)

// checkFiles makes the grammar refuse a named pipe as a file argument: opening one waits for a writer, and Ctrl-C does
// not end that wait.
func checkFiles(k *kong.Kong) error {
	return kong.Visit(k.Model, func(node kong.Visitable, next kong.Next) error {
		switch v := node.(type) {
		case *kong.Flag:
			if v.PlaceHolder == "FILE" {
				v.Mapper = filePath{v.Mapper}
			}
		case *kong.Value:
			if v.Name == "file" {
				v.Mapper = filePath{v.Mapper}
			}
		}
		return next(nil)
	})
}

// filePath checks the value of another mapper: the path of a file, or a list of paths.
type filePath struct{ kong.Mapper }

// Decode is called by kong.
func (m filePath) Decode(ctx *kong.DecodeContext, target reflect.Value) error {
	if err := m.Mapper.Decode(ctx, target); err != nil {
		return err
	}
	if target.Kind() != reflect.Slice {
		return notPipe(target.String())
	}
	for i := range target.Len() {
		if err := notPipe(target.Index(i).String()); err != nil {
			return err
		}
	}
	return nil
}

// notPipe refuses a named pipe. One below /dev, such as a shell's <(command), has a writer.
func notPipe(path string) error {
	info, err := os.Stat(path)
	if err != nil || info.Mode()&fs.ModeNamedPipe == 0 || strings.HasPrefix(path, "/dev/") {
		return nil //nolint:nilerr // the command reports why it cannot open the file
	}
	return failure.NotRegular(path)
}
