// Package fleetclient sends requests to the recovery service of a fleet.
//
// It owns the request, its repetition while no daemon can serve it, the numbered replies of one answer with their
// flow control, and the errors between the caller and the daemon. It does not know the content of requests: the
// caller consumes the answer, and translates the daemon's own errors.
//
// An answer that breaks off is requested again, a few times; it never looks complete.
package fleetclient
