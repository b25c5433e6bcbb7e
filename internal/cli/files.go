package cli

import (
	"io/fs"
	"os"
	"reflect"
	"strings"

	"github.com/alecthomas/kong"

	"github.com/waymarkio/waymark/internal/cli/failure"
)

// checkFiles has the grammar refuse a named pipe wherever a command takes a file: its opening waits for a writer, and Ctrl-C does not
// end that.
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

// filePath checks what another mapper reads: the path of a file, or a list of them.
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

// notPipe refuses a named pipe. One below /dev, such as that of a shell's <(command), has its writer.
func notPipe(path string) error {
	info, err := os.Stat(path)
	if err != nil || info.Mode()&fs.ModeNamedPipe == 0 || strings.HasPrefix(path, "/dev/") {
		return nil //nolint:nilerr // the command says why it cannot open the file
	}
	return failure.NotRegular(path)
}
