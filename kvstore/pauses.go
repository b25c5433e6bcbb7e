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
		if len(list) >= schema.MaxPauses {
			list = slices.DeleteFunc(list, func(p schema.Pause) bool { return over(&p) })
		}
		if len(list) >= schema.MaxPauses {
			return fmt.Errorf("%w: fleet %s has %d pauses: end some, or pause a larger scope", ErrSettings, fleet, len(list))
		}
		s.Pauses = append(list, p)
		return nil
	})
	return p, !stored, err
}

// Unpause ends the pause of exactly that scope, and returns it. It reports false if there is none.
func (f *Fleets) Unpause(ctx context.Context, fleet string, scope schema.Scope) (was schema.Pause, ended bool, err error) {
	was.Scope = scope
	_, ended, err = f.putSettings(ctx, fleet, func(s *schema.FleetSettings) error {
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

// pauseIndex is the index of the pause of a scope, -1 for none.
func pauseIndex(s *schema.FleetSettings, scope *schema.Scope) int {
	return slices.IndexFunc(s.Pauses, func(p schema.Pause) bool { return p.Same(scope) })
}
