package kvstore

import (
	"context"
	"fmt"
	"slices"

	"github.com/waymarkio/waymark/schema"
)

// Pause stores a pause, and returns the one in effect: an earlier one of the same scope stays. It returns [ErrSettings]
// for a pause out of range, and beyond schema.MaxPauses.
func (f *Fleets) Pause(ctx context.Context, fleet string, p schema.Pause) (is schema.Pause, already bool, err error) {
	_, stored, err := f.putSettings(ctx, fleet, func(s *schema.FleetSettings) error {
		if i := pauseIndex(s, &p.Scope); i >= 0 {
			p = s.Pauses[i]
			return nil
		}
		if len(s.Pauses) == schema.MaxPauses {
			return fmt.Errorf("%w: fleet %s has %d pauses: end some, or pause a larger scope", ErrSettings, fleet, len(s.Pauses))
		}
		s.Pauses = append(slices.Clone(s.Pauses), p)
		return nil
	})
	return p, !stored, err
}

// Unpause ends the pause of exactly that scope, and returns it. It returns [ErrNotFound] if there is none.
func (f *Fleets) Unpause(ctx context.Context, fleet string, scope schema.Scope) (was schema.Pause, err error) {
	_, _, err = f.putSettings(ctx, fleet, func(s *schema.FleetSettings) error {
		i := pauseIndex(s, &scope)
		if i < 0 {
			return fmt.Errorf("pause of %s in fleet %s: %w", scope.Flags(), fleet, ErrNotFound)
		}
		was = s.Pauses[i]
		if s.Pauses = slices.Delete(slices.Clone(s.Pauses), i, i+1); len(s.Pauses) == 0 {
			s.Pauses = nil
		}
		return nil
	})
	return was, err
}

// pauseIndex is the index of the pause of a scope, -1 for none.
func pauseIndex(s *schema.FleetSettings, scope *schema.Scope) int {
	return slices.IndexFunc(s.Pauses, func(p schema.Pause) bool { return p.Same(scope) })
}
