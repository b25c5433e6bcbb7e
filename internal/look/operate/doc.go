// Package operate has operator actions that take a run over: fork, rewind, release.
//
// It owns the checks and the order of the steps: the operator takes the run over under its own name and releases it at
// once, so that the fleet may claim it. A process that is killed between the two leaves a run with a silent executor,
// which is orphaned. The commands of internal/cli/runs and the pages of internal/look/inspector use it. It knows neither
// flags nor forms.
package operate
