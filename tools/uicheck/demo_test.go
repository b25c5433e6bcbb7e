package uicheck

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/inspector"
	"github.com/waymarkio/waymark/publisher/waymarktest"
)

// theatre is a demonstration without processes.
type theatre struct {
	mu     sync.Mutex
	killed map[string]bool
	// now is the clock of the pages.
	now func() time.Time
}

func (s *theatre) Silence() time.Duration { return 3 * time.Second }

func (s *theatre) Actors() (list []inspector.Actor) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, name := range []string{"ada", "bob", "cleo"} {
		list = append(list, inspector.Actor{Name: name, Process: 4711 + i, Killed: s.killed[name], Back: s.now().Add(17 * time.Second)})
	}
	return list
}

func (s *theatre) Kill(_ context.Context, name string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.killed[name] = true
	return nil
}

func TestDemo_KillButton_KillsAndStaysOnThePage(t *testing.T) {
	demonstration := &theatre{killed: make(map[string]bool)}
	s := newSceneOn(t, waymarktest.Config{}, demonstration)
	demonstration.now = s.stage.Now
	s.stage.Fill()
	rules, b := axe(t), s.open()
	b.show("/run/triage-3")
	require.Contains(t, eval[string](b, `document.querySelector(".stage").innerText`), "SIGKILL", "it says what it does")
	b.click("#actor-bob button")
	b.await(`document.querySelector(".said")?.innerText.includes("Killed bob") ?? false`)
	require.Equal(t, "/run/triage-3", eval[string](b, "location.pathname"))
	b.await(`document.querySelector("#actor-bob").innerText.includes("was killed")`)
	require.Len(t, demonstration.killed, 1)
	var wrong []string
	for _, scheme := range []string{"light", "dark"} {
		for _, width := range []int64{320, 400, 1000, 1800} {
			b.sized(width, scheme)
			b.show("/")
			name := fmt.Sprintf("demo-%s-%d", scheme, width)
			require.LessOrEqual(t, eval[int](b, "document.documentElement.scrollWidth"), int(width), name)
			b.draw("demo", scheme, width)
			if rules != "" && width != 1800 {
				wrong = append(wrong, b.violations(name, rules)...)
			}
		}
	}
	require.Empty(t, wrong)
	b.clean()
}
