// Package firing submits the runs of a fleet's schedules when they are due.
//
// Every daemon of the fleet does: the id of a run follows from its due time, and submitting an id again changes nothing.
// So the runs are the record of what has fired, and no daemon leads or remembers. A run that cannot be submitted is tried
// again each second, and the state of its schedule has the reason.
package firing
