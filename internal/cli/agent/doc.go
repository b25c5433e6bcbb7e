// Package agent is the command agent: Claude Code and Codex under Waymark.
//
// It owns their processes: a child with its bridge, the server that it starts if there is none, and what becomes of a
// run when its child ends. internal/adapter/codingagent answers the hooks.
package agent
