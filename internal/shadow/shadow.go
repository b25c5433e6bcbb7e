package shadow

import (
	"context"
	"fmt"
	"hash/fnv"
	"maps"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"github.com/waymarkio/waymark/internal/modelfold"
	"github.com/waymarkio/waymark/schema"
)

// Config of a shadow.
type Config struct {
	// Fleet whose runs are folded. Required.
	Fleet string
	// Share of the runs that are chosen, above 0 and up to 1. Required.
	Share float64
	// Runs that are followed at once. Default 64.
	Runs int
	// Events of one run after which it is let go: the model keeps them all, and looks through them. Default 2,000.
	Events int
	// PerSecond bounds the events that are folded a second; a run whose event finds no room is let go. Default 500.
	PerSecond int
	// Now is the clock. Required.
	Now func() time.Time
}

func (c Config) withDefaults() Config {
	for _, f := range []struct {
		field *int
		value int
	}{{&c.Runs, 64}, {&c.Events, 2000}, {&c.PerSecond, 500}} {
		if *f.field == 0 {
			*f.field = f.value
		}
	}
	return c
}

// Validate names the first field that cannot be used.
func (c Config) Validate() error {
	switch {
	case math.IsNaN(c.Share) || c.Share <= 0 || c.Share > 1:
		return fmt.Errorf("the share of runs is %g, use a number above 0 and up to 1", c.Share)
	case c.Runs < 0 || c.Events < 0 || c.PerSecond < 0:
		return fmt.Errorf("a bound of the shadow fold is below 0: %d runs, %d events, %d a second", c.Runs, c.Events, c.PerSecond)
	case c.Now == nil:
		return fmt.Errorf("the shadow fold of fleet %s has no clock", c.Fleet)
	}
	return schema.CheckName("fleet", c.Fleet)
}

const (
	// underWay bounds the events between the folder and the shadow, underWayBytes their bytes.
	underWay      = 1024
	underWayBytes = 8 << 20
	// remembered is how many differences are kept for who asks.
	remembered = 16
)

// Stats counts what was done. Every field may be read at any time.
type Stats struct {
	// Runs chosen, Events compared, Differences found.
	Runs, Events, Differences atomic.Int64
	// Left counts runs that were let go before their end because of a bound, or because the model does not know what is in them.
	Left atomic.Int64
}

// Difference is something that fold and model do not agree about.
type Difference struct {
	Run string `json:"run"`
	// Event is its id, Stream its place in the log.
	Event  string                `json:"event"`
	Stream schema.StreamSequence `json:"stream_sequence"`
	// Field that differs, and what each of the two says.
	Field string `json:"field"`
	Fold  string `json:"fold"`
	Model string `json:"model"`
	At    string `json:"at"`
}

// String is one line.
func (d Difference) String() string {
	return fmt.Sprintf("run %s after event %s at %d: %s is %s by the fold and %s by the model", d.Run, d.Event, d.Stream, d.Field, d.Fold, d.Model)
}

// Folded is an event that the folder has folded.
type Folded struct {
	Run string
	// Before is the position of the run's head before it; 0 for none.
	Before schema.StreamSequence
	Record *schema.Record
	// Keys that it was folded by.
	Keys *schema.Keys
	Kind schema.VerdictKind
	// Head after it; it is copied.
	Head *schema.Head
}

// Shadow folds chosen runs beside the folder.
type Shadow struct {
	cfg   Config
	log   zerolog.Logger
	stats Stats
	in    chan folded
	bytes atomic.Int64

	// chosen are the runs that are followed, by the folder's side: where each of them is.
	mu     sync.Mutex
	chosen map[string]schema.StreamSequence
	last   []Difference

	// models belong to the shadow's goroutine.
	models map[string]*model
}

type folded struct {
	run string
	// first: it is the run's first event, so that what an earlier model of the run knows is over.
	first bool
	rec   schema.Record
	keys  *schema.Keys
	kind  schema.VerdictKind
	head  schema.Head
	size  int64
}

type model struct {
	*modelfold.Model
	events int
}

// New returns a shadow. Call [Shadow.Run].
func New(cfg Config, log zerolog.Logger) (*Shadow, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	return &Shadow{
		cfg: cfg, log: log.With().Str("fleet", cfg.Fleet).Logger(), in: make(chan folded, underWay),
		chosen: map[string]schema.StreamSequence{}, models: map[string]*model{},
	}, nil
}

// Stats counts what was done.
func (s *Shadow) Stats() *Stats { return &s.stats }

// Last returns the latest differences, the newest last.
func (s *Shadow) Last() []Difference {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]Difference(nil), s.last...)
}

// picks reports whether a run is of the share: always the same runs, on every replica.
func (s *Shadow) picks(run string) bool {
	h := fnv.New32a()
	_, _ = h.Write([]byte(run))
	// FNV leaves names that differ in the end alone close together.
	x := h.Sum32()
	x ^= x >> 16
	x *= 0x7feb352d
	x ^= x >> 15
	return float64(x) < s.cfg.Share*math.MaxUint32
}

// Folded takes an event over. It is called by folders, from any goroutine, in the order of each run's log.
func (s *Shadow) Folded(f Folded) {
	if !s.picks(f.Run) {
		return
	}
	s.mu.Lock()
	at, follows := s.chosen[f.Run]
	switch {
	case f.Kind == schema.Replayed:
		s.mu.Unlock()
		return // nothing was folded
	case !follows && f.Before == 0 && len(s.chosen) < s.cfg.Runs:
		s.stats.Runs.Add(1)
	case !follows:
		s.mu.Unlock()
		return
	case at != f.Before, f.Kind == schema.Skipped:
		// A mark is none of the model's: the run is elsewhere, or was removed. Or another replica folded something in between, or the run was folded anew.
		delete(s.chosen, f.Run)
		s.mu.Unlock()
		s.stats.Left.Add(1)
		return
	}
	s.chosen[f.Run] = f.Head.Position.Stream
	s.mu.Unlock()
	size := int64(f.Record.Size())
	if s.bytes.Add(size) > underWayBytes {
		s.bytes.Add(-size)
		s.drop(f.Run)
		return
	}
	select {
	case s.in <- folded{run: f.Run, first: !follows, rec: *f.Record, keys: f.Keys, kind: f.Kind, head: f.Head.Clone(), size: size}:
	default:
		s.bytes.Add(-size)
		s.drop(f.Run)
	}
}

// drop lets a run go; its model goes with its next event, or when there are too many.
func (s *Shadow) drop(run string) {
	s.stats.Left.Add(1)
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.chosen, run)
}

// Run folds until ctx ends.
func (s *Shadow) Run(ctx context.Context) error {
	pause := time.NewTimer(time.Hour)
	defer pause.Stop()
	begin, n := s.cfg.Now(), 0
	for {
		select {
		case <-ctx.Done():
			return nil
		case f := <-s.in:
			s.take(&f)
			s.bytes.Add(-f.size)
			if n++; n < s.cfg.PerSecond {
				continue
			}
		}
		// So many events a second, and no more: the folder has the rest of the machine.
		if rest := time.Second - s.cfg.Now().Sub(begin); rest > 0 {
			pause.Reset(rest)
			select {
			case <-pause.C:
			case <-ctx.Done():
				return nil
			}
		}
		begin, n = s.cfg.Now(), 0
	}
}

// take folds one event, and compares.
func (s *Shadow) take(f *folded) {
	if !s.follows(f.run) {
		delete(s.models, f.run)
		return
	}
	m := s.models[f.run]
	if m == nil || f.first {
		if len(s.models) >= s.cfg.Runs {
			maps.DeleteFunc(s.models, func(run string, _ *model) bool { return !s.follows(run) })
		}
		m = &model{Model: modelfold.New(s.cfg.Fleet, f.run)}
		s.models[f.run] = m
	}
	defer func() {
		// The model is test equipment: what it does not survive must not be the daemon's end.
		if p := recover(); p != nil {
			s.log.Error().Str("run", f.run).Uint64("position", uint64(f.rec.Stream)).Interface("panic", p).Msg("shadow fold gave a run up")
			s.leave(f.run)
		}
	}()
	kind := m.Apply(f.keys, &f.rec)
	m.events++
	switch {
	case m.Beyond:
		s.leave(f.run)
		return
	case kind != f.kind:
		s.differs(f, "verdict", f.kind.String(), kind.String())
		return
	}
	s.stats.Events.Add(1)
	// The first that differs is said; what follows from it is no news.
	if all := m.Differences(&f.head); len(all) > 0 {
		s.differs(f, all[0].What, all[0].Fold, all[0].Model)
		return
	}
	switch {
	case !f.head.Live():
		s.end(f.run)
	case m.events >= s.cfg.Events:
		s.leave(f.run)
	}
}

func (s *Shadow) follows(run string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, ok := s.chosen[run]
	return ok
}

// end is for a run that has come to its end, or differs: nothing more is to be learned of it.
func (s *Shadow) end(run string) {
	delete(s.models, run)
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.chosen, run)
}

func (s *Shadow) leave(run string) {
	s.stats.Left.Add(1)
	s.end(run)
}

// differs says that fold and model do not agree. What follows in the run is no news.
func (s *Shadow) differs(f *folded, field, fold, model string) {
	// Who sees the count finds the difference.
	defer s.stats.Differences.Add(1)
	d := Difference{
		Run: f.run, Event: f.head.Position.ID, Stream: f.rec.Stream, Field: field, Fold: short(fold), Model: short(model), At: schema.FormatTime(s.cfg.Now()),
	}
	s.log.Error().Str("run", d.Run).Str("event", d.Event).Uint64("position", uint64(d.Stream)).Str("field", d.Field).
		Str("fold", d.Fold).Str("model", d.Model).Msg("shadow fold differs")
	s.end(f.run)
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.last) >= remembered {
		s.last = s.last[1:]
	}
	s.last = append(s.last, d)
}

// short bounds text of which nobody knows how long it is.
func short(text string) string {
	const most = 256
	if len(text) > most {
		return text[:most] + "…"
	}
	return text
}
