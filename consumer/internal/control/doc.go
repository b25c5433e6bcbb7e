// Package control publishes the control events of a daemon.
//
// It owns the compare-and-set on a run's last event, the repetition of a publish without an answer, and the room in a
// full log that such an event may use. It knows nothing of requests or of the fold: the caller chooses the events.
//
// On failure it reports whether the log refused the event because of another one ([ErrRefused]) or the outcome is
// unknown.
package control
