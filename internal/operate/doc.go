// Package operate has what an operator does to a run by taking it over: forks, going back to a point, letting go.
//
// It owns the checks before, and the order of the steps: the run is taken over by the operator's own name and let go of at once, so that
// the fleet may claim it. A process that is killed between the two leaves a run whose executor is silent, which is orphaned. The commands
// of internal/cli/runs and the pages of internal/inspector call it. It knows neither flags nor forms.
package operate
