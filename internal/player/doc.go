// Package player runs a transcript as an agent: the model's answers come from the transcript, the tools are functions
// that really run, and all events go through the publisher's SDK.
//
// It is the executor of the demonstration and of the acceptance tests. It owns the walk through a transcript, from its
// beginning or from a recovered state. It writes to the journal as a witness: each acknowledged boundary, each
// execution of a tool, each takeover.
//
// It promises that a run that was killed anywhere and continued by others ends with the same messages, calls, results
// and usage as an undisturbed one. Recorded events are not published again, and recorded results are not requested
// again.
//
//	Play ─▶ run.started ─▶ walk ─▶ run.ended
//	Resume ─▶ takeover ─▶ find the place ─▶ walk ─▶ run.ended
//
// Failure: an error of the SDK ends the walk and is returned; the run stays at its last acknowledged event. A call held
// for a person ends it with [publisher.ErrHeld]. A failed write to the journal ends it, too: an unwitnessed step proves
// nothing.
package player
