package fold_test

import (
	"testing"

	"github.com/waymarkio/waymark/internal/harness/foldtest"
	"github.com/waymarkio/waymark/kvstore"
)

// world is a fleet whose workers are tried from outside.
type world struct{ *foldtest.World }

func newWorld(tb testing.TB) *world {
	tb.Helper()
	return &world{foldtest.New(tb)}
}

func newWorldOf(tb testing.TB, fleet kvstore.FleetConfig) *world {
	tb.Helper()
	return &world{foldtest.NewOf(tb, fleet)}
}
