package kvstore

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/waymarkio/waymark/schema"
)

// SetLimit stores a limit in place of that of the same scope, and returns the one in effect: an equal one stays, and so does
// a bound that the new one lacks. Beyond
// schema.MaxLimits it returns [ErrSettings].
func (f *Fleets) SetLimit(ctx context.Context, fleet string, l schema.Limit) (is schema.Limit, already bool, err error) {
	_, stored, err := f.putSettings(ctx, fleet, func(s *schema.FleetSettings) error {
		i := limitIndex(s, &l)
		if is = l; i >= 0 {
			is.AtWork, is.DayTokens = cmp.Or(l.AtWork, s.Limits[i].AtWork), cmp.Or(l.DayTokens, s.Limits[i].DayTokens)
		}
		switch {
		case i < 0 && len(s.Limits) >= schema.MaxLimits:
			return fmt.Errorf("%w: fleet %s has %d limits: end some, or use one for each value of a label", ErrSettings, fleet, len(s.Limits))
		case i < 0:
			s.Limits = append(slices.Clone(s.Limits), is)
		case s.Limits[i].AtWork == is.AtWork && s.Limits[i].DayTokens == is.DayTokens:
			is = s.Limits[i]
		default:
			s.Limits = slices.Clone(s.Limits)
			s.Limits[i] = is
		}
		return nil
	})
	return is, !stored, err
}

// EndLimit ends the limit of exactly that scope, and returns it. It reports false if there is none.
func (f *Fleets) EndLimit(ctx context.Context, fleet string, of schema.Limit) (was schema.Limit, ended bool, err error) {
	was = of
	_, ended, err = f.putSettings(ctx, fleet, func(s *schema.FleetSettings) error {
		if i := limitIndex(s, &of); i >= 0 {
			was, s.Limits = s.Limits[i], slices.Delete(slices.Clone(s.Limits), i, i+1)
		}
		if len(s.Limits) == 0 {
			s.Limits = nil
		}
		return nil
	})
	return was, ended, err
}

// limitIndex is the index of the limit of a scope, -1 for none.
func limitIndex(s *schema.FleetSettings, l *schema.Limit) int {
	return slices.IndexFunc(s.Limits, func(is schema.Limit) bool { return is.Same(l) })
}
