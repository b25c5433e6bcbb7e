// Package inbox finds what needs a person, and what a person must know to decide about it.
//
// # What it owns
//
// [Gather], which reads the runs that stand still, with the reasons of internal/standstill; [Asked], which shows a question whole; the
// commands that answer each; and [HowEnded], which tells the second of two persons who was first. The commands inbox, input, settle and
// runs ls --stuck and the inspector say the same because they say it from here.
//
// # What it promises
//
// Nothing is changed. A run that cannot be read hides no other one: it is named in [Found].
//
// # On failure
//
// Errors are those of the service, as [Asker] returns them.
package inbox
