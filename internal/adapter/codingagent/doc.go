// Package codingagent records the sessions of Claude Code and Codex as runs, through their hooks.
//
// It owns what is particular to these two programs: the form of their hooks ([Dialect]), the answers to hooks
// ([Bridge]), the replay policies of their tools ([Tools]), and their session files. What may
// run and what is in doubt is decided by internal/adapter/session.
//
// A tool runs only after the answer to its hook PreToolUse, and the bridge answers only after the call is durable. A
// hook that gets no answer refuses the tool.
//
// After a crash the model decides what to do next: it may call a tool again under a new id. So [Settle] closes the open
// calls of the earlier process, and the bridge tells the model how.
package codingagent
