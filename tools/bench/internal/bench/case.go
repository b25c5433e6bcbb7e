package bench

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Case is one measurement.
type Case struct {
	// Name on the command line and in results: one lower-case word.
	Name string
	// About describes the measurement and its comparison in a sentence.
	About string
	// Variants returns the variants for some options; each has a world of its own.
	Variants func(o Options) []Variant
}

// Variant is one line of a case.
type Variant struct {
	// Parameters identify the line within its case. They must not be empty if the case has several lines.
	Parameters map[string]any
	// World changes the specification of the options; nil changes nothing.
	World func(*WorldSpec)
	// Setup prepares the rounds. It registers clean-ups with World.Defer.
	Setup func(ctx context.Context, w *World) (*Trial, error)
}

// Trial is a prepared variant.
type Trial struct {
	// Rounds above 0 overrides the option: 1 for a round that cannot be repeated in one world.
	Rounds int
	// WarmUp is called once before the rounds, unmeasured; nil does nothing.
	WarmUp func(ctx context.Context) error
	// Prepare is called before each round, unmeasured; nil does nothing.
	Prepare func(ctx context.Context, round int) error
	// Raw is a round of raw JetStream; nil means no comparison. Rounds count from 0.
	Raw func(ctx context.Context, round int) (Sample, error)
	// Ours is the same round through Waymark. Required.
	Ours func(ctx context.Context, round int) (Sample, error)
	// Verify compares the store with the writers' views; see [World.Verify]. Required.
	Verify func(ctx context.Context) error
}

// Sample is the measurement of one round. Zero fields were not measured.
type Sample struct {
	// Boundaries is the number of durable events, or of other things that Elapsed is the time of.
	Boundaries int64
	// Elapsed is the time of all of them together.
	Elapsed time.Duration
	// Latencies are the times of single ones, in any order.
	Latencies []time.Duration
	// Payload is the size in bytes of messages, arguments and results.
	Payload int64
}

// Cases are all cases, in the order in which they are run.
func Cases() []Case {
	return []Case{
		boundaryCase(),
		turnCase(),
		foldCase(),
		lagCase(),
		recoveryCase(),
	}
}

// Find returns the cases with the given names, in the order of Cases; without names it returns all. It returns
// [ErrUnknownCase] for an unknown name.
func Find(names ...string) ([]Case, error) {
	all := Cases()
	if len(names) == 0 {
		return all, nil
	}
	var found []Case
	for _, c := range all {
		if slices.Contains(names, c.Name) {
			found = append(found, c)
		}
	}
	for _, name := range names {
		if !slices.ContainsFunc(all, func(c Case) bool { return c.Name == name }) {
			names := make([]string, len(all))
			for i, c := range all {
				names[i] = c.Name
			}
			return nil, fmt.Errorf("%w: %q; there are %s", ErrUnknownCase, name, strings.Join(names, ", "))
		}
	}
	return found, nil
}
