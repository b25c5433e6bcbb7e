// Package standstill says why a run stands still, and whether only a person ends it.
//
// It owns the reasons and their words, for the commands and for what tells people. It is pure: who calls it reads the runs. A run that
// goes on has no reasons.
package standstill
