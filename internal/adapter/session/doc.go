// Package session records a run whose loop belongs to another program: the hooks of a coding agent, a client of an MCP
// server, a framework in another language.
//
// It owns one rule: the program's call id names the call in the whole run. The same id again, from this process or after
// a takeover, gets the recorded outcome, and its tool does not run twice. What may run, what is in doubt and what a
// person must settle is decided by [publisher.Turn.Tool]. A call that was begun belongs to the session, not to the
// request that began it: its outcome is recorded when it arrives, also after the requester has gone or another executor
// has taken the run over.
package session
