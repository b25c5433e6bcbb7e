package worker

import (
	"errors"
	"testing"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/publisher"
)

func newProgram(ended bool) *program {
	p := &program{out: make(chan []byte, unread), gone: make(chan struct{}), waiting: make(map[int64]*exchange), runs: make(map[string]*exchange), log: zerolog.Nop()}
	if ended {
		p.why = errors.New("it ended")
		close(p.gone)
	}
	return p
}

// A program that asked whether it may begin, and died, begins nothing.
func TestEnd_DeadProgramAsksToBegin_IsLost(t *testing.T) {
	t.Parallel()
	for range 100 { // the ends are ready together
		p := newProgram(true)
		x, _ := p.open(&request{}, nil)
		x.begins <- struct{}{}
		_, err := p.end(t.Context(), x, nil, func() error { return errors.New("it begins") })
		require.ErrorIs(t, err, publisher.ErrLost)
		require.NotContains(t, err.Error(), "it begins")
	}
}

// A program that died before it had the run does not count: the run goes to the next one.
func TestAsk_ProgramDiedBeforeTheRequest_NextProgramGetsTheRun(t *testing.T) {
	t.Parallel()
	for range 100 {
		dead, next := newProgram(true), newProgram(false)
		w := &Worker{programs: []*program{dead}, changed: make(chan struct{})}
		go w.change(func() { w.programs = []*program{next} })
		p, x, err := w.ask(t.Context(), request{Do: "run", Run: "r1"}, &ownRun{})
		require.NoError(t, err)
		require.Same(t, next, p)
		require.Same(t, x, next.runs["r1"])
		require.Empty(t, dead.runs)
	}
}
