// Package control publishes the control events of a daemon.
//
// It owns the compare-and-set on a run's last event, the repetition of a publish without an answer, and the room in a full log that
// such an event may take. It knows nothing of requests or of the fold: the caller decides which event follows which.
//
// On failure it says whether the log refused the event for another one ([ErrRefused]) or the outcome is unknown.
package control
