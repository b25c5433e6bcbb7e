// Package fleetclient asks the recovery service of a fleet.
//
// It owns the request, its repetition while no daemon can serve it, the numbered replies of one answer with their flow control, and the errors
// of what lies between the caller and the daemon. It does not know what is asked: the caller consumes the answer, and gives the daemon's own
// errors their names.
//
// An answer that breaks off is asked for again, a few times; it never looks like a whole one.
package fleetclient
