package kvstore

import (
	"context"
	"fmt"
	"slices"

	"github.com/waymarkio/waymark/schema"
)

// Pause stores a pause, and returns the one in effect: an earlier one of the same scope stays. Beyond schema.MaxPauses it
// replaces those that are over, and returns [ErrSettings] if none is.
func (f *Fleets) Pause(ctx context.Context, fleet string, p schema.Pause, over func(*schema.Pause) bool) (is schema.Pause, already bool, err error) {
	_, stored, err := f.putSettings(ctx, fleet, func(s *schema.FleetSettings) error {
		if i := pauseIndex(s, &p.Scope); i >= 0 {
			p = s.Pauses[i]
			return nil
		}
		list := slices.Clone(s.Pauses)
		if peoples(list) >= schema.MaxPauses {
			list = slices.DeleteFunc(list, func(p schema.Pause) bool { return p.Limit == "" && over(&p) })
		}
		if n := peoples(list); n >= schema.MaxPauses {
			return fmt.Errorf("%w: fleet %s has %d pauses: end some, or pause a larger scope", ErrSettings, fleet, n)
		}
		s.Pauses = append(list, p)
		return nil
	})
	return p, !stored, err
}

// peoples counts the pauses that people asked for.
func peoples(list []schema.Pause) (n int) {
	for i := range list {
		if list[i].Limit == "" {
			n++
		}
	}
	return n
}

// Unpause ends the pause of exactly that scope that a person asked for, and returns it. It reports false if there is none,
// and returns that of a budget.
func (f *Fleets) Unpause(ctx context.Context, fleet string, scope schema.Scope) (was schema.Pause, ended bool, err error) {
	_, ended, err = f.putSettings(ctx, fleet, func(s *schema.FleetSettings) error {
		was = schema.Pause{Scope: scope}
		for i := range s.Pauses {
			if s.Pauses[i].Same(&scope) {
				was = s.Pauses[i]
			}
		}
		if i := pauseIndex(s, &scope); i >= 0 {
			was, s.Pauses = s.Pauses[i], slices.Delete(slices.Clone(s.Pauses), i, i+1)
		}
		if len(s.Pauses) == 0 {
			s.Pauses = nil
		}
		return nil
	})
	return was, ended, err
}

// KeepPauses replaces the pauses of a fleet by those that keep returns for its settings, and reports whether they differ.
func (f *Fleets) KeepPauses(ctx context.Context, fleet string, keep func(*schema.FleetSettings) []schema.Pause) (changed bool, err error) {
	_, changed, err = f.putSettings(ctx, fleet, func(s *schema.FleetSettings) error {
		if s.Pauses = keep(s); len(s.Pauses) == 0 {
			s.Pauses = nil
		}
		return nil
	})
	return changed, err
}

// pauseIndex is the index of the pause of a scope that a person asked for, -1 for none.
func pauseIndex(s *schema.FleetSettings, scope *schema.Scope) int {
	return slices.IndexFunc(s.Pauses, func(p schema.Pause) bool { return p.Limit == "" && p.Same(scope) })
}
