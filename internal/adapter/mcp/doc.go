// Package mcp is a recording proxy between an MCP client and an MCP server.
//
// It owns what is particular to the protocol: messages pass unchanged but for calls of tools, which internal/adapter/session
// records before the server gets them, and answers from the record when they are repeated; the identity of a call; the
// replay policies of tools, from their annotations and a file; the end of the run.
package mcp
