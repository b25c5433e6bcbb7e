// Package player plays a transcript as an agent: what the model says comes from the transcript, the tools are
// functions that are really run, and everything goes through the publisher's SDK.
//
// It is the executor of the demonstration and of the acceptance tests. It owns the walk through a transcript,
// from its beginning or from wherever a recovered state stands, and it writes a witness's account into the
// journal: each acknowledged boundary, each execution of a tool, each takeover.
//
// It promises that a run that was killed anywhere and played on by others ends with the same messages, calls,
// results and usage as one that was not. What is recorded is not published again, and a recorded result is
// not asked for again.
//
//	Play ─▶ run.started ─▶ walk ─▶ run.ended
//	Resume ─▶ takeover ─▶ find the place ─▶ walk ─▶ run.ended
//
// Failure: an error of the SDK ends the walk and is returned; the run stays where it was acknowledged. A call
// that is held for a person ends it with [publisher.ErrHeld]. What the journal cannot take ends it, too: an
// unwitnessed step proves nothing.
package player
