package inspector

import (
	"fmt"
	"net/http"
	"os"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

// benchTurns is how long the run of the benchmarks is: five events a turn.
func benchTurns() int {
	if n, err := strconv.Atoi(os.Getenv("WAYMARK_UI_TURNS")); err == nil {
		return n
	}
	return 200
}

// BenchmarkPages makes pages of a long run: server, daemon and inspector are one process. WAYMARK_UI_TURNS changes the run's length.
func BenchmarkPages(b *testing.B) {
	d := newDesk(b, nil)
	d.stage.Long("long", benchTurns())
	records := int(d.headOf("long").Records)
	get := func(b *testing.B, path string) {
		b.Helper()
		status, page := d.get(path)
		require.Equal(b, http.StatusOK, status, page)
	}
	get(b, "/run/long/state")
	for name, path := range map[string]func(i int) string{
		"timeline":     func(int) string { return "/run/long" },
		"timeline at":  func(i int) string { return fmt.Sprintf("/run/long?at=record:%d", 1+i*7919%records) },
		"state at":     func(i int) string { return fmt.Sprintf("/run/long/state?at=record:%d", 1+i*7919%records) },
		"conversation": func(int) string { return "/run/long/conversation" },
	} {
		b.Run(name, func(b *testing.B) {
			for i := range b.N {
				get(b, path(i))
			}
		})
	}
}
