// Package standstill says why a run is stuck, and whether only a person can continue it.
//
// It owns the reasons and their texts, for the commands and the webhook. It is pure: the caller reads the runs. A run
// that makes progress has no reasons.
package standstill
