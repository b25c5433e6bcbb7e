// Package standstill says why a run stands still, and whether only a person ends it.
//
// It owns the reasons and their texts, for the commands and the webhook. It is pure: the caller reads the runs. A run that goes on has no
// reasons.
package standstill
