// Package inbox finds runs that need a person, and the data that the person needs to decide.
//
// # What it owns
//
// [Gather], which reads the stuck runs, with the reasons of internal/look/standstill; [Asked], which shows a question in
// full; the commands that answer each; and [HowEnded], which tells a person that another one answered first. The
// commands inbox, input, settle and runs ls --stuck, and the inspector, share this package, so that they agree.
//
// # What it promises
//
// Nothing is changed. An unreadable run does not hide the others: it is named in [Found].
//
// # On failure
//
// Errors are those of the service, as [Asker] returns them.
package inbox
