package deploycheck_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// in is the path of a file or directory in deploy.
func in(elem ...string) string {
	return filepath.Join(append([]string{"..", "..", "deploy"}, elem...)...)
}

func read(t *testing.T, elem ...string) []byte {
	t.Helper()
	text, err := os.ReadFile(in(elem...))
	require.NoError(t, err)
	return text
}

// programs is the directory of built programs; empty until one is built.
var programs string

func TestMain(m *testing.M) {
	m.Run()
	if programs != "" {
		_ = os.RemoveAll(programs) // the machine cleans its temporary files
	}
}

// built builds the program waymark, once for all tests.
var built = sync.OnceValues(func() (program string, err error) {
	if programs, err = os.MkdirTemp("", "waymark-deploycheck-"); err != nil {
		return "", err
	}
	program = filepath.Join(programs, "waymark")
	build := exec.Command("go", "build", "-ldflags=-w", "-o", program, "./cmd/waymark")
	build.Dir = filepath.Join("..", "..")
	if said, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build waymark: %w: %s", err, said)
	}
	return program, nil
})
