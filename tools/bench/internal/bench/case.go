package bench

import (
	"context"
	"slices"
	"time"
)

// Case is one thing that is measured.
type Case struct {
	// Name on the command line and in results: one lower-case word.
	Name string
	// About says in a sentence what is measured, and what it is compared with.
	About string
	// Uses names the options that the case understands in addition to rounds, server and sync: runs, turns, shards, daemons, executors.
	Uses []string
	// Variants are what is measured under given options, each in a world of its own.
	Variants func(o Options) []Variant
}

// Variant is one line of a case.
type Variant struct {
	// Parameters tell the line from its siblings. They must not be empty where a case has several.
	Parameters map[string]any
	// World changes what the options ask for; nil changes nothing.
	World func(*WorldSpec)
	// Setup prepares the rounds. What it opens it hands to World.Defer.
	Setup func(ctx context.Context, w *World) (*Trial, error)
}

// Trial is a prepared variant.
type Trial struct {
	// Rounds overrides the option when it is above 0: 1 for what cannot be repeated in one world.
	Rounds int
	// WarmUp is called once before the rounds, unmeasured; nil does nothing.
	WarmUp func(ctx context.Context) error
	// Prepare is called before each round, unmeasured; nil does nothing.
	Prepare func(ctx context.Context, round int) error
	// Raw is a round of raw JetStream; nil when there is nothing to compare with. Rounds count from 0.
	Raw func(ctx context.Context, round int) (Sample, error)
	// Ours is the same round through Waymark. Required.
	Ours func(ctx context.Context, round int) (Sample, error)
	// Verify compares what is stored with what was written; see [World.Verify]. Required: a case that cannot be wrong
	// measures nothing.
	Verify func(ctx context.Context) error
	// Finish adds what the case alone knows, and its aims, to the result. It is called when everything else stands
	// in it. May be nil.
	Finish func(ctx context.Context, r *Result) error
}

// Sample is what one round measured. Fields at their zero value were not measured.
type Sample struct {
	// Boundaries is the number of events that were made durable, or of whatever else Elapsed is the time of.
	Boundaries int64
	// Elapsed is the time of all of them together.
	Elapsed time.Duration
	// Latencies are the times of single ones, in any order.
	Latencies []time.Duration
	// Payload is the number of bytes that an executor wanted to be kept or to get back: messages, arguments, results.
	Payload int64
	// Bytes are those that went over the wire; where it is above 0 a rate in MB/s is reported.
	Bytes int64
}

// Cases are all cases, in the order in which they are run.
func Cases() []Case {
	return []Case{
		boundaryCase(),
		boundariesCase(),
		turnCase(),
		foldCase(),
		recoveryCase(),
	}
}

// Find returns the cases with the given names, in the order of Cases. For no names it returns all.
// It returns [ErrUnknownCase] for a name that none has.
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
			return nil, &UnknownCaseError{Name: name}
		}
	}
	return found, nil
}
